"""What became of one point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernbench.output_files import writable_text

OK, FAILED = "ok", "failed"


@dataclass(frozen=True)
class Outcome:
    """What became of one point. Nothing in it depends on the machine or on how long it took; its text can be written.

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

    def __post_init__(self) -> None:
        metrics = {
            writable_text(name): writable_text(value) if isinstance(value, str) else value
            for name, value in self.metrics.items()
        }
        for name, value in (
            ("metrics", metrics), ("error", writable_text(self.error)), ("detail", writable_text(self.detail))
        ):  # fmt: skip
            object.__setattr__(self, name, value)
