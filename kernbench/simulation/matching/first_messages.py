"""First calls over communicators: where torch makes one, for which the host waits until all its ranks come.

A pair has one for its messages, a group one for its collectives and batches. Here no host waits for that (ADR 0165). Hosts that
would wait for each other in a circle, as in a ring of three whose first calls are all sends, or where one sends and the other
calls a collective first, never go on on hardware, whatever they send: that is remarked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from kernbench.simulation.ranks.locations import Location


class _FirstCall(NamedTuple):
    """A rank's first call over a communicator of ``members``; ``pair``: one for messages."""

    communicator: Any
    members: Sequence[int]
    location: Location
    pair: bool


class FirstMessages:
    """The first calls over communicators, by rank, that not all others have come to.

    Attributes:
        remark: notes a sentence for the summary.
    """

    def __init__(self) -> None:
        self.remark: Callable[[str], object] = str
        self._seen: set[tuple[int, Hashable]] = set()
        self._open: dict[int, deque[_FirstCall]] = {}

    def clear(self) -> None:
        """Forget them: another world."""
        self._seen.clear()
        self._open.clear()

    def called(self, group: Hashable, rank: int, peer: int, location: Location) -> None:
        """``rank`` sends to ``peer`` in ``group``, or receives from it, over a communicator of the two."""
        if rank != peer:
            pair = min(rank, peer), max(rank, peer)
            self._called((group, *pair), rank, pair, location, True)

    def called_by_all(self, group: Hashable, rank: int, members: Sequence[int], location: Location) -> None:
        """``rank`` calls what all members of a group have a communicator for."""
        self._called(group, rank, members, location, False)

    def _called(
        self, communicator: Hashable, rank: int, members: Sequence[int], location: Location, pair: bool
    ) -> None:
        if (rank, communicator) in self._seen:
            return
        self._seen.add((rank, communicator))
        self._open.setdefault(rank, deque()).append(_FirstCall(communicator, members, location, pair))
        self._meet(rank)
        self._look(rank)

    def _waits_in(self, rank: int) -> _FirstCall | None:
        """Where a host would be; None: in none of its first calls."""
        calls = self._open.get(rank)
        while calls and not calls[0].pair and calls[0].communicator.made:
            calls.popleft()  # others have come to it by what is not told of here
        return calls[0] if calls else None

    def _behind(self, call: _FirstCall) -> list[int]:
        """Members whose hosts would be elsewhere."""
        waits = [(each, self._waits_in(each)) for each in call.members]
        return [each for each, at in waits if at is None or at.communicator != call.communicator]

    def _meet(self, rank: int) -> None:
        """Hosts that wait for each other go on."""
        changed = [rank]
        while changed:
            call = self._waits_in(changed.pop())
            if call is not None and not self._behind(call):
                for each in call.members:
                    self._open[each].popleft()
                changed += call.members

    def _look(self, rank: int) -> None:
        """Whether a host's wait closes a circle."""
        circle = self._circle([rank])
        calls = {each: call for each in circle if (call := self._waits_in(each)) is not None}
        if not any(call.pair for call in calls.values()):
            return  # groups alone may have been made from the start
        first = circle.index(min(circle))
        circle = circle[first:] + circle[:first]
        words = " -> ".join(f"rank {each}" for each in (*circle, circle[0]))
        places = ", ".join(f"rank {each} at {calls[each].location}" for each in circle[:_MOST_PLACES])
        self.remark(
            "on hardware the first messages hang: torch makes a communicator of NCCL for each pair in its first message, and "
            "for a group in its first collective or batch, and the host waits there for the other ranks, in a circle "
            f"({words}; {places}). Give init_process_group a device_id, put a rank's messages into one batch "
            "(batch_isend_irecv), or let the ranks begin in one order, as every other one in a ring receives first"
        )

    def _circle(self, path: list[int]) -> list[int]:
        """Ranks that wait for each other in a circle, on a way that begins with ``path``; empty: none do."""
        seen = set(path)
        ways = [self._next(path[-1])]
        while ways:
            if not ways[-1]:
                ways.pop()
                path.pop()
                continue
            at = ways[-1].pop(0)
            if at in path:
                return path[path.index(at) :]
            if at not in seen:
                seen.add(at)
                path.append(at)
                ways.append(self._next(at))
        return []

    def _next(self, rank: int) -> list[int]:
        """The ranks that a host would wait for and that would wait themselves."""
        call = self._waits_in(rank)
        return [] if call is None else [each for each in self._behind(call) if self._waits_in(each) is not None]


_MOST_PLACES = 4
"""Ranks of a circle whose lines are named."""
