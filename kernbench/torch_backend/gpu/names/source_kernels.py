"""Kernels that a program compiles from CUDA C++ (``torch.cuda._compile_kernel``): operators of the namespace ``cuda_kernels``.

Their source is not run. A stand-in for the compiled module ``cuda_kernels`` defines them; one that nothing defines has no
values, and is counted by the bytes of its tensors.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
import torch.library

from kernbench.torch_backend.operations.defining import define
from kernbench.torch_backend.operations.library_operators import TABLE, LibraryOperator

NAMESPACE = "cuda_kernels"

_FREE = 48 << 10
"""Bytes of shared memory that a block may have without asking."""

_TYPES = (("t", torch.Tensor), ("i", int), ("f", float))

Extent = tuple[int, int, int]


class SourceKernel:
    """A compiled kernel, which is launched by calling it (``torch.cuda._utils._CudaKernel``)."""

    def __init__(self, name: str) -> None:
        self.name = re.sub(r"\W+", "_", name).strip("_")
        self._shared = 0

    def __call__(
        self, grid: Extent = (1, 1, 1), block: Extent = (1, 1, 1), args: Sequence[Any] | None = None, shared_mem: int = 0,
        stream: Any = None,
    ) -> None:  # fmt: skip
        """Launch it with tensors and numbers, in their order."""
        given = list(args or ())
        for each in given:
            if isinstance(each, torch.Tensor) and not (each.is_cuda or (each.is_cpu and each.is_pinned())):
                raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
        if shared_mem >= _FREE and shared_mem > self._shared:
            known = f"only {self._shared} bytes configured" if self._shared else "not configured"
            raise RuntimeError(
                f"Kernel requires {shared_mem} bytes of shared memory (>= 48KB), but {known}. Call "
                "kernel.set_shared_memory_config(shared_mem) after compilation and before launching the kernel."
            )
        operator = _operator(self.name, given)
        with nullcontext() if stream is None else torch.cuda.stream(stream), torch.no_grad():
            operator(*given)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Let its blocks have so many bytes of shared memory."""
        properties: Any = torch.cuda.get_device_properties()
        most = properties.shared_memory_per_block_optin
        if shared_mem_bytes > most:
            raise RuntimeError(
                f"Requested shared memory ({shared_mem_bytes} bytes) exceeds device limit ({most} bytes). "
                "Consider reducing block size or shared memory usage."
            )
        self._shared = shared_mem_bytes


def compile_kernel(
    kernel_source: str, kernel_name: str, compute_capability: str | None = None,
    cuda_include_dirs: list[str] | None = None, nvcc_options: list[str] | None = None,
) -> SourceKernel:  # fmt: skip
    """``torch.cuda._compile_kernel``."""
    with suppress(ModuleNotFoundError):
        importlib.import_module(NAMESPACE)
    return SourceKernel(kernel_name)


def _operator(name: str, given: Sequence[Any]) -> Any:
    """The operator of a kernel: the one that is defined by its name, else one for arguments of these types, which may write all
    tensors."""
    packet = getattr(torch.ops, NAMESPACE)
    if f"{NAMESPACE}::{name}" in TABLE:
        return getattr(packet, name)
    letters = [_letter(each) for each in given]
    which = "".join(letters) or "none"
    if f"{NAMESPACE}::{name}.{which}" not in TABLE:
        types = {"t": "Tensor(a{}!) a{}", "i": "int a{1}", "f": "float a{1}"}
        wanted = ", ".join(types[letter].format(at, at) for at, letter in enumerate(letters))
        operator = LibraryOperator(f"{NAMESPACE}::{name}.{which}", "CUDA C++", None, None)
        define(torch.library.Library(NAMESPACE, "FRAGMENT"), NAMESPACE, f"{name}.{which}({wanted}) -> ()", operator)
    return getattr(getattr(packet, name), which)


def _letter(value: Any) -> str:
    for letter, kind in _TYPES:
        if isinstance(value, kind):
            return letter
    raise TypeError(f"Unsupported argument type: {type(value)}")
