"""CUDA graphs: what happens before what in a replay (ADR 0147).

A replay is a launch on one stream: what is in the graph begins after what that stream did, and what follows on the stream comes
after all of it. What was captured on other streams are branches, which begin and join as the capture says; they are no part of
the streams that they were captured on. Replays of one graph come one after the other, on whatever streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kernbench.order.findings import Place
from kernbench.order.strands import Moment, Strand


class ReplayedPlace(NamedTuple):
    """A line whose operation was replayed.

    Attributes:
        at: the line of the access.
        replayed: the line that replayed the graph.
        launched: of a kernel's line: the one that launched it when the graph was captured; empty: there is no other.
    """

    at: Place
    replayed: Place
    launched: str = ""

    @property
    def file(self) -> str:
        """Its path."""
        return self.at.file

    @property
    def line(self) -> int:
        """Its number, from 1."""
        return self.at.line

    def __str__(self) -> str:
        launched = self.launched and f", launched at {self.launched}"
        return f"{self.at}{launched}, in a graph replayed at {self.replayed}"


class GraphOrder:
    """One graph of one rank.

    Args:
        host: the strand of the rank's host.
        queue: gives the strand of a stream.
        locate: says where in the program the host is.

    Attributes:
        places: where each of its steps was captured.
        captured_at: where the one was captured that is replayed now.
    """

    def __init__(self, host: Strand, queue: Callable[[str], Strand], locate: Callable[[], Place]) -> None:
        self.places: list[Place] = []
        self.captured_at: Place | None = None
        self._host = host
        self._queue = queue
        self._locate = locate
        self._branches: dict[str, Strand] = {}
        self._ended: Moment | None = None
        self._main: Strand | None = None
        self._begin: Moment | None = None
        self._replayed: Place | None = None

    def captured(self) -> None:
        """A step has been captured."""
        self.places.append(self._locate())

    @property
    def place(self) -> ReplayedPlace:
        """Where the step was captured that is replayed now, and where the graph is."""
        assert self.captured_at is not None
        assert self._replayed is not None
        return ReplayedPlace(self.captured_at, self._replayed)

    def strand(self, stream: str) -> Strand:
        """That of what was captured on a stream, during a replay; what was captured on the first one is on the replay's."""
        main, begin = self._main, self._begin
        assert main is not None
        assert begin is not None
        if stream == main.name:
            return main
        branch = self._branches.get(stream)
        if branch is None:
            host = self._host
            branch = self._branches[stream] = Strand(f"{stream} of a graph", host.rank, host.world, host)
            self._join(branch, begin, main)
        return branch

    @contextmanager
    def replaying(self, stream: str) -> Iterator[None]:
        """For the length of a block, the graph is replayed on a stream."""
        self._replayed = self._locate()
        main = self._main = self._queue(stream)
        main.launched()
        if self._ended is not None:
            main.meet(self._ended)
        begin = self._begin = main.now()
        for branch in self._branches.values():
            self._join(branch, begin, main)
        try:
            yield
        finally:
            for branch in self._branches.values():
                main.meet(branch.now())
            self._ended = main.now()

    @staticmethod
    def _join(branch: Strand, begin: Moment, main: Strand) -> None:
        branch.joins = main
        branch.launched()
        branch.meet(begin)
