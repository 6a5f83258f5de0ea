"""The ranks of one spawn: run until they have ended, unwound when one fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from greenlet import getcurrent

from kernbench.errors import KernbenchError
from kernbench.scheduler import RankScheduler
from kernbench.scheduler.standstill import tell
from kernbench.sim_engine import GraphEngine
from kernbench.simulation.drain import Drain
from kernbench.simulation.matching.groups import Communicators
from kernbench.simulation.matching.matcher import Matcher
from kernbench.simulation.ranks.failures import SpawnException
from kernbench.simulation.ranks.folding import Folding
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.ranks.training_steps import Steps, StoppedAfterSteps
from kernbench.simulation.time.jitter import Jitter
from kernbench.simulation.time.wait_queue import Waits
from kernbench.simulation.values.deferred_launches import Values


@dataclass(eq=False, repr=False)
class World:
    """The ranks of the last spawn, and what was opened for them.

    Attributes:
        size: number of ranks, 0 when none run.
        communicators: the process groups that they have made.
        closers: called when they have ended, last first.
        apart: whether they are processes, which have no memory in common.
    """

    engine: GraphEngine
    hosts: Hosts
    scheduler: RankScheduler
    waits: Waits
    values: Values
    matcher: Matcher
    drain: Drain
    steps: Steps
    jitter: Jitter

    def __post_init__(self) -> None:
        self.size = 0
        self.communicators = Communicators()
        self.drain.threads.run_until = self.go_on
        self.closers: list[Callable[[], None]] = []
        self.apart = False
        self._process = 0
        self._goes_on = False

    def open(self, size: int, clock: float, folding: Folding | None = None) -> None:
        """Make hosts for ``size`` ranks whose clocks are at ``clock`` s, in a world of their own; ``folding``: who runs."""
        self.jitter.open(size, folding)
        self._reset()
        self.matcher.history.clear()
        self.hosts.open(size, clock, folding)
        self.communicators.folding = folding
        self.steps.open(self.hosts.of_rank, clock)
        self.size = size
        self._process = os.getpid()

    def _reset(self) -> None:
        self.size = 0
        self.apart = False
        self.communicators.clear()
        self.matcher.reset()

    def require(self) -> int:
        """The number of ranks. Raises :class:`KernbenchError` when none run."""
        if not self.size:
            raise KernbenchError(
                "there is no world: collectives are called inside ranks, see ctx.multiprocessing.spawn"
            )
        return self.size

    @property
    def is_beside(self) -> bool:
        """Whether this is main, beside ranks that it has not joined and that wait for it to wait; not in a fork of it."""
        return (
            self.size > 0 and not self._goes_on and getcurrent() is self.scheduler.main and os.getpid() == self._process
        )

    def run(self) -> None:
        """Run ranks until all have ended, and close their world.

        Raises:
            SpawnException: ranks have failed. The others have been unwound.
        """
        self.go_on(lambda: False)
        self.close()

    def go_on(self, until: Callable[[], bool]) -> bool:
        """Run ranks until all have ended (True), or ``until()`` is true before that. Their world stays open.

        Raises:
            SpawnException: ranks have failed. The others have been unwound.
        """
        scheduler = self.scheduler
        self._goes_on = True
        try:
            with scheduler.at_work():
                while scheduler.live_count and not scheduler.failed:
                    if until():
                        return False
                    if not scheduler.run_ready() and not self.drain.once() and not self._release():
                        self.drain.deadlock()
                if not scheduler.failed:
                    self._finish()
                if scheduler.failed:
                    self._deliver_root_causes()
        except BaseException:
            self._abort_for_a_reason()
            raise
        finally:
            self._goes_on = False
        if scheduler.failed:
            self._abort_for_a_reason()
            raise SpawnException(scheduler.failed)
        return True

    def _release(self) -> bool:
        """Ranks have been stopped after their last step: ranks that wait for them, in vain, are stopped too."""
        if not self.steps.stopping:
            return False
        rank_of = self.scheduler.rank_by_greenlet
        waiting = [target for _, target in self.waits.pending if target in rank_of]
        if not waiting or not self.steps.release(rank_of[target] for target in waiting):
            return False
        self.drain.forget_waits()
        for target in waiting:
            self.scheduler.make_ready(target, StoppedAfterSteps())
        return True

    def _finish(self) -> None:
        """All ranks have returned: complete what they left behind; an error without a waiter is the rank's own."""
        while self.drain.anything_left():
            if not self.drain.once():
                if self.steps.stopping:  # what they had begun beyond their last step
                    self.drain.clear()
                    break
                if self.waits.pending:
                    self.drain.deadlock()
                self.drain.fail_leftovers()
                return
        if not self.steps.stopping:
            self.matcher.mailbox.remark_on_unmet()
        self.hosts.settle_main(self.drain.settle_time())
        ranks = {rank.index: rank for rank in self.scheduler.ranks}
        for op in self.values.unobserved_failures():
            rank = None if op.rank is None else ranks.get(op.rank)
            if rank is not None and rank.error is None and op.error is not None:
                self.scheduler.fail(rank, op.error)

    def _deliver_root_causes(self) -> None:
        """A rank has failed: the others whose own operation failed too raise that first, before any rank is unwound."""
        for op, target in self.waits.pending:
            if op.error is not None:
                self.scheduler.make_ready(target, op.error)
        self.scheduler.deliver_errors()

    def unwind(self) -> None:
        """Unwind what still runs, drop what is still queued. Idempotent."""
        try:
            self.scheduler.abort([target for _, target in self.waits.pending])
        finally:
            self.drain.clear()

    def abort(self) -> None:
        """Unwind the ranks, and close their world."""
        try:
            self.unwind()
        finally:
            self.hosts.settle_main(self.drain.settle_time())
            self.engine.forget_unresolved()
            self.close()

    def _abort_for_a_reason(self) -> None:
        """The same, with something to raise: that ranks do not end as they are asked to is said besides."""
        try:
            self.abort()
        except KernbenchError as error:
            tell(str(error))

    def close(self) -> None:
        """The ranks have ended: main goes on where the last of them stopped."""
        self.hosts.settle_main(0.0)
        while self.closers:
            self.closers.pop()()
        self._reset()
