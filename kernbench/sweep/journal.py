"""The journal of a sweep: one JSON line per finished point, so that a crash costs only what was running."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO, TypeVar

from pydantic import TypeAdapter

from kernbench.sweep.cluster import Keyed
from kernbench.sweep.outcome import FAILED, Outcome

T = TypeVar("T", bound=Keyed)
_OUTCOME = TypeAdapter(Outcome)


class Journal:
    """Outcomes on disk, by the key of their task."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def read(self) -> dict[str, Outcome]:
        """What is known. A line that is no outcome, as one that a crash cut off, is left out."""
        known: dict[str, Outcome] = {}
        if not self.path.exists():
            return known
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                outcome = _OUTCOME.validate_python(json.loads(line))
            except (ValueError, RecursionError):
                continue
            known[outcome.key] = outcome
        return known

    def todo(self, tasks: Sequence[T], *, resume: bool, retry_failed: bool) -> tuple[list[T], dict[str, Outcome]]:
        """Those of some tasks that are to run now, and what is known of the others by their key."""
        known = self.read() if resume else {}
        wanted = {task.key for task in tasks}
        done = {
            key: outcome
            for key, outcome in known.items()
            if key in wanted and not (retry_failed and outcome.status == FAILED)
        }
        return [task for task in tasks if task.key not in done], done

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
