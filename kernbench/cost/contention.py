"""What atomic updates take that meet in the last cache: where they go says more than how many there are (ADR 0251).

A slice of the cache updates one sector at a time. Lanes of a warp's instruction that go to different words of a sector are
one visit; those that go to the same word take turns in it, and floats wait for the sum before. Pieces of the address space lie
in one slice each, so that few addresses keep few slices busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.topology.device import DeviceSpec

SECTOR = 32
"""Bytes that a slice of the cache updates at a time."""

PLACE = 512
"""Bytes of the address space that lie in one slice together."""

# Measured on one H100 80GB HBM3 (Triton 3.6, kernbench.programs.gpu_steps), in clocks; taken to hold for other devices,
# which is UNVERIFIED.
_VISIT = {False: 1.35, True: 1.1}  # of a sector, by integers and by floats
_TURN = {False: 1.35, True: 3.2}  # of a further update of the same word
_WAY = (1.25, 0.1)  # of a visit on the way there, and for each four bytes
_WAYS = 1 / 3  # visits on their way at a time, for each PE


@dataclass(frozen=True, slots=True)
class Contention:
    """Clocks of the updates of a launch, or of some of its programs.

    Attributes:
        way: of all visits on their way to the cache, one after another.
        place: of the visits to the busiest :data:`PLACE` bytes.
        address: of the updates of the busiest word.
    """

    way: float = 0.0
    place: float = 0.0
    address: float = 0.0

    def beside(self, other: Contention) -> Contention:
        """With others, of another instruction."""
        return Contention(self.way + other.way, self.place + other.place, self.address + other.address)

    def seconds(self, device: DeviceSpec) -> float:
        """How long the cache of a device takes for them."""
        # in whole clocks, so that the order in which programs were added up does not show
        clocks = round(max(self.way / (_WAYS * device.pes) + self.place, self.address))
        return clocks / device.clock


def way_clocks(nbytes: np.ndarray) -> np.ndarray:
    """Clocks of visits on their way that update ``nbytes``."""
    each, more = _WAY
    return each + more * nbytes / 4


def visit_clocks(turns: np.ndarray, floating: bool) -> np.ndarray:
    """Clocks of visits to a sector in each of which the busiest word is updated ``turns`` times."""
    return _VISIT[floating] + (turns - 1) * _TURN[floating]


def turn_clocks(floating: bool) -> float:
    """Clocks between two updates of one word."""
    return _TURN[floating]
