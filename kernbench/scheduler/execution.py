"""What runs a rank, or a further thread of it: one protocol for all of them. docs/architecture.md draws them."""

from __future__ import annotations

from types import FrameType
from typing import Any, Protocol


class RankExecution(Protocol):
    """A greenlet that main resumes, and what stands behind it.

    Attributes:
        greenlet: what main resumes to let the program run.
        root: what ``greenlet.getcurrent()`` gives inside the program, where that is another one.
        stuck: whether it is known to wait for ever, and cannot be unwound.
        away: whether it waits now for what the simulation does not see.
    """

    greenlet: Any
    root: Any
    stuck: bool
    away: bool

    @property
    def thread_id(self) -> int | None:
        """The identity of the program's own thread; None if it has none here."""
        ...

    def frame(self) -> FrameType | None:
        """In any thread: where the program is, while it is suspended."""
        ...

    def close(self) -> None:
        """In main, of a further thread: its rank has ended, and it is to end when it is resumed."""

    def give_up(self) -> None:
        """In main: go on without it. It ends when it asks for its turn."""

    def await_end(self) -> None:
        """In main, when its program has ended: wait for what is left of it."""


class InGreenlet:
    """A greenlet alone: a program that shares main's thread, or the relay of one that runs in another process."""

    root = None
    away = False

    def __init__(self, greenlet: Any) -> None:
        self.greenlet = greenlet
        self.stuck = False

    @property
    def thread_id(self) -> None:
        """See :class:`RankExecution`."""

    def frame(self) -> FrameType | None:
        """See :class:`RankExecution`."""
        found: FrameType | None = self.greenlet.gr_frame
        return found

    def close(self) -> None:
        """See :class:`RankExecution`: what is thrown into the greenlet ends it."""

    def give_up(self) -> None:
        """See :class:`RankExecution`."""
        self.stuck = True

    def await_end(self) -> None:
        """See :class:`RankExecution`: nothing is left."""
