"""What stands on the streams of communicators when nothing can go on: which operation is first, and where its other sides are.

A kernel of NCCL holds its stream until the other sides have come to theirs, which may be behind others on *their* streams. The
ranks' hosts have called everything then, and each call has met the others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.sim_engine import Operation
from kernbench.simulation.matching.matcher import Matcher
from kernbench.simulation.ranks.locations import Location


class StuckCall(NamedTuple):
    """One rank's part of a call that has met all others' and cannot end.

    Attributes:
        what: in words, without its place.
        others: the other ranks' parts.
    """

    rank: int
    op: Operation
    what: str
    location: Location
    others: Sequence[Operation]


class StuckStreams:
    """What cannot end, of a simulation in which nothing can go on.

    Attributes:
        unmade: for groups whose communicator has not been made, the members that have called nothing of it, and a rank's calls
            that wait for it.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._of: dict[Operation, StuckCall] = {}
        self.unmade: dict[int, list[int]] = {}
        self._notes: list[str] = []
        groups = {}
        in_flight = [message for message in matcher.messages.in_flight.values() if message.op.end is None]
        for message in (*in_flight, *matcher.mailbox.waiting):
            group = message.group
            if message.route.lane == "group" and not (message.route.made or group.made):
                groups[id(group)] = group
                self.unmade[message.rank] = [rank for rank in group.ranks if rank not in group.joined]
        for group in groups.values():
            missing = ", ".join(str(rank) for rank in group.ranks if rank not in group.joined)
            self._notes.append(
                f"To go on: rank {missing} must call something of {group.name}, too: its communicator is made in the first "
                "call, by all members, and for a batch of some of them it never is. Give init_process_group a device_id, or "
                "let all members call a collective (a barrier) first."
            )
        for message in in_flight:
            if message.other is not None and message.rank not in self.unmade:
                self._add(StuckCall(message.rank, message.op, str(message), message.location, (message.other.op,)))
        for collective in matcher.pending:
            if collective.matched:
                arrivals = list(collective.arrivals.values())
                for arrival in arrivals:
                    others = [other.op for other in arrivals if other is not arrival]
                    self._add(StuckCall(arrival.rank, arrival.op, str(collective), arrival.location, others))

    def _add(self, stuck: StuckCall) -> None:
        if stuck.op.end is None:
            self._of[stuck.op] = stuck

    @property
    def ranks(self) -> set[int]:
        """The ranks that have any."""
        return {*self.unmade, *(stuck.rank for stuck in self._of.values())}

    def heads(self) -> list[StuckCall]:
        """Those that are first on their streams."""
        return [stuck for stuck in self._of.values() if self._before(stuck.op) is None]

    def waits_for(self) -> dict[int, list[int]]:
        """The ranks that each one waits for."""
        found: dict[int, list[int]] = {rank: list(missing) for rank, missing in self.unmade.items()}
        for head in self.heads():
            ranks = [op.rank for op in head.others if op.rank is not None and self._before(op) is not None]
            found.setdefault(head.rank, []).extend(ranks)
        return found

    def words(self, rank: int) -> str:
        """What a rank's streams do; empty: nothing."""
        if rank in self.unmade:
            return "a batch whose communicator has not been made"
        return "; ".join(self._words(head) for head in self.heads() if head.rank == rank)

    def lines(self) -> list[str]:
        """A report's lines: for each that is first on its stream, which other side is behind what; and what is not made."""
        lines = []
        for head in self.heads():
            for op in head.others:
                first = self._before(op)
                if first is None or op.rank is None:
                    continue
                other, ahead = self._of.get(op), self._of.get(first)
                there = "" if other is None else f" at {other.location}"
                behind = first.name if ahead is None else f"its {ahead.what} at {ahead.location}"
                lines.append(
                    f"  rank {head.rank}: {self._words(head)} is first on its stream {head.op.stream!r}; rank {op.rank}'s "
                    f"side of it{there} is on {op.stream!r} of rank {op.rank} behind {behind}."
                )
        if lines:
            lines.insert(
                0, "Every communicator of NCCL has one stream on each rank, and runs one call after the other:"
            )
            lines.append(
                "To go on: put what the two sides do at the same time into one batch (batch_isend_irecv), or call it in the "
                "same order on both. A send waits for its receive unless it fits into NCCL's buffer (docs/collectives.md)."
            )
        return lines + self._notes

    def _words(self, stuck: StuckCall) -> str:
        return f"{stuck.what} at {stuck.location}"

    def _before(self, op: Operation) -> Operation | None:
        """What comes before an operation on its stream and has not ended; None: nothing."""
        return next((other for other in op.ahead or () if other.end is None), None)
