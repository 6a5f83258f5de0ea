"""What both devices refuse, said as CUDA says it: the CPU's kernels name themselves, and tensors without a device."""

from __future__ import annotations

import re
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.torch_backend.gpu.tensors.placement import block_of

_KERNELS = {
    "add_stub": "ufunc_add_CUDA",
    "sum_cpu": "sum_cuda",
    "max_all": "max_all_cuda",
    "min_all": "min_all_cuda",
    "softmax_lastdim_kernel_impl": "host_softmax",
    "log_softmax_lastdim_kernel_impl": "host_softmax",
    "normal_kernel_cpu": "normal_kernel_cuda",
    "cholesky_cpu": "cholesky_cusolver",
    "lu_cpu": "lu_factor_cusolver",
}
"""Kernels for the CPU, and for CUDA, as errors name them: of those that an H100 has been seen to name."""

_TYPE = re.compile(r"\btorch\.(\w+Tensor)\b")
_NAMED = re.compile(r'^"(\w+)" not implemented for')


def retold(error: Exception, args: Any, kwargs: Any) -> Exception | None:
    """An error of a kernel for the CPU in CUDA's words, where its tensors are on GPUs; None: it would say the same."""
    text = str(error)
    named = _NAMED.match(text)
    other = _KERNELS.get(named[1]) if named else None
    told = f'"{other}"{text[len(named[1]) + 2 :]}' if named and other else _TYPE.sub(r"torch.cuda.\1", text)
    if told == text:
        return None
    tensors = listed_tensors((*args, *(kwargs or {}).values()))
    if any(block_of(each) is None for each in tensors if isinstance(each, torch.Tensor)):
        return None
    return type(error)(told)
