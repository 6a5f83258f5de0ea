"""What collectives take from the kernels beside them.

A collective of the library runs as one block for each of its channels, which has a PE for itself. It reads its inputs from
device memory and writes its outputs there; what travels between them stays in caches. While it runs, a kernel that is bound by
computing has so many PEs less, and one that is bound by memory so much bandwidth less (ADR 0110). The collective itself is
taken to go on undisturbed: its blocks are there first, and poll.

Where products are *persistent*, one block on each PE with a list of tiles made beforehand, a product that finds PEs taken does
not spread over the others: the blocks that have no PE begin when the collective ends or when another block has ended, and then
have all their tiles before them (ADR 0218).

A kernel's end is fixed when its start is known, which is before a collective that will overlap it may have ended. So what
counts is when each collective of the SIP that has been posted is expected to run: from the end of what it waits for, for as
long as it would take alone. Waiting for other ranks is not foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from kernbench.sim_engine.operation import Operation

_AHEAD = 16  # collectives that are not over which a kernel may meet; a host may have posted thousands
_KEPT = (
    64  # collectives of a SIP beyond which those that have ended are forgotten, where no kernel comes that would do it
)
_MOST = 0.5  # a kernel is never taken to be slowed down by more than this


class Load(NamedTuple):
    """What a collective needs of each of its members' SIPs.

    Attributes:
        seconds: it takes alone.
        compute: by which share kernels that are bound by computing take longer meanwhile.
        memory: the same, of those that are bound by memory.
    """

    seconds: float
    compute: float
    memory: float


NO_LOAD = Load(0.0, 0.0, 0.0)
"""Of a collective that kernels beside it do not notice."""


def load(seconds: float, *, channels: int, pes: int, traffic: float, bandwidth: float) -> Load:
    """The load of a collective.

    Args:
        seconds: it takes alone.
        channels: blocks that it runs as, each on a PE of its own.
        pes: of the SIP.
        traffic: bytes of a member's inputs and outputs.
        bandwidth: bytes/s that the memory sustains.
    """
    rate = traffic / seconds if seconds else 0.0
    return Load(
        seconds, min(channels / max(pes - channels, 1), _MOST), min(rate / max(bandwidth - rate, rate, 1.0), _MOST)
    )


class _Posted:
    """A collective that has been posted on a SIP, and what it waits for there."""

    __slots__ = ("after", "begin", "load", "op")

    def __init__(self, op: Operation, after: Sequence[Operation], load: Load) -> None:
        self.op = op
        self.after: Sequence[Operation] = after
        self.load = load
        self.begin: float | None = None


class Interference:
    """The collectives that each SIP has been given, and how much slower they make a kernel.

    Attributes:
        posted: by SIP, those that may not be over.
        persistent: whether products have their tiles dealt out among all PEs before they start.
    """

    def __init__(self) -> None:
        self.posted: dict[int, list[_Posted]] = {}
        self.persistent = False
        self._by_operation: dict[Operation, _Posted] = {}

    def expect(self, op: Operation, after: Sequence[Operation], load: Load) -> None:
        """``op`` is one member's part of a collective; it starts once ``after`` have ended."""
        if load.compute or load.memory:
            all_posted = self.posted.setdefault(op.sip, [])
            if len(all_posted) >= _KEPT:
                self._forget_ended(all_posted, op.enqueue)
            posted = self._by_operation[op] = _Posted(op, after, load)
            all_posted.append(posted)

    def stretched(self, sip: int, kind: str, start: float, seconds: float) -> float:
        """How long an operation of ``seconds`` on PEs takes that starts at ``start``; ``kind``: see :class:`Operation`."""
        all_posted = self.posted.get(sip)
        if not all_posted:
            return seconds
        now, left, past = start, seconds, 0
        for at, posted in enumerate(islice(all_posted, _AHEAD)):
            begin = self._begin(posted)
            if begin is None:
                continue
            end = begin + posted.load.seconds
            if end <= start:
                past = at + 1 if past == at else past
                continue
            if begin >= now + left:
                continue
            if self.persistent and kind == "gemm" and begin <= start:
                if past:
                    self._forget(all_posted, past)
                return seconds + min(end - start, seconds)
            alone = max(begin - now, 0.0)
            now, left = now + alone, max(left - alone, 0.0)
            slower = 1 + (posted.load.compute if kind in ("gemm", "attention") else posted.load.memory)
            beside = max(min(left * slower, end - now), 0.0)
            now, left = now + beside, left - beside / slower
        if past:
            self._forget(all_posted, past)
        return seconds if now == start else now + left - start

    def _begin(self, posted: _Posted) -> float | None:
        """When it begins, as far as its own SIP is concerned; None while not known."""
        if posted.begin is None:
            begin = posted.op.enqueue
            for other in posted.after:
                collective = self._by_operation.get(other)
                if collective is not None:  # posted before, and looked at before
                    end = None if collective.begin is None else collective.begin + collective.load.seconds
                else:
                    end = other.end
                if end is None:
                    return None
                begin = max(begin, end)
            posted.begin, posted.after = begin, ()
        return posted.begin

    def _forget_ended(self, all_posted: list[_Posted], now: float) -> None:
        """Forget the first ones, if many of them have ended, and were expected to, by ``now``: no kernel starts before that."""

        def over(posted: _Posted) -> bool:
            begin, end = self._begin(posted), posted.op.end
            return begin is not None and end is not None and max(begin + posted.load.seconds, end) <= now

        count = sum(1 for _ in takewhile(over, all_posted))
        if count >= _KEPT // 2:
            for posted in all_posted[count:]:
                self._begin(posted)  # by what is expected of those that are forgotten
            self._forget(all_posted, count)

    def _forget(self, all_posted: list[_Posted], count: int) -> None:
        """The first ``count`` are over: kernels start one after the other."""
        for posted in all_posted[:count]:
            self._by_operation.pop(posted.op, None)
        del all_posted[:count]

    def clear(self) -> None:
        """What has been posted will not run: its world is gone."""
        self.posted.clear()
        self._by_operation.clear()
