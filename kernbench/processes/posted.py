"""A call that a rank in another process has posted, as the parent keeps it."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.sim_engine.operation import Operation


class PostedOperation(Operation):
    """A rank's part of a collective or a message, which calls back when it has run and when its end is known.

    Thousands may be under way: the next reply to the rank has what has become of them, and only these are read.

    Args:
        changed: called at both moments; it may be called more than once for one.
    """

    __slots__ = ("_changed", "_end", "_executed")

    def __init__(
        self, name: str, rank: int | None, sip: int, stream: str, enqueue: float, changed: Callable[[], None]
    ) -> None:
        self._changed: Callable[[], None] = _ignore
        super().__init__(name, "collective", rank, sip, stream, enqueue)
        self.executed = False
        self._changed = changed

    @property
    def end(self) -> float | None:
        """See :class:`Operation`."""
        return self._end

    @end.setter
    def end(self, end: float | None) -> None:
        self._end = end
        self._changed()

    @property
    def executed(self) -> bool:
        """See :class:`Operation`."""
        return self._executed

    @executed.setter
    def executed(self, executed: bool) -> None:
        self._executed = executed
        self._changed()


def _ignore() -> None:
    """Before anything is posted there is nothing to say."""
