"""Measured points and the models' estimates of them, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.cost.estimate import Floats
from kernbench.errors import ConfigError
from kernbench.validation.manifests import Table


@dataclass(frozen=True, slots=True)
class Comparison:
    """The points of one table: bytes, measured and estimated seconds, and the interval."""

    table: Table
    size: Floats
    measured: Floats
    seconds: Floats
    low: Floats
    high: Floats

    @property
    def error(self) -> Floats:
        """Signed relative error: how far the estimate is above the measurement."""
        return self.seconds / self.measured - 1.0


# Seconds, low and high of some points on a system or a device.
Estimator = Callable[[Any], tuple[Floats, Floats, Floats]]


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """The points of one table, read once, and the way to estimate them.

    Attributes:
        size: bytes of each point.
        measured: seconds.
        given: the system or device that the table was measured on.
        estimator: seconds, low and high of the points on a system or device.
        build: the estimator of some of the points, by their indices.
    """

    table: Table
    size: Floats
    measured: Floats
    given: Any
    estimator: Estimator = field(repr=False)
    build: Callable[[Any], Estimator] = field(repr=False)

    def thinned(self, most: int) -> MeasuredTable:
        """At most so many of the points, evenly spread over the table."""
        if self.size.size <= most:
            return self
        kept = np.unique(np.linspace(0, self.size.size - 1, most).round().astype(int))
        estimator = self.build(kept)
        return replace(self, size=self.size[kept], measured=self.measured[kept], estimator=estimator)

    def compare(self, given: object = None) -> Comparison:
        """The estimates beside the measurements; on another system or device, where one is given."""
        return Comparison(self.table, self.size, self.measured, *self.estimator(given or self.given))


def comparable(
    table: Table, path: Path, points: Sequence[tuple[float, float]], given: object, build: Callable[[Any], Estimator]
) -> MeasuredTable:
    """Points that can be compared: with a time, and not below ``min_bytes``. ``build`` gets their indices."""
    size, measured = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    timed = measured > 0  # below a timer's resolution there is nothing to compare with
    if not timed.any():
        raise ConfigError(f"table {path}: no row has a time of more than zero")
    keep = (size >= table.min_bytes) & timed
    if not keep.any():
        raise ConfigError(f"table {path}: no rows of at least {table.min_bytes:g} bytes")
    rows = np.flatnonzero(keep)
    return MeasuredTable(table, size[rows], measured[rows], given, build(rows), lambda at: build(rows[at]))
