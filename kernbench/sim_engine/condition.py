"""What a rank can wait for that is no operation of a stream: values that are there, a key of a store, a moment."""

from __future__ import annotations

from collections.abc import Callable


class Condition:
    """Becomes true once, or fails.

    It can be waited for as an :class:`~kernbench.sim_engine.operation.Operation` can, and takes no place on a stream and no
    line in the log.

    Args:
        name: what is waited for, in reports.
        rank: who waits for it, None for main.

    Attributes:
        end: virtual time (s) to which the waiter's clock moves; None while it is open.
        error: what made it fail, raised in its waiters.
    """

    __slots__ = ("_told", "end", "error", "name", "observed", "rank")

    kind = "condition"
    start: float | None = None

    def __init__(self, name: str, rank: int | None) -> None:
        self.name = name
        self.rank = rank
        self.end: float | None = None
        self.error: BaseException | None = None
        self.observed = False
        self._told: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether waiting for it would return, or raise, at once."""
        return self.end is not None

    def when_resolved(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` once it is done; at once if it is."""
        if self.end is not None:
            callback()
        else:
            self._told.append(callback)

    def fulfil(self, at: float = 0.0) -> None:
        """It is true, from ``at`` (s) on; 0: no time passes for the waiter. The first call counts."""
        if self.end is None:
            self.end = at
            told, self._told = self._told, []
            for callback in told:
                callback()

    def fail(self, error: BaseException, at: float) -> None:
        """It will never be true."""
        if self.end is None:
            self.error = error
            self.fulfil(at)

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "pending"
        return f"<Condition {self.name!r} rank {self.rank} {state}>"
