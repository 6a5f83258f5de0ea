"""Where ranks may be interrupted: before an operation, and before they look into a store, others may go first.

Without a schedule (:mod:`kernbench.order.choices`) a rank goes on until it waits, and is not asked to give way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from kernbench.order import EVERYTHING, Choices, Conflicts
from kernbench.scheduler import ChosenOrder, RankScheduler
from kernbench.sim_engine import Condition, DataExecutor
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.ranks.listeners import Listener
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.time.wait_queue import Waits

_PATIENCE = 64
"""Events for which a rank waits at most that has let all others go first."""


class GivingWay(Listener):
    """Asks, in a rank, whether others go first: before an operation is enqueued, and where else it is called.

    Args:
        choices: is asked.
        ready: knows who could go on.
        executor: has kernels that are to come later, too.

    Attributes:
        conflicts: receives each step of a rank, and reads of stores; None: no listener.
    """

    def __init__(
        self, choices: Choices, ready: ChosenOrder, executor: DataExecutor, hosts: Hosts, scheduler: RankScheduler,
        waits: Waits,
    ) -> None:  # fmt: skip
        self._choices = choices
        self._ready = ready
        self._executor = executor
        self._hosts = hosts
        self._scheduler = scheduler
        self._waits = waits
        self.conflicts: Conflicts | None = None
        self._late: list[Condition] = []
        self._events = 0

    def __call__(self) -> None:
        """Let others go first, if the schedule says so. No virtual time passes for the rank."""
        scheduler, hosts = self._scheduler, self._hosts
        rank = scheduler.current_rank()
        if rank is None or hosts.observing or hosts.inside_kernel or scheduler.aborting:
            return
        host = hosts.of_rank[rank]
        if host.unrecorded or host.capture is not None:
            return
        if self.conflicts is not None and host.order is not None:
            self.conflicts.step(host.order.host)
        taken = self._choices.pick(f"w{rank}", (rank, tuple(self._ready.waiting), EVERYTHING), user_location)
        if taken == 1:
            scheduler.pause()
        elif taken == 2:
            later = Condition("its turn", rank)
            self._late.append(later)
            self._waits.block_on(later)

    enqueueing = __call__

    def follow(self, conflicts: Conflicts) -> None:
        """Tell ``conflicts`` what of the run could have come in another order."""
        self.conflicts = conflicts
        self._choices.follow = conflicts.ask

    def looks_into(self, store: Hashable, keys: Iterable[str], name: str, *, writes: bool, waits: bool) -> None:
        """A rank uses keys of a store."""
        order = self._hosts.current().order
        if self.conflicts is not None and order is not None:
            access = order.of_host(f"{name} of a store")
            for key in keys:
                self.conflicts.uses((store, key), access, writes=writes, waits=waits)

    def release(self, *, idle: bool) -> bool:
        """In main, before time goes on, and when it cannot (``idle``): let those go on that have let all others go first.

        They do not wait for ever while others ask again and again whether they have done something.
        """
        self._events += 1
        if not idle and self._events < _PATIENCE:
            return False
        self._events = 0
        if self._executor.release():
            return True
        late, self._late = self._late, []
        for each in late:
            each.fulfil()
        return bool(late)
