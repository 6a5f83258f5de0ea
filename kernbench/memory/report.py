"""Why there was no room: who has what, where it came from, and what would have fitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernbench.memory.limits import format_size
from kernbench.memory.modules import by_layer
from kernbench.memory.remedies import Shortage, remedies_of
from kernbench.plurals import counted

_SHOWN = 5
"""Lines and modules that a report names."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryReport(Shortage):
    """What was known when an allocation failed.

    Attributes:
        rank: whose it was, None for main.
        step: of the optimizer, counted from 0: how many steps had been finished.
        operation: of torch that asked for memory, as its schema names it; empty: none did.
        place: line of the program.
        limit: bytes that the process may reserve; None: what the device has.
        capacity: of the device, bytes.
        overhead: bytes besides tensors, stated, by what they are.
    """

    rank: int | None
    step: int
    operation: str
    place: Any
    limit: int | None
    capacity: int
    overhead: dict[str, int]

    def remedies(self) -> Iterator[str]:
        """Changes after which this allocation would have had room. Nothing is known of what comes after it."""
        return remedies_of(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        who = "main" if self.rank is None else f"rank {self.rank}"
        operation = f"{self.operation} " if self.operation else ""
        yield f"out of memory on {who} in step {self.step + 1}: {operation}at {self.place}"
        whole = format_size(self.capacity if self.limit is None else self.limit)
        yield (
            f"  asked for {format_size(self.requested)}, which takes {format_size(self.wanted)}; "
            f"{format_size(self.room)} left of {whole} {'of the device' if self.limit is None else 'allowed'}"
        )
        fixed = ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in self.overhead.items())
        yield (
            f"  {format_size(self.allocated)} allocated, {format_size(self.reserved)} reserved"
            f"{f'; besides, stated: {fixed}' if fixed else ''}"
        )
        if self.pieces:
            joins = "" if self.expandable else "; expandable_segments:True, which is modelled, has fewer"
            yield (
                f"  {format_size(sum(self.pieces))} reserved but unallocated, in {len(self.pieces)} "
                f"piece{'s' if len(self.pieces) > 1 else ''}, the largest {format_size(self.pieces[0])}{joins}"
            )
        if self.others:
            each = ", ".join(
                f"rank {rank} {format_size(nbytes)}" for rank, nbytes in list(self.others.items())[:_SHOWN]
            )
            yield f"  other ranks have {format_size(sum(self.others.values()))} of this device: {each}"
        categories = self.composition.categories
        yield from self._table("in use for", categories, self.allocated, len(categories))
        yield from self._table("from line", self.composition.places, self.allocated, _SHOWN)
        if self.composition.owners:
            yield from self._table(
                "by module", by_layer(self.composition.owners, self.allocated), self.allocated, _SHOWN
            )
        yield "  it would have fitted with any of"
        yield from (f"    - {remedy}" for remedy in self.remedies())
        yield "  what the whole step needs: run it with --memory-limit off"

    @staticmethod
    def _table(title: str, rows: dict[Any, int], whole: int, shown: int) -> Iterator[str]:
        if rows:
            yield f"  {title}"
        for name, nbytes in list(rows.items())[:shown]:
            yield f"    {format_size(nbytes):>12} {nbytes / whole if whole else 0:6.1%}  {name or '(too small to look for)'}"
        if len(rows) > shown:
            rest = sum(list(rows.values())[shown:])
            yield f"    {format_size(rest):>12} {rest / whole:6.1%}  {counted(len(rows) - shown, 'other')}"
