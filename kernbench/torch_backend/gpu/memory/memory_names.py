"""The memory of simulated GPUs to programs: what torch's own code in ``torch.cuda.memory`` and ``torch.accelerator`` calls in
C++. ``memory_stats``, ``memory_summary``, ``_record_memory_history``, ``_snapshot`` and the rest are torch's own functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.types import Device

from kernbench.errors import KernbenchError
from kernbench.memory.history import AllocationHistory, Frames, segments_of
from kernbench.memory.ledger import Entry
from kernbench.memory.pinned_memory import PinnedMemory
from kernbench.memory.settings import AllocatorSettings
from kernbench.own_files import is_own
from kernbench.simulation.memory.process_memory import ProcessMemory
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance, fit


def _mine(device: Device = None) -> ProcessMemory:
    memory = bound_devices().memory_at(device).mine
    memory.settle()
    return memory


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """``torch.cuda.mem_get_info``: bytes that are unreserved, and all; what CUDA and its libraries take is not free."""
    return _mine(device).told


def empty_cache() -> None:
    """Give back what the process has cached on all GPUs."""
    for memory in _all():
        memory.allocator.empty_cache()


def clear_workspaces() -> None:
    """Give back the workspaces of cuBLAS and cuBLASLt on all GPUs, to the allocator."""
    for memory in _all():
        memory.workspaces.drop(memory)


def _all() -> list[ProcessMemory]:
    devices = bound_devices()
    found = list(devices.simulation.memories.of(devices.mine().host))
    for memory in found:
        memory.settle()
    return found


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Statistics of the process's allocator on a GPU, nested."""
    allocator = _mine(device).allocator
    return allocator.statistics.as_nested_dict(allocator.settings.max_split_size)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Peaks are what is now."""
    _mine(device).allocator.statistics.reset_peaks()


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sums and counts begin anew."""
    _mine(device).allocator.statistics.reset_accumulated()


def set_memory_fraction(fraction: float, device: Device = None) -> None:
    """Allow the process a share of a GPU's memory."""
    _mine(device).set_fraction(fraction)


def get_memory_fraction(device: Device = None) -> float:
    """The share that it allows itself."""
    return _mine(device).fraction


def set_allocator_settings(text: str) -> None:
    """Other settings for the process's allocators, from now on."""
    devices = bound_devices()
    devices.simulation.memories.configure(devices.mine().host, AllocatorSettings.parse(text))


def get_allocator_settings() -> str:
    """Settings of the process's allocator, as they were given."""
    return _mine().allocator.settings.text


def is_history_enabled() -> bool:
    """``torch._C._cuda_isHistoryEnabled``."""
    return _mine().history is not None


_NO_CACHE = (
    "torch.cuda.caching_allocator_enable(False): memory is reserved and reported as with the caching allocator; allocations "
    "that call the driver each time are not simulated"
)


def enable_caching(enabled: bool) -> None:
    """``torch.cuda.caching_allocator_enable``: it stays on, which is remarked where a program switches it off."""
    if not enabled:
        bound_devices().simulation.remarks.setdefault(_NO_CACHE)


def refuse_allocator(*args: object) -> Any:
    """Allocators of C++ are not simulated. Raises :class:`KernbenchError`."""
    raise KernbenchError(
        "an allocator of the program's own (torch.cuda.memory.CUDAPluggableAllocator) calls a CUDA driver, which is not "
        "simulated: leave it out for this run; memory is then that of torch's caching allocator"
    )


def observe_out_of_memory(observer: Callable[[int, int, int, int], object]) -> None:
    """``torch._C._cuda_attach_out_of_memory_observer``: it is called before the error is raised, with the GPU, the bytes that
    were asked for, those allocated, and those free."""
    devices = bound_devices()
    devices.simulation.memories.observe(devices.mine().host, observer)


# -- pinned memory of the host -----------------------------------------------------------------------------------------


def _pinned() -> PinnedMemory:
    return bound_devices().mine().pinned_memory


def host_memory_stats() -> dict[str, Any]:
    """Statistics of the process's allocator of pinned memory, nested."""
    return _pinned().as_nested_dict()


def reset_peak_host_memory_stats() -> None:
    """Peaks are what is now."""
    _pinned().reset_peaks()


def reset_accumulated_host_memory_stats() -> None:
    """Sums and counts begin anew."""
    _pinned().reset_accumulated()


def empty_host_cache() -> None:
    """``torch.accelerator.empty_host_cache``: give back what is cached there."""
    _pinned().empty()


# -- blocks that programs ask for by themselves ------------------------------------------------------------------------

_raw: dict[int, tuple[ProcessMemory, Entry]] = {}


def raw_alloc(nbytes: int, stream: int = 0) -> int:
    """``torch.cuda.caching_allocator_alloc``: an address, behind which there are no bytes."""
    memory = _mine()
    entry = memory.take(nbytes)
    if entry is None:
        return 0
    address: int = entry[0].address
    _raw[address] = memory, entry
    return address


def raw_delete(address: int) -> None:
    """``torch.cuda.caching_allocator_delete``."""
    if address:
        memory, entry = _raw.pop(address)
        memory.give_back(entry)


# -- history -----------------------------------------------------------------------------------------------------------


def _frames() -> Frames:
    """The Python stack, innermost first, without the simulator's own frames."""
    found: Frames = []
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not is_own(code.co_filename):
            found.append({"filename": code.co_filename, "name": code.co_name, "line": frame.f_lineno})
        frame = frame.f_back  # type: ignore[assignment]
    return found


def record_memory_history(
    enabled: str | None = "all", context: str | None = "all", stacks: str = "all", max_entries: int = sys.maxsize,
    clear_history: bool = False, compile_context: bool = False, global_record_annotations: bool = False,
    skip_actions: list[str] | None = None, record_pinned_host_memory: bool = False, record_cuda: bool = True,
) -> None:  # fmt: skip
    """``torch.cuda.memory._record_memory_history``, of the process's allocators on all GPUs.

    The last two: since torch 2.14.
    """
    if enabled not in (None, "state", "all"):
        raise RuntimeError("expected state to be 'state', 'all', or None")
    devices = bound_devices()
    host = devices.mine().host
    if record_pinned_host_memory and enabled is not None:
        devices.simulation.remarks.setdefault(
            "not recorded: the history of pinned host memory, of which there is no model"
        )
    if not record_cuda:
        return
    _mine()  # the current GPU's, also before it is used
    for memory in _all():
        before = memory.history
        if before is not None:
            before.close()
        if enabled is None:
            memory.history = None
            continue
        memory.history = AllocationHistory(
            memory.allocator, _frames, lambda: host.clock,
            entries=min(max_entries, sys.maxsize) if enabled == "all" else None, context=context,
            skip=skip_actions or (),
        )  # fmt: skip
        if before is not None and not clear_history:
            memory.history.entries.extend(before.entries)


def record_memory_history_legacy(enabled: bool, record_context: bool = True, entries: int = 1, *rest: object) -> None:
    """The same with the arguments that it had once."""
    record_memory_history("all" if enabled else None, "all" if record_context else None, max_entries=entries)


def memory_snapshot(pool: Any = None) -> dict[str, Any]:
    """``torch.cuda.memory._snapshot``; ``pool``: the number of the program's own pool that is wanted alone, after a zero."""
    devices = bound_devices()
    mine, count = devices.mine(), devices.count
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for memory in _all():
        number = mine.index_of(memory.ledger.sip)
        segments += segments_of(memory.allocator, number)
        if memory.history is not None and number < count:
            traces[number] = list(memory.history.entries)
    if pool is not None and pool[1]:
        segments = [each for each in segments if each["segment_pool_id"] == (0, pool[1])]
    settings = _mine().allocator.settings
    return {
        "segments": segments, "device_traces": traces, "external_annotations": [],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": settings.text, "max_split_size": settings.max_split_size or -1,
            "garbage_collection_threshold": settings.garbage_collection_threshold,
            "expandable_segments": settings.expandable_segments,
        },
    }  # fmt: skip


def allocation_traceback(address: int) -> Frames | None:
    """``torch.cuda.memory._allocation_traceback``: of the address that a snapshot shows."""
    for memory in _all():
        for run in memory.allocator.segments():
            for extent in run:
                if extent.address == address and not extent.idle and extent.context:
                    context: Frames = extent.context
                    return context
    return None


def set_memory_metadata(metadata: str) -> None:
    """A text that what is recorded from now on has."""
    for memory in _all():
        if memory.history is not None:
            memory.history.metadata = metadata


def get_memory_metadata() -> str:
    """That text."""
    history = _mine().history
    return "" if history is None else history.metadata


# -- the tables --------------------------------------------------------------------------------------------------------

IN_C: dict[str, Callable[..., Any]] = {
    "_cuda_emptyCache": empty_cache,
    "_cuda_memoryStats": memory_stats,
    "_cuda_resetPeakMemoryStats": reset_peak_memory_stats,
    "_cuda_resetAccumulatedMemoryStats": reset_accumulated_memory_stats,
    "_cuda_setMemoryFraction": set_memory_fraction,
    "_cuda_getMemoryFraction": get_memory_fraction,
    "_cuda_memorySnapshot": memory_snapshot,
    "_cuda_record_memory_history": record_memory_history,
    "_cuda_record_memory_history_legacy": record_memory_history_legacy,
    "_cuda_allocationTraceback": allocation_traceback,
    "_cuda_setMemoryMetadata": set_memory_metadata,
    "_cuda_getMemoryMetadata": get_memory_metadata,
    "_cuda_getAllocatorBackend": lambda: "native",
    "_cuda_cudaCachingAllocator_raw_alloc": raw_alloc,
    "_cuda_cudaCachingAllocator_raw_delete": raw_delete,
    "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
    "_cuda_cudaCachingAllocator_enable": enable_caching,
    "_cuda_customAllocator": refuse_allocator,
    "_cuda_changeCurrentAllocator": refuse_allocator,
    "_cuda_getAllocator": refuse_allocator,
    "_cuda_cudaHostAllocator": refuse_allocator,
    "_cuda_isHistoryEnabled": is_history_enabled,
    "_cuda_attach_out_of_memory_observer": observe_out_of_memory,
    "_cuda_hostMemoryStats": host_memory_stats,
    "_cuda_resetPeakHostMemoryStats": reset_peak_host_memory_stats,
    "_cuda_resetAccumulatedHostMemoryStats": reset_accumulated_host_memory_stats,
    "_host_emptyCache": empty_host_cache,
    "_cuda_clearCublasWorkspaces": clear_workspaces,
}
"""What a torch that was built with CUDA has in C++, and ``torch.cuda.memory`` calls."""

OF_ACCELERATOR: dict[str, Callable[..., Any]] = {
    "_accelerator_isAllocatorInitialized": lambda: True,
    "_accelerator_emptyCache": lambda: empty_cache(),
    "_accelerator_emptyHostCache": lambda: empty_host_cache(),
    "_accelerator_getDeviceStats": lambda device: memory_stats(device),
    "_accelerator_resetAccumulatedStats": lambda device: reset_accumulated_memory_stats(device),
    "_accelerator_resetPeakStats": lambda device: reset_peak_memory_stats(device),
    "_accelerator_getMemoryInfo": mem_get_info,
    "_accelerator_setAllocatorSettings": set_allocator_settings,
    "_accelerator_getAllocatorSettings": get_allocator_settings,
}
"""What ``torch.accelerator`` calls in C++."""

RELIES_ON = (
    Reliance("torch.cuda.memory._C", "its functions call names in C++, which are answered here", holds=lambda c: c is torch._C),
    *(Reliance(name, "what it calls in C++ takes here what it gives", holds=fit({**IN_C, **OF_ACCELERATOR}))
      for name in ("torch.cuda.memory", "torch.accelerator.memory", "torch.cuda.graphs")),
    Reliance("sys._getframe", "the stack of the caller that allocates"),
    Reliance("torch._C", "and those of torch.accelerator these", has=tuple(OF_ACCELERATOR)),
    *(Reliance(f"torch.cuda.memory.{user}", "it calls one of them", looked_up_by=()) for user in (
        "memory_stats_as_nested_dict", "reset_peak_memory_stats", "set_per_process_memory_fraction", "memory_snapshot",
        "_record_memory_history_impl", "_snapshot", "caching_allocator_alloc",
    )),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Give torch the names."""
    for name, function in IN_C.items():
        patches.add(torch._C, name, function)
    for name, function in OF_ACCELERATOR.items():
        patches.set(torch._C, name, function)
    for module in (torch.cuda, torch.cuda.memory):
        patches.set(module, "mem_get_info", mem_get_info)
