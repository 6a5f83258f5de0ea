"""From ``kernel[grid](...)`` to execution: at once, through a runtime's sink, or only to be counted.

A runtime installs a sink with :func:`set_launch_sink` and gets every launch as an object; without one, a launch runs
before ``kernel[grid](...)`` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from torch import Tensor

from kernbench.errors import DeadlockError
from kernbench.topology.device import DeviceSpec

from .counts import Counts
from .machine import Execution, Launch
from .memory import AllocationMap
from .reuse import look_at


class LaunchSink(Protocol):
    """Receives launches instead of their being run at once."""

    def submit(self, launch: Launch) -> None:
        """Take a launch."""

    def memory(self) -> AllocationMap | None:
        """What pointers point to that a kernel finds in memory, if the sink knows."""

    def aside(self) -> AbstractContextManager[object]:
        """In a block of it a launch is sampled: what it reads, no program looks at."""

    def say(self, sentence: str) -> None:
        """Take what is to be said of a kernel besides its results."""


_sink: LaunchSink | None = None


def set_launch_sink(sink: LaunchSink | None) -> LaunchSink | None:
    """Install ``sink`` (None: run launches at once); returns the one before."""
    global _sink
    before, _sink = _sink, sink
    return before


def launches_are_collected() -> bool:
    """Whether launches go to a collector instead of being run at once."""
    return _sink is not None


@dataclass
class LaunchRecord:
    """One launch that ran while :func:`record_launches` was open."""

    name: str
    grid: tuple[int, int, int]
    counts: Counts
    kernel: Any
    rank: int | None = None
    #: The execution, if it was profiled.
    execution: Execution | None = None
    #: Of one that was sampled: arguments whose bytes it reads and writes.
    updated: tuple[str, ...] = ()


@dataclass
class _Recorder:
    #: Programs to run per launch, and the device to look at; None runs all of them for real.
    sample: tuple[int, DeviceSpec] | None = None
    #: What is around each launch that is sampled.
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    #: Time every operation.
    profile: bool = False
    records: list[LaunchRecord] = field(default_factory=list)


_recorders: list[_Recorder] = []


@contextmanager
def _recording(recorder: _Recorder) -> Iterator[list[LaunchRecord]]:
    _recorders.append(recorder)
    try:
        yield recorder.records
    finally:
        _recorders.remove(recorder)


@contextmanager
def record_launches(profile: bool = False) -> Iterator[list[LaunchRecord]]:
    """Collect a :class:`LaunchRecord` of every launch that executes inside the ``with`` block.

    ``profile``: time every operation too (see :mod:`kernbench.triton_engine.introspect`).
    """
    with _recording(_Recorder(profile=profile)) as records:
        yield records


@contextmanager
def sampled_launches(
    device: DeviceSpec, programs: int = 2, within: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[list[LaunchRecord]]:
    """Launches inside the ``with`` block change nothing: a few programs run without storing, and are scaled up.

    ``device``: whose processors share what they read; each launch is sampled in a block of ``within()``.
    """
    with _recording(_Recorder((programs, device), within)) as records:
        yield records


def submit(launch: Launch) -> None:
    """Run a launch, or hand it to the collector of launches."""
    if _recorders and _recorders[-1].sample is not None:
        with _recorders[-1].within():
            record = _sample(launch, *_recorders[-1].sample)
        if record is not None:
            _recorders[-1].records.append(record)
        return
    if _sink is not None:
        _sink.submit(launch)
        return
    run_alone(launch)


def _sample(launch: Launch, programs: int, device: DeviceSpec) -> LaunchRecord | None:
    memory = None if _sink is None else _sink.memory()
    execution = Execution([launch], memory, dry=True, only=programs)
    if not execution.programs:
        return None
    with nullcontext() if _sink is None else _sink.aside():
        execution.run()
        counts = scaled_counts(execution)
        look_at(counts, launch, device, memory).complete(counts)
    return LaunchRecord(launch.name, launch.grid, counts, launch.kernel, launch.rank, updated=_updated(execution))


def _updated(execution: Execution) -> tuple[str, ...]:
    """Arguments of its launch of which programs have read what they, or others, write."""
    launch, found = execution.launches[0], []
    at = {base for base, traffic in execution.traffic()[0].items() if traffic.overlaps}
    for name, arg in zip(launch.arg_names, launch.args, strict=False):
        allocation = execution.find(arg.data_ptr()) if isinstance(arg, Tensor) and at else None
        if allocation is not None and allocation.base in at:
            found.append(name)
    return tuple(found)


def say(sentence: str) -> None:
    """Say something of a kernel where launches are collected."""
    if _sink is not None:
        _sink.say(sentence)


def scaled_counts(execution: Execution) -> Counts:
    """Of all programs of a launch, of which a few have run. Bytes that programs share count once, at most as a tensor has."""
    sample = execution.counts()
    factor = execution.programs / max(sample.programs, 1)
    counts = sample.scaled(factor)
    read = written = 0.0
    for base, traffic in execution.traffic()[0].items():
        found = execution.find(base)
        held = found.nbytes if found is not None else inf
        read += min(traffic.unique_read * factor, held)
        written += min(traffic.unique_written * factor, held)
    given = sum(arg.nbytes for arg in execution.launches[0].args if isinstance(arg, Tensor))
    counts.unique_bytes_read, counts.unique_bytes_written = min(int(read), given), min(int(written), given)
    return counts


def run_alone(launch: Launch, memory: AllocationMap | None = None) -> Execution:
    """Run one launch to its end with no other launch to wait for.

    Raises:
        DeadlockError: its programs wait for memory that nothing will write.
    """
    return execute([launch], memory)


def execute(launches: Sequence[Launch], memory: AllocationMap | None = None) -> Execution:
    """Run launches of one program on one grid (one per rank) as one batch, to the end.

    Returns the finished execution: ``.counts()`` are those of all launches together.

    Raises:
        DeadlockError: every lane waits for memory, and nothing else runs that could write it.
    """
    execution = Execution(launches, memory, profile=is_profiled())
    status = execution.run()
    while status == "yielded":
        status = execution.run()
    if status == "waiting":
        raise DeadlockError(execution.describe_wait())
    executed(execution, launches)
    return execution


def is_profiled() -> bool:
    """Whether the operations of launches are timed for a recorder."""
    return any(recorder.profile for recorder in _recorders)


def executed(execution: Execution, launches: Sequence[Launch]) -> None:
    """An execution of these launches has ended: note it for the recorder of launches."""
    for recorder in _recorders:
        first = launches[0]
        kept = execution if recorder.profile else None
        recorder.records.append(
            LaunchRecord(first.name, first.grid, execution.counts(), first.kernel, first.rank, kept)
        )
