"""Torch's records of calls, in virtual time.

The profiler on which this stands notes when calls begin and end by the machine's clock. Of that only the order is used: a call
begins when the host was done with what it did before, and ends when it is done with the last thing that it did in the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kernbench.torch_backend.profiling.notes import BESIDE, PASSED_ON, WITHIN, HostNote, HostNotes

_AROUND = {"PythonDispatchMode": False, BESIDE: False, WITHIN: True}
"""What is around calls, and whether they are the program's. The first is torch's name for the recorder of operations."""

_TIE = 1e-6
"""Microseconds that tell apart what begins or ends at one time, in its order; gone when times are rounded to nanoseconds."""


class TimedRecord:
    """A record of torch's, as its parser asks for it.

    Args:
        record: torch's.
        at: virtual time, us since the simulation began.
        numbers: of threads, calls and forward calls, by torch's, which count what was before, too. -1: the last one.
    """

    def __init__(self, record: Any, at: float, numbers: dict[tuple[str, int], int]) -> None:
        self._record = record
        self._numbers = numbers
        self.at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def cpu_elapsed_us(self, later: TimedRecord) -> float:
        """When the other one was, us since the simulation began."""
        return later.at

    def handle(self) -> int:
        """Number of the call."""
        return self._number("call", self._record.handle())

    def thread_id(self) -> int:
        """Number of the thread."""
        return self._number("thread", self._record.thread_id())

    def fwd_thread_id(self) -> int:
        """Number of the thread of the call whose gradient this is; 0 if it is no gradient's."""
        there = self._record.fwd_thread_id()
        return self._number("thread", there) if there else 0

    def sequence_nr(self) -> int:
        """Number of the forward call that it is, or whose gradient it is; -1 if it has none."""
        given = self._record.sequence_nr()
        return self._number("sequence", given) if given >= 0 else -1

    def _number(self, kind: str, given: int) -> int:
        known = self._numbers.get((kind, given))
        if known is None:
            last = self._numbers.get((kind, -1), 0)
            known = self._numbers[kind, -1] = self._numbers[kind, given] = last + 1
        return known


class MemoryRecord(TimedRecord):
    """A mark of memory on a GPU, as torch's records have memory."""

    nbytes = 0

    def kind(self) -> str:
        """As torch calls it."""
        return "memory_alloc"

    def cpu_memory_usage(self) -> int:
        """Bytes of the host."""
        return 0

    def cuda_memory_usage(self) -> int:
        """Bytes of a GPU."""
        return self.nbytes


def timed(threads: Sequence[Sequence[Any]], notes: HostNotes) -> list[list[TimedRecord]]:
    """The records of each thread with the times of ``notes``, whose marks are among them."""
    numbers: dict[tuple[str, int], int] = {}
    return [list(_timed(_programs(thread, notes), notes, numbers)) for thread in threads]


def _timed(records: Iterable[Any], notes: HostNotes, numbers: dict[tuple[str, int], int]) -> Iterator[TimedRecord]:
    now, ties = _microseconds(notes.begin), 0
    marked: HostNote | None = None
    for record in records:
        memory = notes.memory_of_mark(record.name()) if record.kind() == "push" else None
        if memory is not None:
            made = MemoryRecord(record, now, numbers)
            made.nbytes = memory.nbytes
            yield made
            continue
        if marked is not None:
            reached, marked = _microseconds(marked.end), None  # the end of a mark
        else:
            marked = notes.of_mark(record.name()) if record.kind() == "push" else None
            reached = 0.0 if marked is None else _microseconds(marked.begin)
        now, ties = (reached, 0) if reached > now else (now, ties + 1)
        yield TimedRecord(record, now + ties * _TIE, numbers)


def _microseconds(seconds: float) -> float:
    """In whole nanoseconds: two ways to one moment may differ in its last bit."""
    return round(seconds * 1e6, 3)


def _programs(records: Sequence[Any], notes: HostNotes) -> Iterator[Any]:
    """Records but the recorder's own, those of calls that are not the program's, and of memory that a GPU's stands for."""
    hidden: set[int] = set()
    around: list[tuple[int, bool]] = []  # what is around the next record, and whether what is in it is the program's
    for record in records:
        kind, handle = record.kind(), record.handle()
        if kind == "push":
            name = record.name()
            if name in _AROUND:
                hidden.add(handle)
                around.append((handle, _AROUND[name]))
            elif name == PASSED_ON:
                hidden.add(handle)
                if around:
                    around[-1] = around[-1][0], True
            elif notes.memory_of_mark(name) is not None:
                hidden.add(handle)
                yield record
            elif notes.of_mark(name) is None and around and not around[-1][1]:
                hidden.add(handle)
        elif kind == "pop" and around and around[-1][0] == handle:
            around.pop()
        if kind in ("push", "pop"):
            if handle not in hidden:
                yield record
        elif not (kind == "memory_alloc" and notes.on_gpu):
            yield record
