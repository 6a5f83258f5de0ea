"""The first messages of pairs: where torch makes a communicator, for which the host waits until the other rank comes.

Here no host waits for that (ADR 0165). Hosts that would wait for each other in a circle, as in a ring of three whose first
calls are all sends, never go on on hardware, whatever they send: that is remarked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from kernbench.simulation.ranks.locations import Location


class FirstMessages:
    """The first calls of pairs, by rank, that the other rank has not come to.

    Attributes:
        remark: notes a sentence for the summary.
    """

    def __init__(self) -> None:
        self.remark: Callable[[str], object] = str
        self._seen: set[tuple[int, Hashable]] = set()
        self._open: dict[int, deque[tuple[Hashable, int, Location]]] = {}

    def clear(self) -> None:
        """Forget them: another world."""
        self._seen.clear()
        self._open.clear()

    def called(self, group: Hashable, rank: int, peer: int, location: Location) -> None:
        """``rank`` sends to ``peer`` in ``group``, or receives from it, over a communicator of the two."""
        pair = group, min(rank, peer), max(rank, peer)
        if (rank, pair) in self._seen or rank == peer:
            return
        self._seen.add((rank, pair))
        self._open.setdefault(rank, deque()).append((pair, peer, location))
        self._meet(rank)
        self._look(rank)

    def _meet(self, rank: int) -> None:
        """Hosts that wait for each other go on."""
        changed = [rank]
        while changed:
            mine = self._open.get(changed.pop())
            if not mine:
                continue
            pair, peer, _ = mine[0]
            theirs = self._open.get(peer)
            if theirs and theirs[0][0] == pair:
                mine.popleft()
                other = theirs.popleft()[1]
                changed += [peer, other]

    def _look(self, rank: int) -> None:
        """Whether a host's wait closes a circle."""
        circle: list[int] = []
        at = rank
        while at not in circle:
            waiting = self._open.get(at)
            if not waiting:
                return
            circle.append(at)
            at = waiting[0][1]
        circle = circle[circle.index(at) :]
        if len(circle) < 3:
            return
        first = min(circle)
        circle = circle[circle.index(first) :] + circle[: circle.index(first)]
        words = " -> ".join(f"rank {each}" for each in (*circle, circle[0]))
        self.remark(
            "on hardware the first messages hang: torch makes a communicator of NCCL for each pair in its first message, and "
            f"the host waits there for the other rank, in a circle ({words}; rank {first} at {self._open[first][0][2]}). Give "
            "init_process_group a device_id, put a rank's messages into one batch (batch_isend_irecv), or let every other "
            "rank receive first"
        )
