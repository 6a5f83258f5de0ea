"""What Dynamo and Inductor ask of the GPU that they compile for, answered by the simulated one (ADR 0111).

They ask by one interface per kind of device, keep what they receive, and take the answers into the keys of their caches. What
they keep is forgotten at both ends of a simulation: the next one may have another GPU.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch.types import Device

from kernbench.torch_backend.gpu.device import streams
from kernbench.torch_backend.gpu.device.devices import allocate, bound_devices
from kernbench.torch_backend.gpu.names import cuda_names
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance
from kernbench.version import __version__

INTERFACE = "torch._dynamo.device_interface"
CODE_CACHE = "torch._inductor.codecache"


def raw_stream(device: int = 0) -> int:
    """``torch._C._cuda_getCurrentRawStream``: the number of the rank's current stream."""
    return streams.current_stream().cuda_stream


def compute_capability(device: Device = None) -> int:
    """Ten times the major number, plus the minor one."""
    major, minor = cuda_names.get_device_capability()
    return 10 * major + minor


_OF_A_GPU: dict[str, object] = {
    "device": cuda_names.DeviceGuard,
    "Event": streams.Event,
    "Stream": streams.Stream,
    "current_device": staticmethod(cuda_names.current_device_index),
    "set_device": staticmethod(cuda_names.set_device),
    "device_count": staticmethod(cuda_names.device_count),
    "stream": staticmethod(streams.StreamContext),
    "current_stream": staticmethod(streams.current_stream),
    "set_stream": staticmethod(streams.set_stream),
    "synchronize": staticmethod(cuda_names.synchronize),
    "get_device_properties": staticmethod(cuda_names.get_device_properties),
    "get_raw_stream": staticmethod(raw_stream),
    "exchange_device": staticmethod(cuda_names.exchange_device),
    "maybe_exchange_device": staticmethod(cuda_names.exchange_device),
    "is_bf16_supported": staticmethod(cuda_names.always),
    "get_compute_capability": staticmethod(compute_capability),
    "is_triton_capable": staticmethod(cuda_names.always),
    "raise_if_triton_unavailable": staticmethod(cuda_names.nothing),
}
"""``torch._dynamo.device_interface.CudaInterface``'s attributes."""

_OF_CUDA_BUILDS: dict[str, object] = {
    "_cuda_getCurrentRawStream": raw_stream,
    "_cuda_cudaCachingAllocator_is_enabled": cuda_names.always,
}
"""Functions of ``torch._C`` that a build without CUDA does not have."""

_OF_A_WORKER: dict[str, object] = {
    "current_device": staticmethod(cuda_names.current_device_index),
    "get_device_properties": staticmethod(cuda_names.get_device_properties),
}

_KEEPS_ANSWERS = ("torch.utils._triton", "torch._inductor.utils", "torch._inductor.comm_analysis")
"""Modules whose functions keep what they have read of the GPU."""


def _keeps(module: ModuleType) -> bool:
    return any(hasattr(value, "cache_clear") for value in vars(module).values())


RELIES_ON = (
    Reliance(f"{INTERFACE}.CudaInterface", "Dynamo and Inductor ask a GPU by these names", has=tuple(_OF_A_GPU)),
    Reliance(f"{INTERFACE}.CudaInterface.Worker", "they ask for its properties here, too", has=tuple(_OF_A_WORKER)),
    Reliance(
        f"{CODE_CACHE}.CacheBase.get_system", "what it gives is part of the keys of Inductor's caches; it is kept",
        holds=lambda function: hasattr(function, "cache_clear") and "hash" in function(),
    ),
    Reliance(
        "torch._inductor.runtime.hints.DeviceProperties.create", "the properties of a device are kept",
        holds=lambda function: hasattr(function, "cache_clear"),
    ),
    Reliance("torch._inductor.utils.clear_caches", "Inductor forgets what it has compiled in this process"),
    Reliance("torch._C._dynamo.guards._empty_strided_cuda", "Inductor's code allocates with it"),
    *(Reliance(name, "its functions keep what they have read of the GPU", holds=_keeps) for name in _KEEPS_ANSWERS),
)  # fmt: skip


def install_interface(patches: Patches, module: ModuleType) -> None:
    """Let the interface of CUDA devices answer for the simulated GPU."""
    for name, value in _OF_A_GPU.items():
        patches.set(module.CudaInterface, name, value)
    for name, value in _OF_A_WORKER.items():
        patches.set(module.CudaInterface.Worker, name, value)


def install_names(patches: Patches) -> None:
    """Names that the code which Inductor writes finds in torch."""
    for name, value in _OF_CUDA_BUILDS.items():
        patches.add(torch._C, name, value)
    guards: object = torch._C._dynamo.guards
    patches.set(guards, "_empty_strided_cuda", allocate)


def install_keys(patches: Patches, module: ModuleType) -> None:
    """Let the keys of Inductor's caches tell described GPUs apart, by all that they are."""

    def get_system() -> dict[str, object]:
        device = bound_devices().simulation.topology.device
        known = {"device": {"name": device.name}, "version": {"kernbench": __version__, "triton": module.triton_key()}}
        key = module.code_hash(repr((known, repr(device))))
        return {**known, "hash": key}

    patches.set(module.CacheBase, "get_system", staticmethod(get_system))


def forget() -> None:
    """Let Inductor ask again what GPU there is, and compile again in this process."""
    for name in _KEEPS_ANSWERS:
        for value in vars(sys.modules.get(name, forget)).values():
            # a module that lacks an attribute is SystemError in Python 3.13.0 where the current folder is gone
            if not isinstance(value, ModuleType) and hasattr(value, "cache_clear"):
                value.cache_clear()
    hints: Any = sys.modules.get("torch._inductor.runtime.hints")
    if hints is not None:
        hints.DeviceProperties.create.cache_clear()
    inductor: Any = sys.modules.get("torch._inductor.utils")
    if inductor is not None:
        inductor.clear_caches()
