"""Why there was no room: who has what, where it came from, and what would have fitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kernbench.memory.ledger import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, TEMPORARIES, Composition
from kernbench.memory.limits import format_size

_SHOWN = 5
"""Lines and modules that a report names."""


@dataclass(frozen=True)
class OutOfMemoryReport:
    """What was known when an allocation failed.

    Attributes:
        rank: whose it was, None for main.
        step: of the optimizer, counted from 0: how many steps had been finished.
        operation: of torch that asked for memory, as its schema names it; empty: none did.
        place: line of the program.
        requested: bytes that were asked for.
        wanted: bytes of the segment that they would have been in.
        room: bytes that could have been reserved, after all caches had been given back.
        allocated, reserved: bytes in use, and kept by the allocator.
        limit: bytes that the process may reserve; None: what the device has.
        capacity: of the device, bytes.
        overhead: bytes besides tensors, stated, by what they are.
        world: number of ranks.
        scales: whether what a program does then takes memory in proportion to the batch: it is in no step of an optimizer.
        settings: of the allocator.
        composition: what was in use for what.
        others: bytes that other ranks have reserved on the same device, by rank.
    """

    rank: int | None
    step: int
    operation: str
    place: Any
    requested: int
    wanted: int
    room: int
    allocated: int
    reserved: int
    limit: int | None
    capacity: int
    overhead: dict[str, int]
    world: int
    scales: bool
    settings: str
    composition: Composition
    others: dict[int, int] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Bytes that there were too few."""
        return max(self.wanted - self.room, 0)

    def remedies(self) -> Iterator[str]:
        """Changes after which this allocation would have had room, smallest first. Nothing is known of what comes after it."""
        categories, missing = self.composition.categories, self.missing
        cached = self.reserved - self.allocated
        if 0 < cached >= self.requested - self.room and "expandable_segments:True" not in self.settings:
            yield (
                f"PYTORCH_ALLOC_CONF=expandable_segments:True: {format_size(cached)} are reserved and free, in pieces "
                "(taken as usable whole)"
            )
        batch = categories.get(ACTIVATIONS, 0) + categories.get(TEMPORARIES, 0)
        if self.scales and batch + self.requested > missing:
            share = 1 - missing / (batch + self.requested)
            yield (
                f"a batch (or a sequence) of at most {share:.0%} of this one: activations, temporaries and this request, "
                f"{format_size(batch + self.requested)}, taken as proportional to it"
            )
        state = categories.get(OPTIMIZER, 0)
        whole = state + categories.get(PARAMETERS, 0) + categories.get(GRADIENTS, 0)
        for what, nbytes in (("optimizer state", state), ("parameters, gradients and optimizer state", whole)):
            ways = next((ways for ways in range(2, self.world + 1) if nbytes - nbytes // ways >= missing), None)
            if ways is not None:
                yield (
                    f"sharding {what} over {ways} ranks, which frees {format_size(nbytes - nbytes // ways)} (if the ranks "
                    "have the same; buffers to gather them are not counted)"
                )
                break
        if sum(self.others.values()) >= missing:
            yield (
                "a GPU for each rank: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything is allocated, and "
                "map_location where tensors are loaded"
            )
        yield f"{format_size(missing)} more memory"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        who = "main" if self.rank is None else f"rank {self.rank}"
        operation = f"{self.operation} " if self.operation else ""
        yield f"out of memory on {who} in step {self.step}: {operation}at {self.place}"
        whole = format_size(self.capacity if self.limit is None else self.limit)
        yield (
            f"  asked for {format_size(self.requested)}, which takes {format_size(self.wanted)}; "
            f"{format_size(self.room)} left of {whole} {'of the device' if self.limit is None else 'allowed'}"
        )
        fixed = ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in self.overhead.items())
        yield (
            f"  {format_size(self.allocated)} in use, {format_size(self.reserved - self.allocated)} reserved beside it"
            f"{f'; besides, stated: {fixed}' if fixed else ''}"
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
            yield from self._table("of module", self.composition.owners, self.allocated, _SHOWN)
        yield "  it would have fitted with any of"
        yield from (f"    - {remedy}" for remedy in self.remedies())
        yield "  what the whole step needs: run it with --memory-limit off"

    @staticmethod
    def _table(title: str, rows: dict[Any, int], whole: int, shown: int) -> Iterator[str]:
        yield f"  {title}"
        for name, nbytes in list(rows.items())[:shown]:
            yield f"    {format_size(nbytes):>12} {nbytes / whole if whole else 0:6.1%}  {name or '(too small to look for)'}"
        if len(rows) > shown:
            rest = sum(list(rows.values())[shown:])
            yield f"    {format_size(rest):>12} {rest / whole:6.1%}  {len(rows) - shown} others"
