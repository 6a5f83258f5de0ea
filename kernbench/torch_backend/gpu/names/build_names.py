"""What ``torch._C`` has of a torch that was built with CUDA, and none that was not: what programs call there themselves.

Most of it is another name of what ``torch.cuda`` has. A stream is three numbers there: its own, its GPU's, its type of device.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.torch_backend.gpu.device import streams
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.names import cuda_names
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance, fit


def _numbers(stream: streams.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _current_stream(device: int) -> tuple[int, int, int]:
    return _numbers(streams.current_stream(device))


def _default_stream(device: int) -> tuple[int, int, int]:
    return _numbers(streams.default_stream(device))


def _external_stream(data_ptr: int, device: int) -> tuple[int, int, int]:
    return _numbers(streams.ExternalStream(data_ptr, device))


def _arch_flags() -> str:
    return " ".join(cuda_names.get_arch_list())


def _compiled_version() -> int:
    """The release of CUDA that torch is built for, as CUDA counts them: 12.8 is 12080."""
    major, minor = (torch.version.cuda or "0.0").split(".")[:2]
    return int(major) * 1000 + int(minor) * 10


def _has_context(device: int) -> bool:
    """Whether the process has used a GPU."""
    devices = bound_devices()
    mine = devices.mine()
    return any(memory.ledger.sip == mine.sip(device) for memory in devices.simulation.memories.of(mine.host))


def _refuse_source(code: str, name: str, *args: object, **kwargs: object) -> Any:
    raise KernbenchError(
        f"torch.cuda.jiterator compiles {name!r} from C++ for CUDA, which is not simulated: write it with operators of torch, "
        "or as a Triton kernel"
    )


OF_A_BUILD: dict[str, Any] = cuda_names.each_its_own({
    "_cuda_init": cuda_names.start,
    "_cuda_isInBadFork": cuda_names.is_in_bad_fork,
    "_cuda_getDeviceCount": cuda_names.device_count,
    "_cuda_getDevice": cuda_names.current_device_index,
    "_cuda_setDevice": cuda_names.set_device,
    "_cuda_exchangeDevice": cuda_names.exchange_device,
    "_cuda_maybeExchangeDevice": cuda_names.exchange_device,
    "_cuda_canDeviceAccessPeer": cuda_names.can_device_access_peer,
    "_cuda_getArchFlags": _arch_flags,
    "_CudaDeviceProperties": cuda_names.GpuProperties,
    "_cuda_synchronize": cuda_names.synchronize,
    "_cuda_sleep": cuda_names.sleep,
    "_cuda_ipc_collect": cuda_names.nothing,
    "_cuda_set_sync_debug_mode": cuda_names.set_sync_debug_mode,
    "_cuda_get_sync_debug_mode": cuda_names.get_sync_debug_mode,
    "_cuda_getCurrentBlasHandle": cuda_names.current_blas_handle,
    "_cuda_getCurrentStream": _current_stream,
    "_cuda_getDefaultStream": _default_stream,
    "_cuda_getStreamFromExternal": _external_stream,
    "_cuda_setStream": streams.set_stream_by_number,
    "_cuda_getCurrentSolverHandle": cuda_names.current_solver_handle,
    "_cuda_getCompiledVersion": _compiled_version,
    "_cuda_hasPrimaryContext": _has_context,
    "_cuda_jiterator_compile_and_launch_kernel": _refuse_source,
}, cuda_names.CUDA, cuda_names.ACCELERATOR, cuda_names.ACCELERATOR_IN_C)  # fmt: skip
"""Attributes of ``torch._C`` that programs, torch's Python and its own tests call."""

RELIES_ON = (
    Reliance("torch._C", "what a build for CUDA has there beside the others is added"),
    *(
        Reliance(name, "what it calls in C++ takes here what it gives", holds=fit(OF_A_BUILD))
        for name in ("torch.cuda", "torch.cuda.streams", "torch.cuda.random", "torch.accelerator")
    ),
)


def install(patches: Patches) -> None:
    """Give ``torch._C`` these names."""
    for name, value in OF_A_BUILD.items():
        patches.add(torch._C, name, value)
