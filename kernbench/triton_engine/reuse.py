"""What a launch's counts do not tell, found by a look at its addresses: before or after it runs, with data and without."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from kernbench.cost.contention import Contention
from kernbench.cost.kernel_time import occupancy, suggested_resources
from kernbench.errors import MemoryAccessError
from kernbench.topology.device import DeviceSpec

from .binding import Launch
from .counts import Counts
from .machine import Execution
from .memory import AllocationMap

_FEW = 2  # programs whose atomic updates are sampled
_MOST_PROGRAMS = 1 << 16  # whose trips are distinguished


@dataclass(frozen=True)
class Look:
    """What the programs of a launch do together.

    Attributes:
        wave_read: distinct bytes that the programs of one wave read, where they share what they read, and how many these were.
        contiguous: of loads, which of a tile's last two dimensions lies in rows of memory.
        turns: trips by program, where they differ.
        updates: what atomic updates wait for one another, of those that do not go by values.
    """

    wave_read: tuple[int, int] | None = None
    contiguous: dict[int, int] = field(default_factory=dict)
    turns: tuple[int, ...] | None = None
    updates: Contention | None = None

    def complete(self, counts: Counts) -> None:
        """Note it in the launch's counts."""
        counts.wave_read, counts.contiguous, counts.turns = self.wave_read, self.contiguous, self.turns
        if self.updates is not None:
            counts.contention = self.updates if counts.contention is None else counts.contention.beside(self.updates)


def look_at(counts: Counts, launch: Launch, device: DeviceSpec, memory: AllocationMap | None = None) -> Look:
    """Look at a launch of these counts.

    ``memory``: what pointers point to that they find in memory.
    """
    updates = _known_updates(launch, memory) if counts.atomics else None
    if not any(unit == "tensor" for _, unit in counts.flops):
        return Look(updates=updates)
    resident, _ = occupancy(suggested_resources(counts, device), device)
    wave = _wave(launch, device.pes * max(resident, 1), memory)
    if wave is None:
        return Look(updates=updates)
    execution, programs = wave
    shares = counts.bytes_read > 1.2 * counts.unique_bytes_read
    turns = execution.turns
    differ = 1 < turns.size <= _MOST_PROGRAMS and turns.min() < turns.max()
    return Look(
        (execution.distinct, programs) if shares else None,
        execution.contiguous,
        tuple(turns.tolist()) if differ else None,
        updates,
    )


def _wave(launch: Launch, programs: int, memory: AllocationMap | None) -> tuple[Execution, int] | None:
    """What ``programs`` consecutive programs of a launch read, and how many programs those were.

    They are those in the middle of the grid. Floats are not read and products not computed, so that it takes milliseconds.
    None: the programs wait for another writer, or what they read floats for is an address.
    """
    total = prod(launch.grid)
    size = min(total, programs)
    begin = (total - size) // 2
    execution = Execution([launch], memory, dry=True, wave=range(begin, begin + size))
    try:
        return (execution, size) if execution.run() == "done" else None
    except MemoryAccessError:  # an address that depends on a float which was not read
        return None


def _known_updates(launch: Launch, memory: AllocationMap | None) -> Contention | None:
    """Of the atomic updates that do not go by values, as two programs do them; None: they cannot be followed so."""
    execution = Execution([launch], memory, dry=True, only=_FEW, known=True)
    try:
        return execution.counts().contention if execution.updates[0] and execution.run() == "done" else None
    except MemoryAccessError:  # they read what is not there
        return None
