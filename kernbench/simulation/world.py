"""The ranks of one spawn: run until they have ended, unwound when one fails."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.errors import KernbenchError
from kernbench.scheduler import RankScheduler
from kernbench.sim_engine import DataExecutor, GraphEngine
from kernbench.simulation.deadlines import Deadlines
from kernbench.simulation.drain import Drain
from kernbench.simulation.failures import SpawnException
from kernbench.simulation.groups import Communicators
from kernbench.simulation.hosts import Hosts
from kernbench.simulation.matching import Matcher
from kernbench.simulation.polling import Polls
from kernbench.simulation.signal_timing import SignalTiming
from kernbench.simulation.values import Values
from kernbench.simulation.waits import Waits


class World:
    """The ranks of the last spawn, and what was opened for them.

    Attributes:
        size: number of ranks, 0 when none run.
        communicators: the process groups that they have made.
        closers: called when they have ended, last first.
    """

    def __init__(
        self,
        engine: GraphEngine,
        hosts: Hosts,
        scheduler: RankScheduler,
        executor: DataExecutor,
        waits: Waits,
        values: Values,
        matcher: Matcher,
        signal_timing: SignalTiming,
        polls: Polls,
        deadlines: Deadlines,
        drain: Drain,
    ) -> None:
        self._engine = engine
        self._hosts = hosts
        self._scheduler = scheduler
        self._executor = executor
        self._waits = waits
        self._values = values
        self._matcher = matcher
        self._signal_timing = signal_timing
        self._polls = polls
        self._deadlines = deadlines
        self._drain = drain
        self.size = 0
        self.communicators = Communicators()
        self.closers: list[Callable[[], None]] = []

    def open(self, size: int, clock: float) -> None:
        """Make hosts for ``size`` ranks whose clocks are at ``clock`` s, in a world of their own."""
        self._reset()
        self._matcher.history.clear()
        self._hosts.open(size, clock)
        self.size = size

    def _reset(self) -> None:
        self.size = 0
        self.communicators.clear()
        self._matcher.reset()

    def require(self) -> int:
        """The number of ranks. Raises :class:`KernbenchError` when none run."""
        if not self.size:
            raise KernbenchError(
                "there is no world: collectives are called inside ranks, see ctx.multiprocessing.spawn"
            )
        return self.size

    def clear_queues(self) -> None:
        """Forget everything that waits or is kept."""
        self._waits.clear()
        self._matcher.pending.clear()
        self._deadlines.clear()
        self._polls.clear()
        self._signal_timing.clear()
        self._executor.clear()

    def run(self, *, until_one_more: bool = False, deadline: float | None = None) -> bool:
        """Run ranks until all have ended (True), one more has (``until_one_more``), or ``deadline`` (s) has passed.

        Raises:
            SpawnException: ranks have failed. The others have been unwound.
        """
        scheduler = self._scheduler
        live_before = scheduler.live_count
        try:
            with scheduler.at_work():
                while scheduler.live_count and not scheduler.failed:
                    if until_one_more and scheduler.live_count < live_before:
                        return False
                    if deadline is not None and self._engine.now >= deadline:
                        return False
                    if not scheduler.run_ready() and not self._drain.once():
                        self._drain.deadlock()
                if not scheduler.failed:
                    self._finish()
                if scheduler.failed:
                    self._deliver_root_causes()
        except BaseException:
            self.abort()
            raise
        if scheduler.failed:
            self.abort()
            raise SpawnException(scheduler.failed)
        self.close()
        return True

    def _finish(self) -> None:
        """All ranks have returned: complete what they left behind; an error that nobody waited for is the rank's own."""
        while self._drain.anything_left():
            if not self._drain.once():
                if self._waits.pending:
                    self._drain.deadlock()
                self._drain.fail_leftovers()
                return
        self._hosts.settle_main(self._drain.settle_time())
        ranks = self._scheduler.ranks
        for op in self._values.unobserved_failures():
            if op.rank is not None and op.rank < len(ranks) and ranks[op.rank].error is None and op.error is not None:
                self._scheduler.fail(ranks[op.rank], op.error)

    def _deliver_root_causes(self) -> None:
        """A rank has failed: the others whose own operation failed too raise that first, before anybody is unwound."""
        for op, target in self._waits.pending:
            if op.error is not None:
                self._scheduler.make_ready(target, op.error)
        self._scheduler.deliver_errors()

    def unwind(self) -> None:
        """Unwind what still runs, drop what is still queued. Idempotent."""
        try:
            self._scheduler.abort([target for _, target in self._waits.pending])
        finally:
            self.clear_queues()

    def abort(self) -> None:
        """Unwind the ranks, and close their world."""
        try:
            self.unwind()
        finally:
            self._hosts.settle_main(self._drain.settle_time())
            self._engine.forget_unresolved()
            self.close()

    def close(self) -> None:
        """The ranks have ended: main goes on where the last of them stopped."""
        self._hosts.settle_main(0.0)
        while self.closers:
            self.closers.pop()()
        self._reset()
