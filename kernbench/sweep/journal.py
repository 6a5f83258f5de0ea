"""The journal of a study: one JSON line per finished point, so that a crash costs only what was running."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from io import FileIO
from pathlib import Path

from pydantic import TypeAdapter

from kernbench.input_files import exists
from kernbench.output_files import explained, make_folder
from kernbench.sweep.outcome import Outcome

_OUTCOME = TypeAdapter(Outcome)


class JournalWarning(UserWarning):
    """Lines of a journal are damaged: their points are run again."""


class Journal:
    """Outcomes on disk, by the key of their task.

    Attributes:
        damaged: numbers of the lines, from 1, that the last :meth:`read` could make nothing of. A last line without an end is
            none of them: a crash has cut it off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: list[int] = []
        self._file: FileIO | None = None

    def read(self) -> dict[str, Outcome]:
        """What is known. Lines that are no outcome are left out, and are in :attr:`damaged`."""
        known: dict[str, Outcome] = {}
        self.damaged = []
        lines = self.path.read_bytes().split(b"\n") if exists(self.path) else []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                outcome = _OUTCOME.validate_python(json.loads(line))
            except (ValueError, RecursionError):
                if number < len(lines):
                    self.damaged.append(number)
                continue
            known[outcome.key] = outcome
        return known

    def warn_of_damage(self) -> None:
        """Warn, once, of the lines in :attr:`damaged`: file, lines, and what happens."""
        if self.damaged:
            several = len(self.damaged) > 1
            shown = ", ".join(map(str, self.damaged[:5])) + (", ..." if len(self.damaged) > 5 else "")
            warnings.warn(
                f"{self.path}: line{'s' if several else ''} {shown} {'are' if several else 'is'} damaged: what "
                f"{'they' if several else 'it'} told of is run again",
                JournalWarning, stacklevel=2,
            )  # fmt: skip

    @contextmanager
    def opened(self, *, fresh: bool) -> Iterator[None]:
        """For a block, :meth:`add` writes; ``fresh`` forgets what was there. What a crash has cut off at the end is dropped.
        Raises OutputError."""
        make_folder(self.path.parent)
        with explained(self.path):
            if not fresh and exists(self.path):
                text = self.path.read_bytes()
                whole = text.rpartition(b"\n")
                if whole[2]:
                    self._end_last_line(whole[0] + whole[1], whole[2])
            file = self.path.open("wb" if fresh else "ab", buffering=0)
        with file as self._file:
            try:
                yield
            finally:
                self._file = None

    def _end_last_line(self, before: bytes, last: bytes) -> None:
        """A last line without an end gets one if it is an outcome, and goes if it is none."""
        try:
            _OUTCOME.validate_python(json.loads(last))
        except (ValueError, RecursionError):
            self.path.write_bytes(before)
        else:
            self.path.write_bytes(before + last + b"\n")

    def add(self, outcome: Outcome) -> None:
        """Write one outcome, now. Raises OutputError."""
        assert self._file is not None
        line = (json.dumps(asdict(outcome)) + "\n").encode()
        with explained(self.path):
            while line:
                line = line[self._file.write(line) :]
