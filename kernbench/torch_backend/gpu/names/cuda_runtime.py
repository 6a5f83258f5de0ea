"""``torch.cuda.cudart()``: the functions of the CUDA runtime that torch shows to programs, for simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace

from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.tensors import pinning


class CudaStatus(IntEnum):
    """``cudaError``: what a function of the runtime returns."""

    success = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorHostMemoryAlreadyRegistered = 712
    cudaErrorHostMemoryNotRegistered = 713


_WORDS = {
    CudaStatus.success: "no error",
    CudaStatus.cudaErrorInvalidValue: "invalid argument",
    CudaStatus.cudaErrorMemoryAllocation: "out of memory",
    CudaStatus.cudaErrorHostMemoryAlreadyRegistered: "part or all of the requested memory range is already mapped",
    CudaStatus.cudaErrorHostMemoryNotRegistered: "pointer does not correspond to a registered memory region",
}


def _done(*args: object) -> CudaStatus:
    return CudaStatus.success


def _register(address: int, size: int, flags: int) -> CudaStatus:
    """Pin memory of the host."""
    if size <= 0:
        return CudaStatus.cudaErrorInvalidValue
    known = pinning.register(address, size)
    return CudaStatus.success if known else CudaStatus.cudaErrorHostMemoryAlreadyRegistered


def _unregister(address: int) -> CudaStatus:
    known = pinning.unregister(address)
    return CudaStatus.success if known else CudaStatus.cudaErrorHostMemoryNotRegistered


def _memory(device: int) -> tuple[int, int]:
    """Bytes that are free, and all."""
    return bound_devices().memory_at(device).mine.told


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "cudaProfilerStart": _done,
    "cudaProfilerStop": _done,
    "cudaStreamCreate": _done,
    "cudaStreamDestroy": _done,
    "cudaHostRegister": _register,
    "cudaHostUnregister": _unregister,
    "cudaMemGetInfo": _memory,
    "cudaGetErrorString": lambda status: _WORDS.get(status, "unrecognized error code"),
}

CUDART = SimpleNamespace(cudaError=CudaStatus, **_FUNCTIONS)
"""``torch.cuda._cudart``."""


def cudart() -> SimpleNamespace:
    """``torch.cuda.cudart``."""
    return CUDART
