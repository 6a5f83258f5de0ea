"""What ``--straggler`` takes."""

from __future__ import annotations

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
