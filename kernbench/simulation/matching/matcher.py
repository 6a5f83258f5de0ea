"""Matching: where the calls of the members of a group meet.

A collective is *posted* by each member. The first one's signature is what the others are held against, at once and before
any data moves; when all have arrived it is *matched*, handed to the engine, and its values are computed. Messages have a
:class:`~kernbench.runtime_api.messages.Mailbox`.

Every process group posts here, regardless of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from kernbench.ccl.collectives import Splits, library_environ
from kernbench.collective_kinds import KINDS
from kernbench.errors import CollectiveMismatchError, KernbenchError
from kernbench.sim_engine import DataExecutor, GraphEngine, Operation
from kernbench.sim_engine.interference import NO_LOAD, Load, load
from kernbench.simulation.launches.streams import Streams
from kernbench.simulation.matching.collective_runs import CollectiveRuns
from kernbench.simulation.matching.groups import Arrival, CallPlan, Collective, Signature
from kernbench.simulation.matching.history import History
from kernbench.simulation.matching.hooks import RunHooks
from kernbench.simulation.matching.message_runs import MessageRuns
from kernbench.simulation.matching.messages import Mailbox
from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.values.collective_cells import wholes

Shapes = tuple[tuple[int, ...], ...]


def shapes_given(signature: Signature, tensors: Sequence[torch.Tensor]) -> Shapes | None:
    """What the history notes of the tensors that a program gave; None: it is one, of the signature's shape."""
    if len(tensors) == 1 and tensors[0].shape == signature.shape:
        return None
    return tuple([tuple(tensor.shape) for tensor in tensors])


@dataclass(eq=False, repr=False)
class Matcher:
    """The calls of one simulation's ranks that wait for other ranks' calls.

    Attributes:
        pending: collectives that have been posted and have not ended.
        posted: how many have been posted so far.
        history: the last calls of each rank.
        mailbox: point-to-point messages.
        messages: runs those that have met.
        runs: starts what has been matched.
    """

    engine: GraphEngine
    hosts: Hosts
    streams: Streams
    executor: DataExecutor
    runs: CollectiveRuns
    hooks: RunHooks | None

    def __post_init__(self) -> None:
        self.pending: list[Collective] = []
        self._matched: list[Collective] = []  # of these, in which all have arrived and which has not been started
        self.posted = 0
        self.history = History()
        self.mailbox = Mailbox(self.engine, self.hosts, self.streams, self.history, self.hooks)
        self.messages = MessageRuns(
            self.engine, self.hosts, self.runs, self.mailbox, self._values_ready,
            lambda pair: self._run(pair.collective, pair.arrivals, pair.count, 0, None),
        )  # fmt: skip

    def clear(self) -> None:
        """Forget what has been posted."""
        self.pending.clear()
        self._matched.clear()

    def reset(self) -> None:
        """Forget everything that waits."""
        self.mailbox.clear()
        self.messages.clear()
        self.runs.clear()

    def post(
        self,
        me: Host,
        plan: CallPlan,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        splits: tuple[int, ...] | None = None,
        given: Sequence[torch.Tensor] | None = None,
    ) -> Operation:
        """Post this rank's part of the next collective of a group; wait for the operation to have its result.

        Args:
            me: the host that runs.
            plan: of the call.
            inputs, outputs: see :mod:`kernbench.ccl.movements`.
            splits: elements per cell, where they are not all alike.
            given: the tensors that the program gave, where ``inputs`` are pieces of them.

        Raises:
            KernbenchError: this rank is no member.
            CollectiveMismatchError: another member called something else; the others' operations fail too.
        """
        op = self.enqueue(me, plan, inputs or outputs)
        rank, signature = me.rank, plan.signature
        assert rank is not None
        arrival = Arrival(rank, signature, inputs, outputs, op, user_location(), me.before(me.stream), splits)
        self.admit(me, plan, arrival, shapes_given(signature, inputs if given is None else given))
        self.streams.touch(me, op, inputs, outputs)
        return op

    def enqueue(self, me: Host, plan: CallPlan, payload: Sequence[torch.Tensor]) -> Operation:
        """Put a member's call on the group's stream. Raises :class:`KernbenchError` if ``me`` is no member."""
        rank, group = me.rank, plan.group
        if rank is None:
            raise KernbenchError("this is for ranks: call it inside the function given to ctx.multiprocessing.spawn")
        if rank not in group.index:
            raise KernbenchError(
                f"rank {rank} called {plan.signature.op} on {group.name}, of which it is not a member ({list(group.ranks)})"
            )
        if group.environ is None:
            group.environ = library_environ()  # as the library does, when the group is first used
        return self.streams.post(me, plan.signature.op, group.stream, payload)

    def admit(self, me: Host, plan: CallPlan, arrival: Arrival, shapes: Shapes | None) -> None:
        """A member's call has come, whose operation has been made; ``shapes``: of what the program gave, for the history.

        Raises :class:`CollectiveMismatchError` as :meth:`post` does.
        """
        rank, op, group, signature = arrival.rank, arrival.op, plan.group, plan.signature
        collective, error = group.arrive(arrival)
        self.history.add(rank, group, collective.sequence, signature, op, arrival.location, None, shapes)
        if self.hooks is not None:
            self.hooks.collective_enqueued(group.name, collective.sequence, signature, op, arrival.location)
        self.engine.progress += 1
        self.engine.reserve(op)
        begins = not group.made
        if begins:
            group.join(rank)
        if error is not None:
            self._forget(collective)
            for other in collective.arrivals.values():
                if other.op.error is None:
                    other.op.fail(error.again(), me.clock)
                    self.executor.failed.append(other.op)
            op.fail(error, me.clock)
            raise error
        there = len(collective.arrivals)
        if there == 1:
            collective.number = self.posted
            self.posted += 1
            self.pending.append(collective)
        if there == group.expected:
            self._matched.append(collective)
        me.tails[op.stream] = op
        if arrival.splits is None:
            count = plan.elements(arrival.inputs or arrival.outputs)
            load = plan.loads.get(count) or self._load(plan, count, (*wholes(arrival.inputs), *wholes(arrival.outputs)))
            if load is not NO_LOAD:
                self.engine.interference.expect(op, arrival.after, load)
                if begins:
                    self.mailbox.first.called_by_all(group, rank, group.ranks, arrival.location)

    def _load(self, plan: CallPlan, count: int, tensors: Sequence[torch.Tensor]) -> Load:
        """What a collective is expected to take from the kernels beside it; nothing where no library runs it as a kernel."""
        found = plan.loads[count] = self._find_load(plan, count, tensors)
        return found

    def _find_load(self, plan: CallPlan, count: int, tensors: Sequence[torch.Tensor]) -> Load:
        try:
            request = self.runs.expected(plan.signature, count, plan.group)
        except Exception:
            return NO_LOAD  # what is wrong is reported when it starts
        if not request.channels:
            return NO_LOAD
        touched = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        device = self.engine.topology.device
        return load(
            request.seconds,
            channels=request.channels,
            pes=device.pes,
            traffic=touched,
            bandwidth=device.hbm_copy_bandwidth,
        )

    def _forget(self, collective: Collective) -> None:
        for kept in (self.pending, self._matched):
            if collective in kept:
                kept.remove(collective)

    def give_up(self, op: Operation, error: BaseException, at: float) -> None:
        """Fail ``op``, which has waited too long: the others of its collective cannot complete it any more."""
        op.fail(error, at)
        for pending in list(self.pending):
            arrivals = pending.arrivals.values()
            if any(arrival.op is op for arrival in arrivals):
                if pending.error is None:
                    pending.error = CollectiveMismatchError(f"{pending} has timed out on rank {op.rank}: {error}")
                if all(arrival.op.done for arrival in arrivals):
                    self.pending.remove(pending)
        self.mailbox.give_up(op)

    def collective_of(self, op: Operation) -> Collective:
        """The collective that a pending operation, posted here, is a part of."""
        return next(
            collective
            for collective in self.pending
            if any(arrival.op is op for arrival in collective.arrivals.values())
        )

    def start_matched(self) -> bool:
        """In main, when no rank can run on: hand what has been matched to the engine; False if there is nothing."""
        started = self.messages.start()
        if self._matched:
            matched, self._matched = sorted(self._matched, key=lambda collective: collective.number), []
            for collective in matched:
                if self._values_ready(collective.arrivals.values()):
                    collective.started = True
                    self._start(collective)
                    started = True
                else:
                    self._matched.append(collective)
        return self._drop_complete() or started

    def _drop_complete(self) -> bool:
        """Forget collectives that have ended; False if there is none. They end nearly in the order in which they were posted:
        all are searched only when nothing is in flight."""
        pending, ended = self.pending, 0
        while ended < len(pending) and pending[ended].complete:
            ended += 1
        if ended:
            del pending[:ended]
        elif pending and self.engine.next_event is None:
            kept = [collective for collective in pending if not collective.complete]
            ended = len(pending) - len(kept)
            pending[:] = kept
        return ended > 0

    def _values_ready(self, arrivals: Iterable[Arrival]) -> bool:
        """Whether nothing that is still to run, or suspended, may write what these read or write."""
        executor = self.executor
        if not len(executor):
            return True
        executor.flush(self.engine.now)
        tensors = (tensor for arrival in arrivals for tensor in (*wholes(arrival.inputs), *wholes(arrival.outputs)))
        return not executor.touches_any(id(storage_of(tensor)) for tensor in tensors)

    def _start(self, collective: Collective) -> None:
        group = collective.group
        arrivals = list(map(collective.arrivals.__getitem__, group.players or group.ranks))
        try:
            splits = _splits(collective, arrivals)
        except CollectiveMismatchError as error:
            for arrival in arrivals:
                arrival.op.fail(error.again(), self.engine.now)
            collective.error = error
            self._forget(collective)
            return
        signature = collective.signature
        count = group.plan(signature).elements(arrivals[0].inputs or arrivals[0].outputs)
        root = None if signature.root is None else collective.group.index[signature.root]
        self._run(collective, arrivals, count, root, splits)

    def _run(
        self, collective: Collective, arrivals: Sequence[Arrival], count: int, root: int | None, splits: Splits | None
    ) -> None:
        """Start it; what is wrong with it is its members' own mistake, e.g. a ccl.yaml that names a wrong algorithm."""
        try:
            self.runs.start(collective, arrivals, count, root, splits)
        except Exception as error:
            for arrival in arrivals:
                own = type(error)(*error.args) if isinstance(error, KernbenchError) else error
                arrival.op.fail(own, arrival.op.enqueue)
                self.executor.failed.append(arrival.op)
            self._forget(collective)

    def forget_unmatched(self) -> None:
        """Drop what can never be matched."""
        self.pending[:] = [collective for collective in self.pending if collective.matched]
        self.reset()

    def unmatched_ranks(self) -> set[int]:
        """The ranks that have called a collective which others have not."""
        return {rank for collective in self.pending if not collective.matched for rank in collective.arrivals}


def _splits(collective: Collective, arrivals: Sequence[Arrival]) -> Splits | None:
    """The lengths of the cells where they are not all alike. Raises :class:`CollectiveMismatchError` if sides differ."""
    if not KINDS[collective.signature.op].exchanges:
        return arrivals[0].splits
    sent = [[tensor.numel() for tensor in arrival.inputs] for arrival in arrivals]
    for receiver, arrival in enumerate(arrivals):
        for sender, tensor in enumerate(() if collective.group.players else arrival.outputs):
            if tensor.numel() != sent[sender][receiver]:
                other = arrivals[sender]
                expected = [each.numel() for each in arrival.outputs]
                called = {"operation": collective.signature.op}
                raise CollectiveMismatchError.between(
                    f"{collective}: rank {other.rank} sends {sent[sender][receiver]} elements to rank {arrival.rank}, "
                    f"which expects {tensor.numel()}:\n"
                    f"  rank {other.rank}: sends {sent[sender]} at {other.location}\n"
                    f"  rank {arrival.rank}: expects {expected} at {arrival.location}\n"
                    "No data has moved. Element j of one rank's input splits is element i of rank j's output splits.",
                    collective.group.name,
                    collective.sequence,
                    {
                        other.rank: {**called, "sends": str(sent[sender]), "at": str(other.location)},
                        arrival.rank: {**called, "expects": str(expected), "at": str(arrival.location)},
                    },
                )
    if all(size == sent[0][0] for row in sent for size in row):
        return None
    return tuple(tuple(row) + (0,) * len(row) for row in sent)
