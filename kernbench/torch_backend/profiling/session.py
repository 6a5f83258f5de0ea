"""What stands in for ``torch.autograd.profiler.profile``, on which ``torch.profiler`` is built, inside ranks.

torch's own records one session per process, by the machine's clock, and asks CUPTI what ran on the GPU. This one is on
torch's older profiler, which is per thread and therefore per rank: from it come the calls, their shapes, sources and order. The
times are virtual, and what ran on the GPU is what the simulation has run there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import ProfilerActivity, profiler, profiler_legacy
from torch.autograd.profiler_util import EventList, FunctionEvent

from kernbench.errors import KernbenchError
from kernbench.simulation.matching.history import Call
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.profiling.device_events import DeviceEvent, device_events
from kernbench.torch_backend.profiling.kineto import HostCall, write_trace
from kernbench.torch_backend.profiling.notes import HostNotes
from kernbench.torch_backend.profiling.timed_records import timed
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch.autograd.profiler.profile", "what a rank profiles with is made in its place",
        looked_up_by=("torch.profiler.profiler",),
    ),
    Reliance(
        "torch.autograd.profiler_legacy.profile", "it records the thread that asks, so that ranks do not meet", subclassed=True,
        has=("_start_trace", "__exit__", "key_averages", "export_chrome_trace"),
        parameters=("enabled", "record_shapes", "with_flops", "profile_memory", "with_stack", "with_modules"),
    ),
    Reliance("torch.autograd.profiler.emit_nvtx", "ranges of its block are not emitted", subclassed=True,
             has=("__enter__", "__exit__"), parameters=("enabled", "record_shapes")),
    Reliance("torch.autograd.profiler_legacy", "it is stopped, and what it gives is read", has=(
        "_disable_profiler_legacy", "_parse_legacy_records",
    )),
    Reliance(
        "torch.autograd.profiler_util.FunctionEvent", "what runs on GPUs, and collectives, are events among those of a thread",
        parameters=("id", "name", "thread", "start_us", "end_us", "use_device", "device_type", "device_index"),
    ),
    Reliance("torch.autograd.profiler_util.EventList", "it is what events are kept in", has=("_build_tree",)),
    Reliance("torch.autograd._supported_activities", "a profiler records what it says unless told otherwise"),
    Reliance("torch.autograd._add_metadata_json", "a profiler tells Kineto's session, which there is none of, of itself"),
)  # fmt: skip


class profile(profiler_legacy.profile):  # torch's name
    """``torch.autograd.profiler.profile`` for the rank that runs."""

    def __init__(
        self, enabled: bool = True, *, use_cuda: bool = False, use_device: str | None = None, record_shapes: bool = False,
        with_flops: bool = False, profile_memory: bool = False, with_stack: bool = False, with_modules: bool = False,
        use_cpu: bool = True, acc_events: bool = False, **others: object,
    ) -> None:  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(
                enabled, record_shapes=record_shapes, with_flops=with_flops, profile_memory=profile_memory,
                with_stack=with_stack, with_modules=with_modules,
            )  # fmt: skip
        self.use_device = "cuda" if use_cuda else use_device
        self.use_cpu = use_cpu
        self.kineto_results = None
        self._accumulates = acc_events
        self._kept: list[FunctionEvent] = []
        self._notes: HostNotes | None = None
        self._calls: Sequence[HostCall] = ()
        self._device_events: Sequence[DeviceEvent] = ()

    def config(self) -> Any:
        """What torch's records hold: memory of the host only where the program is on it."""
        memory, self.profile_memory = self.profile_memory, self.profile_memory and not _device().host.uses_gpu
        try:
            return super().config()
        finally:
            self.profile_memory = memory

    def key_averages(self, *how: object, **named: object) -> Any:
        """Rows of what was recorded, by what torch's own list of events can group by."""
        self._check_finish()
        assert self.function_events is not None
        return self.function_events.key_averages(*how, **named)

    def export_chrome_trace(self, path: str, metadata: dict[str, str] | None = None, **others: object) -> None:
        """Write what was recorded last as torch's profiler does (:mod:`~kernbench.torch_backend.profiling.kineto`)."""
        self._check_finish()
        mine = _device()
        assert self._notes is not None
        write_trace(path, self._calls, self._device_events, self._notes, mine, metadata or {})

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[ProfilerActivity]) -> None:
        """Refused."""
        raise KernbenchError(
            "toggle_collection_dynamic is not simulated: start and stop the profiler instead, or give it a schedule"
        )

    def _prepare_trace(self) -> None:
        self.entered = True

    def _start_trace(self) -> None:
        mine = _device()
        simulation, host = mine.simulation, mine.host
        if host.watcher is not None:
            raise RuntimeError("a profiler is already on: this rank profiles inside of what it profiles")
        if self._accumulates and self.function_events is not None:
            self._kept = list(self.function_events)
        self._notes = HostNotes(host, simulation.topology.device.launch.overhead, memory=self.profile_memory)
        super()._start_trace()
        host.watcher = self._notes
        if host.rank is not None:
            simulation.matcher.history.told[host.rank] = self._notes.posted

    def __exit__(self, *exc: object) -> Any:
        notes = self._notes
        if not self.enabled or notes is None:
            return False
        mine = _device()
        host = mine.host
        if self.use_device is not None and host.uses_gpu and host.capture is None:
            mine.synchronize()
        host.watcher = None
        if host.rank is not None:
            mine.simulation.matcher.history.told.pop(host.rank, None)
        records = profiler_legacy._disable_profiler_legacy()
        for note in notes.notes:
            mine.simulation.waits.refresh(note.operations)
        events = EventList(
            profiler_legacy._parse_legacy_records(timed(records, notes)),
            use_device=self.use_device, profile_memory=self.profile_memory, with_flops=self.with_flops,
        )  # fmt: skip
        events._build_tree()
        self._device_events = [] if self.use_device is None else list(device_events(notes.notes))
        self._calls = _calls(events, notes, self._device_events, mine, self.use_device)
        shown = [call.event for call in self._calls] if self.use_cpu else []
        shown += [_as_event(each, mine) for each in self._device_events]
        events[:] = [*self._kept, *shown, *_collectives(notes, mine)]
        self.function_events = events
        return False

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds."""
        return sum(event.self_cpu_time_total for event in self.function_events or EventList())


def _device() -> RankDevice:
    mine = current_device()
    if mine is None:
        raise KernbenchError("this profiler belongs to a simulation that has ended")
    return mine


def _calls(
    events: Iterable[FunctionEvent],
    notes: HostNotes,
    ran: Sequence[DeviceEvent],
    mine: RankDevice,
    use_device: str | None,
) -> list[HostCall]:
    """Calls of the host, with what each has run on the GPU; a mark becomes the call of the runtime that it stands for."""
    launched: dict[int, list[DeviceEvent]] = {}
    for each in ran:
        launched.setdefault(id(each.note), []).append(each)
    calls = []
    for event in events:
        event.time_range.start, event.time_range.end = round(event.time_range.start, 3), round(event.time_range.end, 3)
        event.is_legacy = False
        event.use_device = use_device
        note = notes.of_mark(event.name)
        if note is None:
            calls.append(HostCall(event))
            continue
        parent = event.cpu_parent
        owner = event if parent is None else parent
        for each in launched.get(id(note), ()):
            owner.append_kernel(each.name, mine.index_of(each.operation.sip), round((each.end - each.begin) * 1e6, 3))
        if note.runtime:
            event.name = event.trace_name = note.runtime
            calls.append(HostCall(event, note))
        elif parent is not None:
            parent.cpu_children.remove(event)
    return calls


def _as_event(each: DeviceEvent, mine: RankDevice) -> FunctionEvent:
    return FunctionEvent(
        id=each.correlation, name=each.name, trace_name=each.name, thread=each.stream, start_us=round(each.begin * 1e6, 3),
        end_us=round(each.end * 1e6, 3), use_device="cuda", device_type=torch.autograd.DeviceType.CUDA,
        device_index=mine.index_of(each.operation.sip), input_shapes=[], stack=[],
    )  # fmt: skip


def _collectives(notes: HostNotes, mine: RankDevice) -> Iterable[FunctionEvent]:
    """Collectives and messages as torch's backends have them in profiles, named ``gloo:all_reduce``."""
    backend = dist.get_backend() if dist.is_initialized() else "kernbench"
    if backend == "undefined":  # by device
        backend = "nccl" if mine.host.uses_gpu else "gloo"
    for note in notes.notes:
        call: Call | None = note.call
        if call is not None:
            yield FunctionEvent(
                id=call.number,
                name=f"{backend}:{call.profiled_name}",
                thread=call.rank,
                start_us=call.op.enqueue * 1e6,
                end_us=(call.op.enqueue if call.op.end is None else call.op.end) * 1e6,
                input_shapes=[list(shape) for shape in call.shapes],
                is_async=True,
                stack=[],
            )


def _activities() -> set[ProfilerActivity]:
    """``torch.autograd._supported_activities``."""
    return {ProfilerActivity.CPU, ProfilerActivity.CUDA} if torch.cuda.is_available() else {ProfilerActivity.CPU}


def _ignore(*args: object) -> None:
    """Nothing."""


class emit_nvtx(profiler.emit_nvtx):  # torch's name
    """``torch.autograd.profiler.emit_nvtx``: ranges for a profiler of CUDA's, which does not run here."""

    def __enter__(self) -> Any:
        if not self.enabled:
            return None
        if self.entered:
            raise RuntimeError("NVTX annotation context manager is not reentrant")
        self.entered = True
        torch.cuda.synchronize()
        return self

    def __exit__(self, *exc: object) -> bool | None:
        if not self.enabled:
            return None
        torch.cuda.synchronize()
        return False


def install(patches: Patches) -> None:
    """Give the ranks profilers that do not meet, and that know of GPUs."""
    patches.set(profiler, "profile", profile)
    patches.set(profiler, "emit_nvtx", emit_nvtx)
    patches.set(torch.autograd, "_supported_activities", _activities)
    patches.set(
        torch.autograd, "_add_metadata_json", _ignore
    )  # a profiler that receives it also keeps it for the trace
