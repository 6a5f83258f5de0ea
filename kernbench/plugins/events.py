"""What observing hooks receive: plain data, frozen, which can be pickled to another process.

Times are virtual seconds. Bytes and shapes are those of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEvent:
    """A simulation.

    Attributes:
        system: its name.
        sips: devices that ranks may drive.
        seed, policy, enable_data, correlation_id: as given to ``kernbench.simulate``.
        options: values of the plugins' options.
        time: virtual time; at the end, of all that has ended.
    """

    system: str
    sips: int
    seed: int
    policy: str
    enable_data: bool
    correlation_id: str
    options: Mapping[str, Any]
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvent:
    """A rank starts or has ended.

    Attributes:
        world_size: ranks of its spawn.
        time: its host clock.
        outcome: ``"running"``, ``"returned"``, ``"unwound"`` (because another failed) or ``"raised"``.
        error: of one that failed, ``"ValueError: ..."``.
        traceback: of one that failed, all of it.
    """

    rank: int
    world_size: int
    time: float
    outcome: str
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """An operation of a device's compute stream: a launched kernel, a torch operation, a copy to or from the host.

    Attributes:
        number: the same when it is launched and when it has completed; counts from 0 in each simulation.
        kind: ``"kernel"``, ``"gemm"``, ``"attention"``, ``"math"`` or ``"dma"``.
        rank: who launched it, None for main.
        sip, stream: where it runs.
        enqueue, start, end: seconds; the last two None while unknown.
        nbytes: bytes read and written; of a Triton kernel, known when it has completed.
        detail: grid, launching line, and what the executor counted.
        error: of one that failed.
    """

    number: int
    name: str
    kind: str
    rank: int | None
    sip: int
    stream: str
    enqueue: float
    start: float | None = None
    end: float | None = None
    nbytes: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveEvent:
    """A collective or a message: one member's call, or (matched, completed) the whole.

    Attributes:
        op: ``"all_reduce"``, ``"send"``, ...
        group: the group's name.
        ranks: the members that the event is about: the caller, or all.
        sequence: its number in the group; -1 for a message.
        shape, dtype, reduction, root, algorithm: of the call; None where it has none.
        peer: of a message that is enqueued, the other side (None: any source).
        nbytes: payload of one member.
        start, end: seconds; enqueued: the caller's clock, None. Matched: the last caller's clock, None. Completed: when
            the first member began and the last one ended.
        location: ``file:line`` of the call.
        steps: chunk steps of its schedule, once matched.
        error: of one that failed.
    """

    op: str
    group: str
    ranks: tuple[int, ...]
    sequence: int
    shape: tuple[int, ...] | None
    dtype: str | None
    reduction: str | None
    root: int | None
    algorithm: str
    peer: int | None = None
    nbytes: int
    start: float
    end: float | None = None
    location: str = ""
    steps: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReadEvent:
    """The program looks at a value.

    Attributes:
        rank: the reader's rank, None for main.
        name: how: ``"item"``, ``"numpy"``, ``"__repr__"``, ... ; of torch's own tensors, torch's name of it.
        time: the rank's clock before it waits for what the value depends on.
        nbytes: of the tensor.
    """

    rank: int | None
    name: str
    time: float
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlockEvent:
    """No rank can go on.

    Attributes:
        ranks: those that will never be resumed.
        time: virtual time.
        report: the text that the ranks' ``DeadlockError`` has.
    """

    ranks: tuple[int, ...]
    time: float
    report: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """Everything that will happen has happened.

    Attributes:
        time: virtual time of the last end.
        operations: operations in the log; ``ctx.engine.op_log`` has them.
        collectives: collectives that were matched.
    """

    time: float
    operations: int
    collectives: int
