"""Waiting is switching: a rank that waits is queued and main goes on; main that waits drives the simulation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from greenlet import getcurrent

from kernbench.errors import KernbenchError
from kernbench.scheduler import RankScheduler
from kernbench.sim_engine import Condition, GraphEngine, Operation
from kernbench.simulation.ranks.hosts import Host, Hosts

Awaited = Operation | Condition
"""What can be waited for."""


class Waits:
    """Who waits for what.

    Args:
        engine: the clock.
        hosts: who waits.
        scheduler: switches.

    Attributes:
        pending: what is waited for, and the greenlets that wait, in the order in which they began to.
        ended: of these, what has an end; its values may be to come.
        drive_until: in main, runs the simulation until something is done (the drain sets it).
        resuming: receives each greenlet that is about to be resumed, before any of them is, with what makes it fail; None:
            no listener.
    """

    def __init__(self, engine: GraphEngine, hosts: Hosts, scheduler: RankScheduler) -> None:
        self._engine = engine
        self._hosts = hosts
        self._scheduler = scheduler
        self.pending: list[tuple[Awaited, Any]] = []
        self.ended: deque[Awaited] = deque()
        self.drive_until: Callable[[Awaited], None]
        self.resuming: Callable[[Any, BaseException | None], None] | None = None

    def clear(self, keep: Collection[object] = ()) -> None:
        """Forget all that wait, but the greenlets to ``keep``."""
        self.pending[:] = [each for each in self.pending if each[1] in keep]
        self.ended.clear()

    def wait(self, handle: Awaited) -> None:
        """Block until ``handle`` is done; raise what made it fail.

        In a rank, a handle that is done returns without a switch; else the rank is queued and main goes on. In main it
        drives the simulation. The waiter's host clock moves forward to the handle's end.
        """
        handle.observed = True
        host = self._hosts.current()
        try:
            if not handle.done:
                self.block_on(handle)
            if self._scheduler.side_threads and isinstance(handle, Operation):
                self._let_threads_go_on(host, handle)
        finally:
            self.move_clock(host, handle)
        if handle.error is not None:
            raise handle.error
        if host.order is not None:
            host.order.host_waits(getattr(handle, "moment", None))

    def _let_threads_go_on(self, host: Host, op: Operation) -> None:
        """The other threads of a rank go on while one of them waits for the end of an operation, which may be known already."""
        scheduler, end = self._scheduler, op.end
        if end is None or op.error is not None or end <= max(host.clock, self._engine.now) or host.unrecorded:
            return
        if getcurrent() is scheduler.main or all(side.rank != host.rank for side in scheduler.side_threads.values()):
            return
        timer = Condition(op.name, host.rank)
        self._engine.fulfil_at(timer, end)
        self.block_on(timer)

    def met(self, handle: Awaited) -> None:
        """What the running host does from now on happens after an operation that it has seen end."""
        order = self._hosts.current().order
        if order is not None:
            order.host_waits(getattr(handle, "moment", None))

    def wait_for_values(self, handle: Operation, values: Awaited | None = None) -> None:
        """Block until the values of ``handle`` (of a collective: the condition ``values``) are there. No virtual time passes.

        Raises what made it fail.
        """
        handle.observed = True
        if not handle.executed and handle.error is None:
            self.block_on(handle if values is None else values)
        if handle.error is not None:
            raise handle.error

    def block_on(self, awaited: Awaited) -> None:
        """Let the others run until ``awaited`` is done. No virtual time passes for the waiter, and nothing is raised."""
        if self._hosts.observing:
            self._hosts.forbid_observers("wait, or read another operation's result")
        if self._hosts.inside_kernel:
            raise KernbenchError(
                "a kernel cannot wait for a handle or read another operation's result: launch it later"
            )
        scheduler = self._scheduler
        if getcurrent() is scheduler.main:
            self.drive_until(awaited)
            return
        if scheduler.before_switch is not None:
            scheduler.before_switch()
        self.pending.append((awaited, scheduler.waitable()))
        awaited.when_resolved(partial(self.ended.append, awaited))
        scheduler.switch_to_main()
        if awaited.end is None:
            raise KernbenchError(
                f"resumed before {awaited!r} was done: a greenlet was switched to from outside kernbench"
            )

    def wait_for_first(self, operations: Sequence[Operation]) -> None:
        """Block until one of ``operations`` has ended; the clock moves to that moment. What made it fail is not raised."""
        if len(operations) == 1:
            first: Awaited = operations[0]
        else:
            first = Condition(f"one of {len(operations)} futures", self._hosts.current().rank)
            for op in operations:
                op.when_resolved(partial(_fulfil_by_ends, first, operations))
        if not first.done:
            self.block_on(first)
        self.move_clock(self._hosts.current(), first)

    def refresh(self, operations: Sequence[Operation]) -> None:
        """Before a read of the times of ``operations`` without waiting. Here they are what is known."""

    def move_clock(self, host: Host, awaited: Awaited) -> None:
        """Move a host's clock forward to the end of what it has waited for, and log the wait."""
        end = awaited.end
        if end is not None and end > host.clock:
            begin = host.clock
            self._engine.op_log.add_wait((host.rank, begin, end, awaited, host.sip))
            host.clock = end
            if host.watcher is not None:
                host.watcher.waited(begin, for_gpu=isinstance(awaited, Operation) and host.uses_gpu)

    def resume_done(self) -> bool:
        """In main: resume every greenlet whose handle is done, in the order in which they began to wait, or as the policy says.

        One that waits for something that failed resumes with its error: should a sibling fail first, it still raises its own.
        """
        waits, ended = self.pending, self.ended  # in a large world few of many waits end at a time
        if ended:
            done: set[Awaited] = set()
            later: list[Awaited] = []
            for _ in range(len(ended)):  # one by one: the garbage collector may have something end meanwhile
                awaited = ended.popleft()
                if awaited.done:
                    done.add(awaited)
                elif waits:
                    later.append(awaited)
            ended.extend(later)
            still, ready = [], self._scheduler.ready
            for item in waits:
                awaited, target = item
                if awaited in done:
                    ready.append((target, awaited.error))
                    if self.resuming is not None:
                        self.resuming(target, awaited.error)
                else:
                    still.append(item)
            waits[:] = still
        return self._scheduler.run_ready() > 0

    @property
    def anything_done(self) -> bool:
        """Whether something is done whose waiters wait still: what the garbage collector calls in main may do that."""
        return any(awaited.done for awaited in self.ended)

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass for this rank, while the others go on."""
        if seconds < 0:
            raise ValueError(f"sleep length must be non-negative, got {seconds}")
        self._hosts.forbid_observers("wait")
        host = self._hosts.current()
        until, timer = host.clock + seconds, Condition("sleep", host.rank)
        if until <= self._engine.now:  # a host that is behind its device
            timer.fulfil(until)
        else:
            self._engine.fulfil_at(timer, until)
        self.wait(timer)


def _fulfil_by_ends(first: Condition, operations: Sequence[Operation]) -> None:
    first.fulfil(max(op.end for op in operations if op.end is not None))
