"""What CUDA refuses of a call that a CPU carries out: formats, products in eight bits, kernels that are not deterministic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.gpu.kernels import nondeterministic, refused_types, scaled_products
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.overloads import OpOverload

Check = Callable[[int, Any, Any], None]
"""Is given the compute capability of a GPU, arguments by place and by keyword."""

_OF_CPUS = frozenset((
    "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors", "_spdiags",
    "_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa_backward",
))  # fmt: skip
"""Operators that have a kernel for a CPU, and none for CUDA (torch/include/ATen/ops/*_cuda_dispatch.h)."""


def refusal_of(func: OpOverload) -> Check | None:
    """What raises, in CUDA's words, if CUDA refuses an ``OpOverload`` with given arguments on a GPU; None: it never does."""
    if func.namespace != "aten":
        return None
    name = func._opname
    if name in _OF_CPUS:
        return _of_cpus(func)
    typed, scaled, alert = (
        None
        if func._overloadname.startswith("dtype")
        else refused_types.refusal_of(name),  # these have a result of their own
        scaled_products.refusal_of(name),
        nondeterministic.alert_of(func),
    )
    if typed is None and scaled is None and alert is None:
        return None

    def check(arch: int, args: Any, kwargs: Any) -> None:
        if not _on_a_gpu(args):
            return
        if typed is not None:
            typed(args)
        if scaled is not None:
            scaled(arch, args)
        if alert is not None:
            alert(args, kwargs)

    return check


def _on_a_gpu(args: Any) -> bool:
    return any(isinstance(each, torch.Tensor) and block_of(each) is not None for each in args)


def _of_cpus(func: OpOverload) -> Check:
    def check(arch: int, args: Any, kwargs: Any) -> None:
        if _on_a_gpu(args):
            raise NotImplementedError(
                f"Could not run '{func.name()}' with arguments from the 'CUDA' backend: torch has it for CPUs alone. Move its "
                "arguments to the host first"
            )

    return check


def depends_on_settings(func: OpOverload) -> bool:
    """Whether it may be refused for what the program has set (:func:`torch.use_deterministic_algorithms`)."""
    return func.namespace == "aten" and nondeterministic.alert_of(func) is not None
