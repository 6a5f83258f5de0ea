"""``[rank3]`` in front of every line that a rank prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from kernbench.simulation.simulation import Simulation


class RankStream:
    """A text stream that tells who writes. Lines come out whole, in the order in which they were finished."""

    def __init__(self, stream: TextIO, simulation: Simulation) -> None:
        self._stream = stream
        self._simulation = simulation
        self._partial: dict[int, str] = {}

    def write(self, text: str) -> int:
        rank = self._simulation.scheduler.current_rank()
        if rank is None:
            return self._stream.write(text)
        *lines, rest = (self._partial.get(rank, "") + text).split("\n")
        if lines:
            self._stream.write("".join(f"[rank{rank}] {line}\n" for line in lines))
        self._partial[rank] = rest
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        """Write the lines that their ranks have not ended."""
        for rank, text in sorted(self._partial.items()):
            if text:
                self._stream.write(f"[rank{rank}] {text}\n")
        self._partial.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def rank_streams(simulation: Simulation, prefix: bool) -> Iterator[None]:
    """``sys.stdout`` and ``sys.stderr`` with ranks in front of lines, for the length of a block."""
    if not prefix:
        yield
        return
    stdout, stderr = sys.stdout, sys.stderr
    streams = RankStream(stdout, simulation), RankStream(stderr, simulation)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        for stream in streams:
            stream.finish()
