"""How kernels give way where their board's power is limited (ADR 0126, ADR 0245).

Where what a device's kernels draw was measured, its clock is the one at which they draw what the limit leaves them
(:class:`PowerLimit`); else what products lose when they follow one another is (:class:`SustainedProducts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_LEAST_CLOCK = 0.3  # of the boost clock, below which no limit is taken to force it
_UNSATURATED = 0.25  # of the memory's bandwidth that a kernel leaves, from which on its instructions bound it


Draw = tuple[float, float]
"""What a kernel draws above a device at rest, or devices have drawn in the mean: watts, or shares of the time. First what falls
with the clock of the PEs, at the boost clock, then what does not. (Plain: several are made for every kernel.)"""

NOTHING: Draw = (0.0, 0.0)


class ClockLimit(Protocol):
    """How a device's kernels give way.

    Attributes:
        within: whether a long kernel gives way to what it draws itself.
    """

    @property
    def within(self) -> bool:
        """See above."""

    def draw(self, kind: str, rate: float, watts: float) -> Draw:
        """What a kernel draws that moves ``rate`` bytes/s; ``kind``, ``watts``: see :class:`Operation`."""

    def slower(self, kind: str, rate: float, drawn: Draw) -> float:
        """How many times as long it takes when the device has drawn so much."""


@dataclass(frozen=True)
class SustainedProducts:
    """Products lose a share of their rate where one follows another, or attention, which multiplies on the same engines. That
    keeps its own time: tables of it are of kernels that last.

    Attributes:
        slowdown: share by which they take longer at the sustained clock than at the boost clock.
        between: shares of the time: below the first they run at the boost clock, above the second at the sustained one.
        streaming: bytes/s from which on a product waits for its memory: it draws nothing and keeps its time.
    """

    slowdown: float
    between: tuple[float, float] = (0.5, 0.9)
    streaming: float = float("inf")

    within = False

    def draw(self, kind: str, rate: float, watts: float) -> Draw:
        """The share of the time in which it multiplies."""
        return (1.0, 0.0) if kind == "attention" or (kind == "gemm" and rate < self.streaming) else NOTHING

    def slower(self, kind: str, rate: float, drawn: Draw) -> float:
        """Products by a part of the slowdown."""
        if kind != "gemm" or rate >= self.streaming:
            return 1.0
        free, full = self.between
        return 1 + self.slowdown * min(max((drawn[0] - free) / (full - free), 0.0), 1.0)


@dataclass(frozen=True)
class PowerLimit:
    """The clock falls until the board draws its limit.

    Attributes:
        spare: watts of the limit above what the device draws at rest.
        products, attention: watts of such kernels at the boost clock; of attention where an operation says nothing.
        byte: joules of a byte from or to memory.
        clock_exponent: how what they draw grows with the clock.
        product_share, attention_share, other_share: exponents by which times grow as the clock falls.
        bandwidth: bytes/s that the memory sustains: what comes near to it keeps its time.
        streaming: bytes/s from which on a product waits for its memory.
    """

    spare: float
    products: float
    attention: float
    byte: float
    clock_exponent: float
    product_share: float
    attention_share: float
    other_share: float
    bandwidth: float
    streaming: float

    within = True

    def draw(self, kind: str, rate: float, watts: float) -> Draw:
        """Watts: of products and attention by their kind, of others by the bytes that they move."""
        if kind == "attention":
            return watts or self.attention, 0.0
        if kind == "gemm" and rate < self.streaming:
            return self.products, 0.0
        return 0.0, self.byte * (rate if rate < self.bandwidth else self.bandwidth)

    def slower(self, kind: str, rate: float, drawn: Draw) -> float:
        """A power of the clock that the limit leaves, by kind: what saturates the memory keeps its time."""
        clocked, fixed = drawn
        if clocked <= self.spare - fixed:
            return 1.0
        if kind == "attention":
            share = self.attention_share
        elif kind == "gemm" and rate < self.streaming:
            share = self.product_share
        else:
            share = self.other_share * min(max(1 - rate / self.bandwidth, 0.0) / _UNSATURATED, 1.0)
        clock = (max(self.spare - fixed, 0.0) / clocked) ** (1 / self.clock_exponent)
        return float(max(clock, _LEAST_CLOCK) ** -share)
