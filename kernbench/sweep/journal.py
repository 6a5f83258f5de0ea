"""The journal of a sweep: one JSON line per finished point, so that a crash costs only what was running."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from kernbench.sweep.point import Outcome


class Journal:
    """Outcomes on disk, by the key of their task."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def read(self) -> dict[str, Outcome]:
        """What is known. A last line that was cut off by a crash is left out."""
        known: dict[str, Outcome] = {}
        if not self.path.exists():
            return known
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                outcome = Outcome(**json.loads(line))
            except (ValueError, TypeError):
                continue
            known[outcome.key] = outcome
        return known

    def open(self, *, fresh: bool) -> None:
        """Begin to write; ``fresh`` forgets what was there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut_off = not fresh and self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self._file = self.path.open("w" if fresh else "a", encoding="utf-8")
        if cut_off:
            self._file.write("\n")

    def add(self, outcome: Outcome) -> None:
        """Write one outcome, now."""
        assert self._file is not None
        self._file.write(json.dumps(asdict(outcome)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
