"""What ``--straggler`` takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click


class Straggler(click.ParamType):
    """``RANK:FACTOR``, as a pair."""

    name = "RANK:FACTOR"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        """Parse it; what the figures may be is the simulation's business."""
        if isinstance(value, tuple):
            return value
        rank, _, factor = str(value).partition(":")
        try:
            return int(rank), float(factor)
        except ValueError:
            self.fail(f"{value!r}: expected a rank and a factor, such as 3:1.2", param, ctx)


def different_ranks(
    ctx: click.Context, param: click.Parameter, value: Sequence[tuple[int, float]]
) -> Sequence[tuple[int, float]]:
    """Of an option that may be repeated: its pairs. Raises click.BadParameter for a rank with two factors."""
    for rank, times in Counter(rank for rank, _ in value).items():
        if times > 1:
            raise click.BadParameter(f"rank {rank} has {times} factors; give one", ctx, param)
    return value
