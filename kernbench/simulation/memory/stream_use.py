"""Until when a stream uses a block that its program has let go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.sim_engine.data_executor import Pick
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.ranks.hosts import Host

_FREE_AGAIN = ("free again", "not yet")


class StreamUse:
    """The last operation of a stream that still uses a block.

    Args:
        pick: says whether one that has ended is seen to have (:mod:`kernbench.order.choices`); None: it is.
    """

    __slots__ = ("_host", "_pick", "_refresh", "_work")

    def __init__(
        self, host: Host, op: Operation, refresh: Callable[[Sequence[Operation]], None], pick: Pick | None = None
    ) -> None:
        self._host = host
        self._work = op
        self._refresh = refresh
        self._pick = pick

    def ended(self) -> bool:
        """Whether it has by the host's clock."""
        self._refresh((self._work,))
        ended = self._work.end is not None and self._work.end <= self._host.clock
        return ended and (self._pick is None or not self._pick(f"a{self._host.rank}", _FREE_AGAIN))

    def finish(self) -> bool:
        """Move the host's clock to its end, if that is known."""
        self._refresh((self._work,))
        if self._work.end is None:
            return False
        self._host.clock = max(self._host.clock, self._work.end)
        return True
