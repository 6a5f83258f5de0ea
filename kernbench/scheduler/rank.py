"""What a rank is to the scheduler, and the observer of its life."""

from __future__ import annotations

import enum
from typing import Any, Protocol

from kernbench.scheduler.execution import RankExecution


class RankPhase(enum.Enum):
    """Where a rank is in its life."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"


class Rank:
    """One rank: what runs it, its phase and, in the end, its outcome.

    Attributes:
        index: its number in the world.
        phase: where it is in its life.
        execution: what runs its program.
        error: what it has failed with.
        traceback: of that error, as text.
        ended_by: what it has raised that is no failure (KeyboardInterrupt, as torch has it), and where.
        place: where its program is, if it runs in another process, which has reported it; None: its own frames say.
    """

    __slots__ = ("ended_by", "error", "execution", "index", "phase", "place", "traceback")

    execution: RankExecution

    def __init__(self, index: int) -> None:
        self.index = index
        self.phase = RankPhase.READY
        self.error: BaseException | None = None
        self.traceback = ""
        self.ended_by = ""
        self.place: Any = None

    @property
    def greenlet(self) -> Any:
        """What main resumes to let it run."""
        return self.execution.greenlet

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.phase in (RankPhase.READY, RankPhase.RUNNING)

    def __repr__(self) -> str:
        return f"<Rank {self.index} {self.phase.value}>"


class SideThread:
    """A thread that a rank's program has started: it takes turns as a rank does, and is its rank's.

    Attributes:
        rank: the number of its rank.
        name: of the thread, in reports.
        daemon: whether its rank ends without it.
        execution: what runs it.
        place: where it is, if it runs in another process, which has reported it.
    """

    __slots__ = ("daemon", "execution", "name", "place", "rank")

    execution: RankExecution

    def __init__(self, rank: int, name: str, daemon: bool) -> None:
        self.rank = rank
        self.name = name
        self.daemon = daemon
        self.place: Any = None

    @property
    def greenlet(self) -> Any:
        """What main resumes to let it run."""
        return self.execution.greenlet

    def __repr__(self) -> str:
        return f"<SideThread {self.name!r} of rank {self.rank}>"


class RaisedElsewhere(BaseException):
    """What a rank's program has raised in another process.

    Attributes:
        error: the exception.
        traceback: of it, as text.
    """

    def __init__(self, error: BaseException, traceback: str) -> None:
        super().__init__(error, traceback)
        self.error = error
        self.traceback = traceback


class RankObserver(Protocol):
    """Is notified when ranks begin and end; where they do."""

    def rank_started(self, rank: Rank) -> None:
        """A rank's body is about to run."""

    def rank_ended(self, rank: Rank) -> None:
        """A rank is done or aborted, also one that has never started."""

    def rank_failed(self, rank: Rank) -> None:
        """A rank has failed, maybe after it had ended."""
