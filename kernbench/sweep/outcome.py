"""What became of one point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OK, FAILED = "ok", "failed"


@dataclass(frozen=True)
class Outcome:
    """What became of one point. Nothing in it depends on the machine or on how long it took.

    Attributes:
        index: of the point in the grid.
        key: of the task.
        status: ``"ok"`` or ``"failed"``.
        metrics: what the program returned, and ``virtual_seconds``.
        error: why it failed, one line; ``detail`` has the traceback.
    """

    index: int
    key: str
    status: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    detail: str = ""
