"""What each rank has called lately: the last lines of every report, and the flight recorder's source."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernbench.sim_engine.operation import Operation
from kernbench.simulation.matching.groups import Communicator, Signature
from kernbench.simulation.ranks.locations import Location

KEPT = 256
"""Calls kept per rank."""


@dataclass(eq=False, slots=True)
class Call:
    """One collective or message that a rank has posted.

    Attributes:
        number: how many the rank had posted before.
        sequence: the collective's number in its group, -1 for a message.
        peer: the other side of a message (a rank of the world).
        shapes: of the tensors that the rank gave.
        nth: of a message, how many the rank had sent to its peer before, or received from it.
    """

    rank: int
    number: int
    group: Communicator
    sequence: int
    signature: Signature
    op: Operation
    location: Location
    peer: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    nth: int = 0

    @property
    def profiled_name(self) -> str:
        """The operation as gloo's profiler events name it."""
        return "recvAnySource" if self.signature.op == "recv" and self.peer is None else self.signature.op

    @property
    def state(self) -> str:
        """``"scheduled"``, ``"started"`` or ``"completed"``, as the flight recorder calls them."""
        if self.op.end is not None and self.op.error is None:
            return "completed"
        return "scheduled" if self.op.start is None else "started"

    def __str__(self) -> str:
        which = f" #{self.sequence if self.sequence >= 0 else self.nth}"
        if self.sequence < 0 and self.peer is not None:
            which = f"{which} {'to' if self.signature.op == 'send' else 'from'} rank {self.peer}"
        return f"{self.signature}{which} on {self.group.name}, {self.state}, at {self.location}"


def _given(signature: Signature, shapes: tuple[tuple[int, ...], ...] | None) -> tuple[tuple[int, ...], ...]:
    return shapes if shapes is not None else () if signature.shape is None else (signature.shape,)


class History:
    """The last calls of every rank.

    Attributes:
        noted: receives each operation that is added, with the shapes of the tensors given; None: no listener.
        told: by rank, the listener of its calls.
    """

    def __init__(self) -> None:
        self.noted: Callable[[Operation, Sequence[tuple[int, ...]]], None] | None = None
        self.told: dict[int, Callable[[Call], None]] = {}
        self._calls: dict[int, deque[tuple[Any, ...]]] = {}  # the fields of a Call: many are made, few are read
        self._counts: dict[int, int] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._calls.clear()
        self._counts.clear()

    def add(
        self,
        rank: int,
        group: Communicator,
        sequence: int,
        signature: Signature,
        op: Operation,
        location: Location,
        peer: int | None,
        shapes: tuple[tuple[int, ...], ...] | None,
        nth: int = 0,
    ) -> None:
        """Note a call; ``shapes`` None: of one tensor, with the signature's shape."""
        calls = self._calls.get(rank)
        if calls is None:
            calls = self._calls[rank] = deque(maxlen=KEPT)
            self._counts[rank] = 0
        number = self._counts[rank]
        self._counts[rank] = number + 1
        calls.append((rank, number, group, sequence, signature, op, location, peer, shapes, nth))
        if self.noted is not None:
            self.noted(op, _given(signature, shapes))
        if self.told and (tell := self.told.get(rank)) is not None:
            tell(self.of(rank)[-1])

    def count(self, rank: int) -> int:
        """How many calls a rank has made."""
        return self._counts.get(rank, 0)

    def of(self, rank: int) -> list[Call]:
        """The last calls of a rank, oldest first."""
        calls = []
        for caller, number, group, sequence, signature, op, location, peer, shapes, nth in self._calls.get(rank, ()):
            given = _given(signature, shapes)
            calls.append(Call(caller, number, group, sequence, signature, op, location, peer, given, nth))
        return calls

    @property
    def ranks(self) -> list[int]:
        """Ranks that have called anything."""
        return sorted(self._calls)

    def divergence(self) -> tuple[int, list[Call]] | None:
        """The first collective of a group that its members disagree on: its number, and each member's call.

        None if all that is remembered agrees.
        """
        table: dict[tuple[int, int], list[Call]] = {}
        for rank in self.ranks:
            for call in self.of(rank):
                if call.sequence >= 0:
                    table.setdefault((id(call.group), call.sequence), []).append(call)
        differing = [
            (sequence, calls)
            for (_, sequence), calls in table.items()
            if any(call.signature != calls[0].signature for call in calls)
        ]
        return min(differing, key=lambda item: item[0], default=None)
