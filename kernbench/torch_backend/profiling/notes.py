"""What a host does while it is profiled: launches, collectives, waits, and when.

Each leaves a mark among torch's records of calls, which is how one knows which call has done it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

from torch._C import _profiler

from kernbench.sim_engine.operation import Operation
from kernbench.simulation.matching.history import Call
from kernbench.simulation.ranks.hosts import Host
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch._C._profiler._RecordFunctionFast", "it leaves a mark among the records of calls", has=("__enter__",)
    ),
)

_MARK = "kernbench::note "
_MEMORY = "kernbench::memory "
BESIDE = "kernbench::beside"
"""What is around calls that are not the program's."""
WITHIN = "kernbench::within"
"""What is around calls that are, inside of what is not."""
PASSED_ON = "kernbench::passed on"
"""What comes before calls that are, inside of what is around them."""

GRAPH_LAUNCH = "cudaGraphLaunch"
LAUNCH, TRITON_LAUNCH, LIBRARY_LAUNCH, COPY = (
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
)
SYNCHRONIZE = "cudaStreamSynchronize"


@dataclass(slots=True)
class HostNote:
    """Something that took a host's time.

    Attributes:
        runtime: what CUDA's runtime would call it; empty if it would not.
        begin, end: virtual seconds.
        operations: what it has put on streams.
        call: the collective or message that it is, if it is one.
    """

    runtime: str
    begin: float
    end: float
    operations: list[Operation] = field(default_factory=list)
    call: Call | None = None


class MemoryNote(NamedTuple):
    """Bytes of a SIP's memory taken, or given back (negative), at a moment (s); what the program has then, and has reserved."""

    nbytes: int
    allocated: int
    reserved: int
    sip: int
    at: float


class HostNotes:
    """Notes what a host does, from when it is made.

    Args:
        host: whose.
        overhead: seconds of a launch's own; what a host spends on one besides is the operator's.
        memory: whether to note memory, too.

    Attributes:
        begin: virtual seconds.
        notes: in order.
        memory: in order.
    """

    def __init__(self, host: Host, overhead: float, *, memory: bool = False) -> None:
        self.begin = host.clock
        self.notes: list[HostNote] = []
        self.memory: list[MemoryNote] = []
        self._follows_memory = memory
        self._host = host
        self._overhead = overhead

    def launched(self, op: Operation) -> None:
        """See :class:`~kernbench.simulation.ranks.hosts.HostWatcher`."""
        now, notes = self._host.clock, self.notes
        if self._host.each == 0.0:  # a graph's operations are one launch
            if notes and notes[-1].runtime == GRAPH_LAUNCH and notes[-1].end == now:
                notes[-1].operations.append(op)
                return
            runtime, spent = GRAPH_LAUNCH, op.host
        else:
            triton = op.kind == "kernel" and op.detail is not None and "grid" in op.detail
            runtime = COPY if op.kind == "dma" else TRITON_LAUNCH if triton else LAUNCH
            spent = min(op.host, self._overhead)
        self._note(HostNote(runtime, now - spent, now, [op]))

    def waited(self, begin: float, for_gpu: bool) -> None:
        """See :class:`~kernbench.simulation.ranks.hosts.HostWatcher`."""
        self._note(HostNote(SYNCHRONIZE if for_gpu and self._host.uses_gpu else "", begin, self._host.clock))

    def allocated(self, nbytes: int, in_all: int, reserved: int, sip: int) -> None:
        """See :class:`~kernbench.simulation.ranks.hosts.HostWatcher`."""
        if self._follows_memory:
            with _profiler._RecordFunctionFast(f"{_MEMORY}{len(self.memory)}"):
                self.memory.append(MemoryNote(nbytes, in_all, reserved, sip, self._host.clock))

    def beside(self) -> AbstractContextManager[object]:
        """See :class:`~kernbench.simulation.ranks.hosts.HostWatcher`."""
        return _profiler._RecordFunctionFast(BESIDE)

    def passed_on(self) -> None:
        """See :class:`~kernbench.simulation.ranks.hosts.HostWatcher`."""
        with _profiler._RecordFunctionFast(PASSED_ON):
            pass

    def within(self) -> AbstractContextManager[object]:
        """See :class:`~kernbench.simulation.ranks.hosts.HostWatcher`."""
        return _profiler._RecordFunctionFast(WITHIN)

    def posted(self, call: Call) -> None:
        """The host has called a collective, or one side of a message."""
        now = self._host.clock
        runtime = LIBRARY_LAUNCH if self._host.uses_gpu else ""
        self._note(HostNote(runtime, now - min(call.op.host, self._overhead), now, [call.op], call))

    @property
    def on_gpu(self) -> bool:
        """Whether the program uses a GPU."""
        return self._host.uses_gpu

    def of_mark(self, name: str) -> HostNote | None:
        """The note whose mark has this name; None: it is no mark."""
        return self.notes[int(name.removeprefix(_MARK))] if name.startswith(_MARK) else None

    def memory_of_mark(self, name: str) -> MemoryNote | None:
        """The same of memory."""
        return self.memory[int(name.removeprefix(_MEMORY))] if name.startswith(_MEMORY) else None

    def _note(self, note: HostNote) -> None:
        with _profiler._RecordFunctionFast(f"{_MARK}{len(self.notes)}"):
            self.notes.append(note)
