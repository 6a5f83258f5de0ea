"""One enqueued operation and the stream it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

COMPUTE_STREAM = "compute"
"""Stream of kernels and of torch's operations: a rank's default one. On another GPU than its own the name goes on."""
COMM_STREAM = "comm"
"""Stream of the collectives of the world; every other group has one of its own, as communicators have."""

ON_PES = frozenset({"gemm", "attention", "math", "kernel"})
"""Kinds of operations that run on PEs."""


def is_default(stream: str) -> bool:
    """Whether a stream is the default one of a GPU, by its name."""
    return stream.startswith(COMPUTE_STREAM)


def shown(stream: str) -> str:
    """The name of a stream beside the GPU that it is on."""
    return COMPUTE_STREAM if is_default(stream) else stream


class Operation:
    """The promise of one enqueued operation: a kernel, a copy, a rank's part of a collective.

    Times are virtual seconds. ``end`` becomes known when the engine has resolved the operation; ``executed`` when its
    values are in memory. It is ``done`` when both hold, or when it failed.

    Attributes:
        name: what the user would call it.
        kind: ``"kernel"``, ``"gemm"``, ``"attention"``, ``"math"``, ``"dma"``, ``"collective"`` or ``"timer"``.
        rank: rank that enqueued it, or None for main.
        sip: SIP on which it runs.
        stream: name of the stream on that SIP.
        enqueue: host time at which it was enqueued.
        duration: seconds that it takes once it has started; None until it has been executed, for a kernel whose work is
            only known then. Of a collective, from its last member's start, once it has ended.
        pace: how many times as long it takes as was modelled, because of its rank (:mod:`kernbench.simulation.time.jitter`).
        spread: shares of ``duration`` by which measurements lie below and above it at most, 80 % of them (ADR 0031).
        draw: watts that it draws at the boost clock above a device at rest, where its kind does not say; 0: as its kind.
        start: when it started, None while unknown.
        end: when it ended, None while unknown.
        executed: whether its values are final (true from the start for operations that have none). Those of a collective
            are once all members have arrived, which is before it ends.
        host: seconds that the host spent on it, up to ``enqueue`` (less the launch's latency, of kernels).
        ahead: what it comes after on its stream, if it has a place there (:meth:`.GraphEngine.reserve`) and has not ended.
        error: what went wrong, raised in its waiters.
        moment: its end in the order of events (:mod:`kernbench.order`); set by its watcher only.
        ticket: by what another process knows it, None if none does.
    """

    moment: Any

    __slots__ = (
        "_dependents",
        "ahead",
        "detail",
        "draw",
        "duration",
        "end",
        "enqueue",
        "error",
        "executed",
        "host",
        "kind",
        "moment",
        "name",
        "nbytes",
        "observed",
        "operands",
        "pace",
        "rank",
        "sip",
        "spread",
        "start",
        "stream",
        "ticket",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        rank: int | None,
        sip: int,
        stream: str,
        enqueue: float,
        duration: float | None = 0.0,
        spread: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.name = name
        self.kind = kind
        self.rank = rank
        self.sip = sip
        self.stream = stream
        self.enqueue = enqueue
        self.duration = duration
        self.spread = spread
        self.pace = 1.0
        self.draw = 0.0
        self.start: float | None = None
        self.end: float | None = None
        self.executed = True
        self.host = 0.0
        self.ahead: tuple[Operation, ...] | None = None
        self.error: BaseException | None = None
        self.observed = False
        self.nbytes = 0
        self.operands: Sequence[Any] = ()
        self.detail: dict[str, Any] | None = None
        self.ticket: Any = None
        self._dependents: list[Callable[[], None]] | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds from start to end, at least and at most: what is modelled may be wrong, waiting for others is not."""
        if self.start is None or self.end is None:
            raise ValueError(f"{self!r} has not ended")
        took, modelled = self.end - self.start, self.duration or 0.0
        below, above = self.spread
        return took - below * modelled, took + above * modelled

    @property
    def done(self) -> bool:
        """Whether waiting for it would return, or raise, at once."""
        return (self.end is not None and self.executed) or self.error is not None

    def when_resolved(self, callback: Callable[[], None], *, first: bool = False) -> None:
        """Call ``callback()`` once ``end`` is known, at once if it is.

        ``first``: before those that have been registered.
        """
        if self.end is not None:
            callback()
        elif self._dependents is None:
            self._dependents = [callback]
        elif first:
            self._dependents.insert(0, callback)
        else:
            self._dependents.append(callback)

    def resolve(self, start: float, end: float) -> None:
        """Fix the times (once), and notify what depends on them.

        A dependent that resolves another operation has that one's dependents notified after it, by the outermost call: a chain
        may be as long as a program enqueues ahead of what it waits for, longer than a stack is deep.
        """
        self.start = start
        self.end = end
        self.ahead = None
        dependents, self._dependents = self._dependents, None
        if dependents is None:
            return
        if _telling:
            _telling.extend(reversed(dependents))
            return
        _telling.extend((None, *reversed(dependents)))
        try:
            while (callback := _telling.pop()) is not None:
                callback()
        finally:
            _telling.clear()

    def fail(self, error: BaseException, at: float) -> None:
        """End it at ``at`` with ``error``; dependents run on, as a failed kernel does not stop its stream's clock."""
        self.error = error
        self.executed = True
        if self.end is None:
            self.resolve(at if self.start is None else self.start, at)

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "pending"
        return f"<{type(self).__name__} {self.name!r} ({self.kind}) rank {self.rank} {state}>"


_telling: list[Callable[[], None] | None] = []
"""Whom the outermost :meth:`Operation.resolve` has still to tell, the next one last and None first; empty if none runs."""


class DeviceStream:
    """An in-order queue of operations on one SIP: each starts after the one before it has ended.

    Attributes:
        tail: the last operation; None: there was none, or it was a row of the log, which ended at ``end``.
        end: virtual seconds.
        places: what has been given a place before it can be submitted (:meth:`GraphEngine.reserve`), last: one operation, or
            those that run side by side.
        before: what they come after.
        together: what those that run side by side have in common.
    """

    __slots__ = ("before", "end", "name", "places", "sip", "tail", "together")

    def __init__(self, sip: int, name: str) -> None:
        self.sip = sip
        self.name = name
        self.tail: Operation | None = None
        self.end = 0.0
        self.places: list[Operation] = []
        self.before: tuple[Operation, ...] = ()
        self.together: int | None = None


class Lane:
    """One rank's operations on one stream, as rows of the log have it.

    Attributes:
        rank: None for main.
        queue: the stream.
        sip, stream: its SIP and its name.
    """

    __slots__ = ("queue", "rank", "sip", "stream")

    def __init__(self, rank: int | None, queue: DeviceStream) -> None:
        self.rank = rank
        self.queue = queue
        self.sip = queue.sip
        self.stream = queue.name
