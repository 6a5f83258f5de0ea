"""What every cost model answers with: a duration and how wrong it may be."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import hypot
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A modelled duration with its interval. Scalars for one size, arrays of the same shape for an array of sizes.

    Attributes:
        seconds: the duration.
        low, high: the interval in seconds that is meant to cover 80 % of measurements (ADR 0031).
        algorithm: of a collective, ``ring``, ``tree``, ``nvls``, ``nvls_tree``, ``p2p``, ``one_shot`` or
            ``two_shot``; of a kernel, what limits it.
        protocol: of a collective, ``ll``, ``ll128``, ``simple`` or ``direct``; of a GEMM, its tile ``"128x256"``.
        algbw: bytes/s as nccl-tests counts them (size over time); of a kernel, bytes moved over time.
        busbw: ``algbw`` times nccl-tests' factor of the collective, so that it compares with a link; bytes/s.
    """

    seconds: Any
    low: Any
    high: Any
    algorithm: Any = ""
    protocol: Any = ""
    algbw: object = 0.0
    busbw: object = 0.0


def interval(seconds: Floats, below: Floats | float, above: Floats | float) -> tuple[Floats, Floats]:
    """``low`` and ``high`` of durations whose measurements lie between ``1 - below`` and ``1 + above`` of them."""
    return seconds * (1.0 - below), seconds * (1.0 + above)


def total(parts: Iterable[tuple[Hashable, float, float, float]]) -> tuple[float, float, float]:
    """Seconds, low and high of things that happen one after the other.

    Each part is ``(model, seconds, low, high)``. What one model estimates is wrong in one direction: its errors add up.
    Errors of different models are independent: they add up as the sides of a right angle (ADR 0038).
    """
    seconds = 0.0
    errors: dict[Hashable, tuple[float, float]] = {}
    for model, took, low, high in parts:
        seconds += took
        below, above = errors.get(model, (0.0, 0.0))
        errors[model] = below + took - low, above + high - took
    below = hypot(*(error[0] for error in errors.values()))
    above = hypot(*(error[1] for error in errors.values()))
    return seconds, seconds - below, seconds + above
