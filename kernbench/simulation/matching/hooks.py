"""Tells plugins what happens in a simulation.

The runtime calls a method here at each place that a hook is about; it does not where no plugin listens, because a context
has no :class:`RunHooks` then. A plugin that observes runs beside the program: what it computes with torch is not recorded,
the clock that it reads is the host's, and it cannot wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kernbench.ccl.reduce_op import spelled
from kernbench.plugins.events import (
    CollectiveEvent,
    ContextEvent,
    DeadlockEvent,
    HostReadEvent,
    KernelEvent,
    RankEvent,
    TimelineEvent,
)
from kernbench.plugins.manager import PluginManager
from kernbench.plugins.problems import reason
from kernbench.plugins.specs import OBSERVED
from kernbench.scheduler import Rank, RankScheduler
from kernbench.sim_engine import DataExecutor, GraphEngine, Operation
from kernbench.simulation.matching.groups import Arrival, Collective, Signature
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.ranks.listeners import Listener
from kernbench.simulation.ranks.locations import Location

Tell = Callable[..., None]

_OUTCOMES = {"done": "returned", "failed": "raised", "aborted": "unwound"}


def open_hooks(
    plugins: PluginManager,
    context: object,
    describe: Callable[[], ContextEvent],
    engine: GraphEngine,
    scheduler: RankScheduler,
    executor: DataExecutor,
    hosts: Hosts,
) -> RunHooks | None:
    """The hooks of a simulation; None if no plugin observes. See :class:`RunHooks`."""
    tellers = {hook: tell for hook in OBSERVED if (tell := plugins.observer(hook)) is not None}
    if not tellers:
        return None
    hooks = RunHooks(tellers, context, describe, engine, scheduler, hosts)
    scheduler.observer = hooks
    if "kernbench_kernel_completed" in tellers:
        executor.on_settled = hooks.settled
    return hooks


@dataclass(eq=False, repr=False)
class RunHooks(Listener):
    """The observing hooks of one simulation.

    Args:
        tellers: hook to a function that tells every plugin which implements it.
        context: what plugins are given as the simulation's context.
        describe: says what the simulation is.
        engine, scheduler, hosts: of the simulation.
    """

    tellers: dict[str, Tell]
    context: Any
    describe: Callable[[], ContextEvent]
    engine: GraphEngine
    scheduler: RankScheduler
    hosts: Hosts

    def __post_init__(self) -> None:
        self._launches = 0
        self._closed = False
        self._running: dict[Operation, int] = {}
        self._started: set[int] = set()
        self.follows_kernels = any(f"kernbench_kernel_{what}" in self.tellers for what in ("launched", "completed"))

    def _listened(self, what: str) -> Tell | None:
        return self.tellers.get(f"kernbench_{what}")

    def _tell(self, tell: Tell, event: object) -> None:
        with self._beside_the_program():
            tell(ctx=self.context, event=event)

    @contextmanager
    def _beside_the_program(self) -> Iterator[None]:
        hosts = self.hosts
        before = hosts.observing, hosts.inside_kernel
        hosts.observing = hosts.inside_kernel = True
        try:
            with hosts.current().as_one():
                yield
        finally:
            hosts.observing, hosts.inside_kernel = before

    # -- the simulation ----------------------------------------------------------------------------------------------

    def opened(self) -> None:
        """The context has been made."""
        if tell := self._listened("context_opened"):
            self._tell(tell, self.describe())

    def closed(self) -> None:
        """The context is closed: the timeline first, then the end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        log = self.engine.op_log
        if tell := self._listened("timeline_finished"):
            self._tell(tell, TimelineEvent(
                time=self.engine.latest_end, operations=len(log.operations), collectives=len(log.collectives)
            ))  # fmt: skip
        if tell := self._listened("context_closed"):
            self._tell(tell, self.describe())

    # -- ranks (what the scheduler calls) ------------------------------------------------------------------------------

    def rank_started(self, rank: Rank) -> None:
        """A rank's body is about to run."""
        self._started.add(rank.index)
        if tell := self._listened("rank_started"):
            self._tell(tell, self._rank(rank, "running"))

    def rank_ended(self, rank: Rank) -> None:
        """A rank has returned or was unwound."""
        if rank.index in self._started:
            self._started.discard(rank.index)
            if tell := self._listened("rank_ended"):
                self._tell(tell, self._rank(rank, _OUTCOMES[rank.phase.value]))

    def rank_failed(self, rank: Rank) -> None:
        """A rank has failed."""
        self._started.discard(rank.index)
        if tell := self._listened("rank_failed"):
            self._tell(tell, self._rank(rank, _OUTCOMES[rank.phase.value]))

    def _rank(self, rank: Rank, outcome: str) -> RankEvent:
        return RankEvent(
            rank=rank.index, world_size=len(self.scheduler.ranks), time=self.hosts.of_rank[rank.index].clock,
            outcome=outcome, error=_text(rank.error), traceback=rank.traceback,
        )  # fmt: skip

    # -- operations of the compute stream ------------------------------------------------------------------------------

    def enqueued(self, host: Host, op: Operation) -> None:
        """See :class:`Listener`: of plugins that follow kernels. Values that come later are in the executor by now."""
        number = self._launches
        self._launches += 1
        if tell := self._listened("kernel_launched"):
            self._tell(tell, _kernel(op, number))
        if self._listened("kernel_completed"):
            self._running[op] = number
            op.when_resolved(partial(self.settled, op))

    def settled(self, op: Operation) -> None:
        """The times of an operation, or its values, are there. When both are, it has completed."""
        if op.done and op in self._running:
            number = self._running.pop(op)
            if tell := self._listened("kernel_completed"):
                self._tell(tell, _kernel(op, number))

    # -- collectives ---------------------------------------------------------------------------------------------------

    def collective_enqueued(
        self,
        group: str,
        sequence: int,
        signature: Signature,
        op: Operation,
        location: Location,
        peer: int | None = None,
    ) -> None:
        """A rank has called a collective, or one side of a message."""
        if tell := self._listened("collective_enqueued"):
            ranks = () if op.rank is None else (op.rank,)
            self._tell(tell, _collective(
                signature, group=group, ranks=ranks, sequence=sequence, nbytes=op.nbytes, start=op.enqueue,
                location=str(location), peer=peer,
            ))  # fmt: skip

    def collective_matched(
        self, collective: Collective, arrivals: Sequence[Arrival], algorithm: str, steps: int
    ) -> None:
        """All members have come, and it is about to be handed to the engine."""
        matched, completed = self._listened("collective_matched"), self._listened("collective_completed")
        if matched is None and completed is None:
            return
        signature = collective.signature._replace(algorithm=algorithm)
        message = signature.op == "send"
        whole = partial(
            _collective, signature, group=collective.group.name, ranks=tuple(arrival.rank for arrival in arrivals),
            sequence=-1 if message else collective.sequence,
            nbytes=max((arrival.op.nbytes for arrival in arrivals), default=0),
            location=str(arrivals[0].location), steps=steps,
        )  # fmt: skip
        if matched:
            self._tell(matched, whole(start=max(arrival.op.enqueue for arrival in arrivals)))
        if completed:
            left = len(arrivals)

            def one_less() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    ops = [arrival.op for arrival in arrivals]
                    start = min(op.enqueue if op.start is None else op.start for op in ops)
                    end = max(op.enqueue if op.end is None else op.end for op in ops)
                    error = next((op.error for op in ops if op.error is not None), None)
                    self._tell(completed, whole(start=start, end=end, error=_text(error)))

            for arrival in arrivals:
                arrival.op.when_resolved(one_less)

    # -- what a program looks at, and how it ends ----------------------------------------------------------------------

    def host_read(self, tensor: torch.Tensor, name: str) -> None:
        """The program looks at a value."""
        if tell := self._listened("host_read"):
            me = self.hosts.current()
            self._tell(tell, HostReadEvent(
                rank=me.rank, name=name, time=me.clock, shape=tuple(tensor.shape), dtype=_dtype(tensor.dtype),
                nbytes=tensor.numel() * tensor.element_size(),
            ))  # fmt: skip

    def deadlock(self, report: str) -> None:
        """No rank can go on."""
        if tell := self._listened("deadlock_detected"):
            ranks = tuple(rank.index for rank in self.scheduler.ranks if rank.live)
            self._tell(tell, DeadlockEvent(ranks=ranks, time=self.engine.now, report=report))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _text(error: BaseException | None) -> str:
    return "" if error is None else reason(error)


def _kernel(op: Operation, number: int) -> KernelEvent:
    return KernelEvent(
        number=number, name=op.name, kind=op.kind, rank=op.rank, sip=op.sip, stream=op.stream, enqueue=op.enqueue,
        start=op.start, end=op.end, nbytes=op.nbytes, detail=dict(op.detail or {}), error=_text(op.error),
    )  # fmt: skip


def _collective(signature: Signature, **others: Any) -> CollectiveEvent:
    """An event of a call with this signature; ``others``: its other fields."""
    reduction = None if signature.reduction is None else spelled(signature.reduction)
    return CollectiveEvent(
        op=signature.op, shape=signature.shape, dtype=None if signature.dtype is None else _dtype(signature.dtype),
        reduction=reduction, root=signature.root, algorithm=signature.algorithm, **others,
    )  # fmt: skip
