"""What a launch did: bytes, operations, trips. The input of the time model."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.cost.contention import Contention
from kernbench.cost.tile_products import TileProduct

from .frontend.locations import Loc


@dataclass
class TensorTraffic:
    """Bytes of one tensor (allocation) that a launch moved.

    ``read``/``written``: all bytes that programs asked for. ``unique``: bytes between the lowest and highest address
    touched, at most the total: an upper bound of what must come from device memory once.
    """

    name: str
    read: int = 0
    written: int = 0
    read_low: int = 1 << 62
    read_high: int = 0
    write_low: int = 1 << 62
    write_high: int = 0

    @property
    def overlaps(self) -> bool:
        """Whether some of what was read lies where something was written, as far as the ranges say."""
        return max(self.read_low, self.write_low) < min(self.read_high, self.write_high)

    def beside(self, other: TensorTraffic) -> TensorTraffic:
        """What two moved."""
        return TensorTraffic(
            self.name, self.read + other.read, self.written + other.written,
            min(self.read_low, other.read_low), max(self.read_high, other.read_high),
            min(self.write_low, other.write_low), max(self.write_high, other.write_high),
        )  # fmt: skip

    @property
    def unique_read(self) -> int:
        """Bytes between the lowest and the highest address read, at most ``read``."""
        return min(self.read, max(0, self.read_high - self.read_low))

    @property
    def unique_written(self) -> int:
        """Bytes between the lowest and the highest address written, at most ``written``."""
        return min(self.written, max(0, self.write_high - self.write_low))


@dataclass
class Counts:
    """Counts of one launch (one rank). Bytes; floating-point operations; numbers of programs and trips.

    Attributes:
        bytes_read: bytes that programs loaded, each load of each program counted.
        bytes_written: bytes stored.
        unique_bytes_read: bytes loaded, overlaps between programs counted once (bounded by the range touched).
        unique_bytes_written: the same for stores.
        flops: floating-point operations by ``(dtype, unit)``; unit is ``tensor`` (dot), ``vector`` or ``special``.
        transcendentals: elements that went through a special function.
        wave_read: distinct bytes that the programs of one wave loaded, and how many programs those were; None where that
            was not looked at.
        atomics: elements updated atomically.
        contention: what these wait for one another; None where that was not looked at.
        products: matrix products of tiles, and how often each was done.
        contiguous: of the loads of their operands, which of a tile's last two dimensions lies in rows of memory.
        waiting: bytes of shared memory that operands take of a program: of a trip, and of those that are loaded once.
        turns: trips of all loops, by program, where programs differ in them.
        trips: iterations of each loop summed over programs, by ``file:line``.
        programs: programs run.
        by_tensor: traffic per tensor.
        by_line: ``{file:line: (bytes, flops)}`` of the kernel's own lines.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    unique_bytes_read: int = 0
    unique_bytes_written: int = 0
    flops: dict[tuple[str, str], int] = field(default_factory=dict)
    transcendentals: int = 0
    atomics: int = 0
    trips: dict[str, int] = field(default_factory=dict)
    programs: int = 0
    wave_read: tuple[int, int] | None = None
    contention: Contention | None = None
    products: dict[TileProduct, int] = field(default_factory=dict)
    contiguous: dict[int, int] = field(default_factory=dict)
    waiting: tuple[int, int] | None = None
    turns: tuple[int, ...] | None = None
    by_tensor: dict[str, TensorTraffic] = field(default_factory=dict)
    by_line: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add_to_line(self, loc: Loc, nbytes: int, flops: int) -> None:
        """Add to what a line of the kernel did."""
        where = f"{loc.file}:{loc.line}"
        had = self.by_line.get(where, (0, 0))
        self.by_line[where] = (had[0] + nbytes, had[1] + flops)

    def scaled(self, factor: float) -> Counts:
        """Counts of ``factor`` times the programs; unique bytes are scaled too (an estimate)."""
        grow = lambda n: int(n * factor)  # noqa: E731
        return Counts(
            grow(self.bytes_read),
            grow(self.bytes_written),
            grow(self.unique_bytes_read),
            grow(self.unique_bytes_written),
            {k: grow(v) for k, v in self.flops.items()},
            grow(self.transcendentals),
            grow(self.atomics),
            {k: grow(v) for k, v in self.trips.items()},
            grow(self.programs),
            self.wave_read,
            self.contention,
            {k: grow(v) for k, v in self.products.items()},
            self.contiguous,
            self.waiting,
            self.turns,
        )
