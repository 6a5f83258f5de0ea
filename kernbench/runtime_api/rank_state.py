"""What the runtime keeps per rank (and for main)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from kernbench.sim_engine.operation import COMPUTE_STREAM, Operation


class RankState:
    """One rank's side of the simulation.

    Attributes:
        rank: index, None for main.
        sip: SIP that it drives.
        clock: its host clock, virtual seconds.
        stream: name of the stream that it enqueues on now.
        last: the last operation it enqueued on that stream.
        tails: the last operation it enqueued on each stream, by the stream's name.
        unsettled: launches whose values are to come because they wait for somebody, by the stream's name, where nobody tells
            us when the host looks at what they write.
        awaited: what the next operation of a stream has to wait for besides the one before it, by the stream's name.
        inside_operation: whether torch is computing an operation that the context records.
        holds_tensors: whether it has made tensors of the context.
        generator: its random generator.
    """

    __slots__ = (
        "__weakref__",
        "_generator",
        "_seed",
        "awaited",
        "clock",
        "holds_tensors",
        "idle_polls",
        "inside_operation",
        "last",
        "progress_seen",
        "rank",
        "sip",
        "stream",
        "tails",
        "unsettled",
    )

    def __init__(self, rank: int | None, sip: int, seed: int, clock: float = 0.0) -> None:
        self.rank = rank
        self.sip = sip
        self.clock = clock
        self.stream = COMPUTE_STREAM
        self.last: Operation | None = None
        self.tails: dict[str, Operation] = {}
        self.awaited: dict[str, list[Operation]] = {}
        self.unsettled: dict[str, list[Operation]] = {}
        self.idle_polls = 0
        self.inside_operation = False
        self.holds_tensors = False
        self.progress_seen = -1
        self._seed = seed if rank is None else seed * 1_000_003 + rank + 1
        self._generator: torch.Generator | None = None

    @property
    def generator(self) -> torch.Generator:
        """The rank's generator, seeded by the context's seed and the rank until it is seeded by hand."""
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self._seed)
        return self._generator

    def use_stream(self, name: str) -> None:
        """Enqueue on the stream called ``name`` from now on."""
        self.stream = name
        self.last = self.tails.get(name)

    def before(self, name: str) -> tuple[Operation, ...]:
        """What a stream has to do, or to wait for, before what is enqueued next."""
        tail = self.tails.get(name)
        waits = self.awaited.get(name, ())
        return (*waits,) if tail is None else (tail, *waits)

    def let_wait(self, name: str, operations: Iterable[Operation]) -> None:
        """What is enqueued next on the stream called ``name`` starts after ``operations``."""
        waits = self.awaited.setdefault(name, [])
        waits += [op for op in operations if op not in waits and not (op.end is not None and op.end <= self.clock)]

    def take_awaited(self) -> Sequence[Operation]:
        """What the operation that is enqueued now has to wait for."""
        if not self.awaited:
            return ()
        taken = self.awaited.pop(self.stream, ())
        if self.unsettled:  # what comes later on this stream has to wait for the values too
            self.unsettled.setdefault(self.stream, []).extend(op for op in taken if not op.executed)
        return taken

    def awaiting_values(self) -> Sequence[Operation]:
        """What the operation that is enqueued now has to wait for and whose values are to come."""
        return [op for op in self.awaited.get(self.stream, ()) if not op.executed] if self.awaited else ()

    @property
    def label(self) -> str:
        return "main" if self.rank is None else f"rank {self.rank}"
