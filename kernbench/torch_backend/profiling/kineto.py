"""The trace file of a profiled rank, in the format of torch's profiler (Kineto): what Perfetto, TensorBoard's plugin, Holistic
Trace Analysis and ``kernbench trace`` read.

One process of the file is the rank's host, with a thread for each of its own; one is its GPU, with a thread for each stream. A
launch and what it runs share a correlation number, and an arrow. Times are virtual microseconds since the simulation began,
with whole nanoseconds. Equal runs give equal files, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.autograd.profiler_util import FunctionEvent

from kernbench.output_files import write_file
from kernbench.simulation.matching.history import Call
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.names.cuda_names import properties_of
from kernbench.torch_backend.profiling.device_events import DeviceEvent
from kernbench.torch_backend.profiling.notes import HostNote, HostNotes
from kernbench.version import __version__

_HOSTS = 1000
"""Number of rank 0's process; GPUs' are their own numbers."""
_CUDA = 1
"""``c10::DeviceType::CUDA``."""
_USER_SCOPE = 7
"""``RecordScope::USER_SCOPE``: what a program calls ``record_function``."""

Event = dict[str, Any]


class HostCall(NamedTuple):
    """A call of the host, in virtual microseconds; of CUDA's runtime if there is a ``note`` of what it did."""

    event: FunctionEvent
    note: HostNote | None = None


def write_trace(
    path: str | Path,
    calls: Sequence[HostCall],
    ran: Sequence[DeviceEvent],
    notes: HostNotes,
    mine: RankDevice,
    metadata: Mapping[str, str],
) -> None:
    """Write the trace of one rank; gzipped if ``path`` ends in ``.gz``.

    Args:
        calls: of the host, in virtual microseconds.
        ran: what ran on its GPU.
        notes: what the host did.
        mine: the rank's GPU.
        metadata: what the profiler has received about itself, by name, as JSON.
    """
    text = json.dumps(_document(calls, ran, notes, mine, metadata), separators=(",", ":"))
    write_file(path, text, compressed=Path(path).suffix == ".gz")


def _document(
    calls: Sequence[HostCall],
    ran: Sequence[DeviceEvent],
    notes: HostNotes,
    mine: RankDevice,
    metadata: Mapping[str, str],
) -> dict[str, object]:
    topology = mine.simulation.topology
    spec = properties_of(topology)
    gpu = {
        "id": mine.index, "name": spec.name, "totalGlobalMem": spec.total_memory, "computeMajor": spec.major,
        "computeMinor": spec.minor, "maxThreadsPerMultiprocessor": spec.max_threads_per_multi_processor,
        "warpSize": spec.warp_size, "numSms": spec.multi_processor_count,
    }  # fmt: skip
    pid = _HOSTS + (mine.host.rank or 0)
    events = [
        *_names(pid, calls, ran, mine), *_host_events(pid, calls, notes), *_memory_events(pid, notes, mine),
        *_gpu_events(pid, calls, ran, mine),
    ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [gpu] if ran else [],
        **{name: json.loads(value) for name, value in metadata.items()},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "kernbench": {"version": __version__, "system": topology.system.name, "time": "virtual microseconds"},
        "traceEvents": events,
    }


def _names(pid: int, calls: Sequence[HostCall], ran: Sequence[DeviceEvent], mine: RankDevice) -> Iterator[Event]:
    rank = mine.host.rank
    who = "main" if rank is None else f"rank {rank}"
    yield from _process(pid, f"python ({who})", "CPU", 0)
    for thread in sorted({call.event.thread for call in calls}):
        yield _meta("thread_name", pid, thread, name=f"thread {thread} (python)")
    for gpu in sorted({mine.index_of(each.operation.sip) for each in ran}):
        yield from _process(gpu, f"python ({who})", f"GPU {gpu}", 5_000_000 + gpu)
        streams = {each.stream for each in ran if mine.index_of(each.operation.sip) == gpu}
        for stream in sorted(streams):
            yield _meta("thread_name", gpu, stream, name=f"stream {stream}")
            yield _meta("thread_sort_index", gpu, stream, sort_index=stream)


def _process(pid: int, name: str, label: str, place: int) -> Iterator[Event]:
    yield _meta("process_name", pid, 0, name=name)
    yield _meta("process_labels", pid, 0, labels=label)
    yield _meta("process_sort_index", pid, 0, sort_index=place)


def _meta(kind: str, pid: int, tid: int, **args: object) -> Event:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _host_events(pid: int, calls: Sequence[HostCall], notes: HostNotes) -> Iterator[Event]:
    correlations = {id(note): number for number, note in enumerate(notes.notes, 1)}
    forward: dict[int, FunctionEvent] = {}
    for each in calls:
        call, note = each.event, each.note
        category = "user_annotation" if call.scope == _USER_SCOPE else "cpu_op" if note is None else "cuda_runtime"
        args: dict[str, Any] = {}
        if note is None:
            args = {"External id": call.id}
            if call.sequence_nr >= 0:
                args |= {"Sequence number": call.sequence_nr, "Fwd thread id": call.fwd_thread or 0}
            if call.input_shapes:
                args["Input Dims"] = call.input_shapes
        elif note.operations:
            args = {"correlation": correlations[id(note)]}
            if call.cpu_parent is not None:
                args["External id"] = call.cpu_parent.id
        times = call.time_range
        yield _slice(category, call.trace_name or call.name, pid, call.thread, times.start, times.end, args)
        if note is None and call.sequence_nr >= 0:
            if not call.fwd_thread:
                forward[call.sequence_nr] = call
            elif (began := forward.get(call.sequence_nr)) is not None:
                place = (began.time_range.start, pid, began.thread), (times.start, pid, call.thread)
                yield from _arrow("fwdbwd", call.sequence_nr, *place)


def _memory_events(pid: int, notes: HostNotes, mine: RankDevice) -> Iterator[Event]:
    for note in notes.memory:
        args = {
            "Device Type": _CUDA, "Device Id": mine.index_of(note.sip), "Bytes": note.nbytes,
            "Total Allocated": note.allocated, "Total Reserved": note.reserved,
        }  # fmt: skip
        yield {
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": pid, "tid": 1,
            "ts": round(note.at * 1e6, 3), "args": args,
        }  # fmt: skip


def _gpu_events(pid: int, calls: Sequence[HostCall], ran: Sequence[DeviceEvent], mine: RankDevice) -> Iterator[Event]:
    launches = {id(call.note): call.event for call in calls if call.note is not None}
    drawn: set[int] = set()
    for each in ran:
        gpu, launch = mine.index_of(each.operation.sip), launches.get(id(each.note))
        args: dict[str, Any] = {"device": gpu, "context": 1, "stream": each.stream, "correlation": each.correlation}
        if launch is not None and launch.cpu_parent is not None:
            args["External id"] = launch.cpu_parent.id
        if each.operation.nbytes:
            args["bytes"] = each.operation.nbytes
        detail = each.operation.detail or {}
        if "grid" in detail:
            args["grid"] = [*detail["grid"], 1, 1][:3]
        if each.note.call is not None:
            args |= _of_collective(each.note.call)
        yield _slice(each.category, each.name, gpu, each.stream, each.begin * 1e6, each.end * 1e6, args)
        if launch is not None and each.correlation not in drawn:
            drawn.add(each.correlation)
            begin = launch.time_range.start, pid, launch.thread
            yield from _arrow("ac2g", each.correlation, begin, (each.begin * 1e6, gpu, each.stream))


def _of_collective(call: Call) -> dict[str, object]:
    """What Kineto says of NCCL's kernels."""
    group, signature = call.group, call.signature
    elements = 1
    for size in signature.shape or (0,):
        elements *= size
    return {
        "Collective name": call.profiled_name,
        "dtype": str(signature.dtype).removeprefix("torch.").capitalize(),
        "In msg nelems": elements,
        "Group size": len(group.ranks),
        "Process Group Name": group.name,
        "Process Group Ranks": str(list(group.ranks)),
        "Seq": call.sequence,
    }


def _slice(category: str, name: str, pid: int, tid: int, begin: float, end: float, args: Mapping[str, object]) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(begin, 3),
        "dur": round(end - begin, 3), "args": args,
    }  # fmt: skip


def _arrow(name: str, number: int, begin: tuple[float, int, int], end: tuple[float, int, int]) -> Iterable[Event]:
    for phase, (at, pid, tid) in zip("sf", (begin, end), strict=True):
        event: Event = {
            "ph": phase, "id": number, "pid": pid, "tid": tid, "ts": round(at, 3), "cat": name, "name": name,
        }  # fmt: skip
        yield event if phase == "s" else {**event, "bp": "e"}
