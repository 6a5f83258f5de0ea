"""Matching: where the calls of the members of a group meet.

A collective is *posted* by each member. The first one's signature is what the others are held against, at once and before
any data moves; when all have arrived it is *matched*, handed to the engine, and its values are computed. Messages
(point-to-point) are matched by group, sender, receiver and tag, in the order in which each side posted them; a receive
from any source takes, of the messages that are there when nobody can run on, the one that was sent first in virtual time.

``ctx.distributed`` and the ``torch.distributed`` process group both post here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernbench.ccl.collectives import CollectiveRunner, Environ, Request, Splits, library_environ
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.registry import algorithm_module
from kernbench.cost.uncertainty import collective_spread
from kernbench.errors import CollectiveMismatchError, KernbenchError
from kernbench.runtime_api.groups import Arrival, Collective, ProcessGroup, Signature
from kernbench.runtime_api.history import History
from kernbench.runtime_api.kernel_collectives import KernelCollectives
from kernbench.runtime_api.locations import Location, user_location
from kernbench.runtime_api.rank_state import RankState
from kernbench.runtime_api.tensor import plain, storage_of
from kernbench.runtime_api.types import short_dtype
from kernbench.sim_engine.op_log import CollectiveTrace
from kernbench.sim_engine.operation import Operation

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


_PER_CELL = frozenset({"all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"})
"""Collectives whose signature describes one cell of the work buffer, of which there is one per member."""


@dataclass(eq=False, slots=True)
class Message:
    """One side of a point-to-point transfer that has been posted and has not met the other side.

    Attributes:
        group: where it was posted.
        rank: who posted it (a rank of the world).
        peer: the other side, None for a receive from any source.
        sends: whether this is the sending side.
    """

    group: ProcessGroup
    rank: int
    peer: int | None
    tag: int
    sends: bool
    tensor: torch.Tensor
    op: Operation
    location: Location
    after: Sequence[Operation]

    @property
    def signature(self) -> Signature:
        return Signature(
            "send" if self.sends else "recv", tuple(self.tensor.shape), self.tensor.dtype, None, None, "direct_send"
        )

    def __str__(self) -> str:
        other = "any source" if self.peer is None else f"rank {self.peer}"
        return f"{'send to' if self.sends else 'recv from'} {other} (tag {self.tag}) on {self.group.name}"


class Matcher:
    """The calls of one context that wait for other ranks' calls."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx
        self._runner = CollectiveRunner(ctx.topology, lambda name: ctx.ccl_config.select(name))
        self._kernels = KernelCollectives()
        self._sends: dict[tuple[int, int, int, int], deque[Message]] = {}
        self._receives: dict[tuple[int, int, int, int], deque[Message]] = {}
        self._any_source: list[Message] = []
        self._paired: list[tuple[Collective, list[Arrival], int]] = []
        self._markers: dict[Operation, Operation] = {}
        self.history = History()

    def reset(self) -> None:
        """Forget everything that waits."""
        self._sends.clear()
        self._receives.clear()
        self._any_source.clear()
        self._paired.clear()
        self._markers.clear()

    @property
    def messages(self) -> list[Message]:
        """The messages that wait for their other side, in the order in which they were posted."""
        found = [m for queue in (*self._sends.values(), *self._receives.values()) for m in queue] + self._any_source
        return sorted(found, key=lambda message: (message.op.enqueue, message.rank))

    # -- collectives -------------------------------------------------------------------------------------------------

    def post(
        self,
        group: ProcessGroup,
        signature: Signature,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        splits: tuple[int, ...] | None = None,
        given: Sequence[torch.Tensor] | None = None,
    ) -> Operation:
        """Post this rank's part of the next collective of ``group``; wait for the operation to have its result.

        Args:
            inputs, outputs: see :mod:`kernbench.ccl.movements`.
            splits: elements per cell, where they are not all alike.
            given: the tensors that the program gave, where ``inputs`` are pieces of them.

        Raises:
            KernbenchError: this rank is no member.
            CollectiveMismatchError: another member called something else; the others' operations fail too.
        """
        ctx = self._ctx
        me = ctx._me()
        rank = ctx.distributed._rank() if me.rank is None else me.rank
        if rank not in group.index:
            raise KernbenchError(
                f"rank {rank} called {signature.op} on {group.name}, of which it is not a member ({list(group.ranks)})"
            )
        if group.environ is None:
            group.environ = library_environ()  # as the library does, when the group is first used
        op = self._operation(me, signature.op, group.stream, inputs or outputs)
        after = me.before(me.stream)
        arrival = Arrival(rank, signature, inputs, outputs, op, user_location(), after, splits)
        collective, error = group.arrive(arrival)
        shapes = tuple([tuple(tensor.shape) for tensor in (inputs if given is None else given)])
        self.history.add(rank, group, collective.sequence, signature, op, arrival.location, shapes=shapes)
        if ctx.hooks is not None:
            ctx.hooks.collective_enqueued(group.name, collective.sequence, signature, op, arrival.location)
        if len(collective.arrivals) == 1 and error is None:
            ctx._pending_collectives.append(collective)
        ctx.engine.progress += 1
        if error is not None:
            if collective in ctx._pending_collectives:
                ctx._pending_collectives.remove(collective)
            for other in collective.arrivals.values():
                if other.op.error is None:
                    other.op.fail(CollectiveMismatchError(str(error)), me.clock)
                    ctx.executor.failed.append(other.op)
            op.fail(error, me.clock)
            raise error
        me.tails[group.stream] = op
        self._touch(me, op, inputs, outputs)
        return op

    def _operation(self, me: RankState, name: str, stream: str, payload: Sequence[torch.Tensor]) -> Operation:
        if self._ctx.observing:
            raise self._ctx._beside_the_program("communicate")
        if me.rank is not None and me.sip != self._ctx.sips[me.rank]:
            stream = f"{stream} of rank {me.rank}"  # it drives another rank's SIP: their collectives must not queue up
        me.clock += self._ctx.topology.device.launch.overhead
        op = Operation(name, "collective", rank=me.rank, sip=me.sip, stream=stream, enqueue=me.clock)
        nbytes = 0
        for tensor in payload:
            nbytes += tensor.numel() * tensor.element_size()
        op.nbytes = nbytes
        op.executed = False
        return op

    def values_of(self, op: Operation) -> Operation:
        """A timer that is done once the values of ``op``, posted here, are in place: when its members have arrived."""
        marker = Operation(f"values of {op.name}", "timer", rank=op.rank, sip=op.sip, stream="host", enqueue=op.enqueue)
        marker.resolve(op.enqueue, op.enqueue)
        marker.executed = False
        self._markers[op] = marker

        def ended() -> None:
            if op.error is not None and self._markers.pop(op, None) is not None:
                marker.fail(op.error, op.enqueue)
                self._ctx._ended_waits.append(marker)

        op.when_resolved(ended)
        return marker

    def awaited(self, op: Operation) -> Operation:
        """The operation whose values a timer of :meth:`values_of` stands for; else ``op`` itself."""
        return next((posted for posted, marker in self._markers.items() if marker is op), op)

    def _touch(
        self, me: RankState, op: Operation, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Note in ``op`` and in the storages which memory the collective reads and writes."""
        ctx = self._ctx
        if len(inputs) == len(outputs) == 1 and inputs[0] is outputs[0]:
            state = ctx.storages.adopt(inputs[0], me)
            state.last = op
            op.operands = (state.operand(inputs[0]),)
            return
        operands = []
        written = {id(tensor) for tensor in outputs}
        for tensor in inputs:
            state = ctx.storages.adopt(tensor, me)
            state.last = op
            operands.append(state.operand(tensor, "rw" if id(tensor) in written else "r"))
        read = {id(tensor) for tensor in inputs}
        for tensor in outputs:
            if id(tensor) not in read:
                state = ctx.storages.adopt(tensor, me)
                state.last = op
                operands.append(state.operand(tensor, "w"))
        op.operands = operands

    def give_up(self, op: Operation, error: BaseException, at: float) -> None:
        """Fail ``op``, which has waited too long: the others of its collective cannot complete it any more."""
        op.fail(error, at)
        for pending in list(self._ctx._pending_collectives):
            arrivals = pending.arrivals.values()
            if any(arrival.op is op for arrival in arrivals):
                if pending.error is None:
                    pending.error = CollectiveMismatchError(f"{pending} has timed out on rank {op.rank}: {error}")
                if all(arrival.op.done for arrival in arrivals):
                    self._ctx._pending_collectives.remove(pending)
        for table in (self._sends, self._receives):
            for key, queue in list(table.items()):
                kept = deque(message for message in queue if message.op is not op)
                if not kept:
                    del table[key]
                elif len(kept) < len(queue):
                    table[key] = kept
        self._any_source = [message for message in self._any_source if message.op is not op]

    def collective_of(self, op: Operation) -> Collective:
        """The collective that a pending operation, posted here, is a part of."""
        return next(
            collective
            for collective in self._ctx._pending_collectives
            if any(arrival.op is op for arrival in collective.arrivals.values())
        )

    def start_matched(self) -> bool:
        """In main, when nobody can run on: hand what has been matched to the engine; False if there is nothing."""
        pending = self._ctx._pending_collectives
        started = self._match_any_source()
        for item in list(self._paired):
            pair, arrivals, count = item
            if self._values_ready(arrivals):
                self._paired.remove(item)
                self._run(pair, arrivals, pair.signature.algorithm, count, 0, None)
                started = True
        for collective in list(pending):
            if collective.matched and not collective.started and self._values_ready(collective.arrivals.values()):
                collective.started = True
                self._start(collective)
                started = True
        ended = len(pending)
        pending[:] = [collective for collective in pending if not collective.complete]
        return started or len(pending) < ended

    def _values_ready(self, arrivals: Iterable[Arrival]) -> bool:
        """Whether nothing that is still to run, or suspended, may write what these read or write."""
        executor = self._ctx.executor
        if not len(executor):
            return True
        executor.flush(self._ctx.engine.now)
        tensors = (tensor for arrival in arrivals for tensor in (*arrival.inputs, *arrival.outputs))
        return not executor.touches_any(id(storage_of(tensor)) for tensor in tensors)

    def _start(self, collective: Collective) -> None:
        arrivals = [collective.arrivals[rank] for rank in collective.group.ranks]
        try:
            splits = _splits(collective, arrivals)
        except CollectiveMismatchError as error:
            for arrival in arrivals:
                arrival.op.fail(CollectiveMismatchError(str(error)), self._ctx.engine.now)
            collective.error = error
            self._ctx._pending_collectives.remove(collective)
            return
        signature = collective.signature
        reference = next(iter((*arrivals[0].inputs, *arrivals[0].outputs)), None)
        count = 1 if reference is None else reference.numel()  # a barrier passes a token
        if signature.op in ("all_reduce", "all_gather"):
            count = sum(tensor.numel() for tensor in arrivals[0].inputs)
        if signature.op in _PER_CELL:
            count *= len(arrivals) * (2 if signature.op == "all_to_all" else 1)
        root = None if signature.root is None else collective.group.index[signature.root]
        self._run(collective, arrivals, signature.algorithm, count, root, splits)

    def _run(
        self,
        collective: Collective,
        arrivals: Sequence[Arrival],
        algorithm: str,
        count: int,
        root: int | None,
        splits: Splits | None,
    ) -> None:
        ctx = self._ctx
        try:
            request = self._prepare(collective, arrivals, algorithm, count, root, splits)
        except Exception as error:  # the members' own mistake, e.g. a ccl.yaml that names a wrong algorithm
            for arrival in arrivals:
                own = type(error)(*error.args) if isinstance(error, KernbenchError) else error
                arrival.op.fail(own, arrival.op.enqueue)
                ctx.executor.failed.append(arrival.op)
            if collective in ctx._pending_collectives:
                ctx._pending_collectives.remove(collective)
            return
        detail = {
            "op": collective.signature.op,
            "group": collective.group.name,
            "sequence": collective.sequence,
            **request.described,
            "payload": max((arrival.op.nbytes for arrival in arrivals), default=0),
        }
        nodes = len({ctx.topology.node_of(arrival.op.sip) for arrival in arrivals}) if ctx.topology.nodes > 1 else 1
        spread = collective_spread(nodes, max((arrival.op.nbytes for arrival in arrivals), default=0))
        for arrival in arrivals:
            op = arrival.op
            op.detail = detail if op.detail is None else {**op.detail, **detail}
            op.when_resolved(collective.member_ended)
            op.executed, op.spread = True, spread
            marker = self._markers.pop(op, None)
            if marker is not None:
                marker.executed = True
                ctx._ended_waits.append(marker)
        if ctx.hooks is not None:
            ctx.hooks.collective_matched(collective, arrivals, request.config.name, len(request.plan))
        run = ctx.engine.submit_collective(
            request.plan, [arrival.op for arrival in arrivals], [arrival.after for arrival in arrivals]
        )
        for arrival in arrivals:
            arrival.inputs = arrival.outputs = ()  # the log must not keep the tensors alive
        ctx.engine.op_log.collectives.append(
            CollectiveTrace(
                name=str(collective),
                run=run,
                ranks=[arrival.rank for arrival in arrivals],
                sips=[arrival.op.sip for arrival in arrivals],
                buffer_kind=request.config.buffer_kind,
                addresses=[arrival.op.operands[-1].address if arrival.op.operands else 0 for arrival in arrivals],
                cell_offsets=request.cell_offsets,
                detail=detail,
            )
        )

    def _prepare(
        self,
        collective: Collective,
        arrivals: Sequence[Arrival],
        algorithm: str,
        count: int,
        root: int | None,
        splits: Splits | None,
    ) -> Request:
        """Plan a matched collective, and move its values."""
        ctx = self._ctx
        signature = collective.signature
        request = self._request(
            signature.op, algorithm, tuple(arrival.op.sip for arrival in arrivals), root, count,
            signature.dtype or torch.int32, splits, collective.group.environ or (), signature.reduction,
        )  # fmt: skip
        if ctx.enable_data:
            inputs = [[plain(tensor) for tensor in arrival.inputs] for arrival in arrivals]
            outputs = [[plain(tensor) for tensor in arrival.outputs] for arrival in arrivals]
            reduction = ReduceOp(collective.signature.reduction) if collective.signature.reduction else None
            module = algorithm_module(request.config.module)
            if hasattr(module, "run"):
                ranks = tuple(arrival.rank for arrival in arrivals)
                self._kernels.run(module, ranks, inputs, outputs, reduction, root)
            else:
                self._runner.move(request, inputs, outputs, reduction)
        return request

    def _request(
        self,
        op: str,
        algorithm: str,
        sips: tuple[int, ...],
        root: int | None,
        count: int,
        dtype: torch.dtype,
        splits: Splits | None,
        environ: Environ,
        reduction: str | None,
    ) -> Request:
        config = self._ctx.ccl_config
        return self._runner.request(
            op=op, config=config.select(algorithm), sips=sips, root=root, count=count, itemsize=dtype.itemsize,
            dtype=short_dtype(dtype), splits=splits, environ=environ, fidelity=config.fidelity, reduction=reduction,
        )  # fmt: skip

    def request_for(
        self, op: str, count: int, dtype: torch.dtype, group: ProcessGroup, root: int | None = None
    ) -> Request:
        """What a collective of ``group`` would be, with the algorithm that is set for it."""
        ctx = self._ctx
        sips = tuple(ctx._ranks[rank].sip for rank in group.ranks)
        return self._request(
            op, ctx.ccl_config.algorithm_for(op), sips, root, count, dtype, None, group.environ or (), None
        )

    # -- messages ----------------------------------------------------------------------------------------------------

    def post_message(
        self, group: ProcessGroup, tensor: torch.Tensor, *, peer: int | None, tag: int, sends: bool
    ) -> Operation:
        """Post one side of a message between this rank and ``peer`` (a rank of the world; None: any source).

        Raises :class:`CollectiveMismatchError` if the other side has another dtype or number of elements.
        """
        ctx = self._ctx
        me = ctx._me()
        rank = ctx.distributed._rank()
        other = "any" if peer is None else peer
        stream = f"send {rank}->{other}" if sends else f"recv {other}->{rank}"
        op = self._operation(me, "send" if sends else "recv", stream, (tensor,))
        after = me.before(me.stream)
        message = Message(group, rank, peer, tag, sends, tensor, op, user_location(), after)
        self._touch(me, op, (tensor,) if sends else (), () if sends else (tensor,))
        self.history.add(
            rank, group, -1, message.signature, op, message.location, peer=peer, shapes=(tuple(tensor.shape),)
        )
        if ctx.hooks is not None:
            ctx.hooks.collective_enqueued(group.name, -1, message.signature, op, message.location, peer)
        ctx.engine.progress += 1
        if peer is None:
            self._any_source.append(message)
            return op
        key = (id(group), rank, peer, tag) if sends else (id(group), peer, rank, tag)
        mine, theirs = (self._sends, self._receives) if sends else (self._receives, self._sends)
        waiting = theirs.get(key)
        if waiting:
            found = waiting.popleft()
            if not waiting:
                del theirs[key]
            self._pair(*((message, found) if sends else (found, message)))
            if op.error is not None:
                op.observed = True
                raise op.error
        else:
            mine.setdefault(key, deque()).append(message)
        return op

    def _match_any_source(self) -> bool:
        matched = False
        for receive in list(self._any_source):
            sends = [
                queue[0]
                for (group, _, receiver, tag), queue in self._sends.items()
                if group == id(receive.group) and receiver == receive.rank and tag == receive.tag
            ]
            if not sends:
                continue
            send = min(sends, key=lambda message: (message.op.enqueue, message.rank))
            self._any_source.remove(receive)
            queue = self._sends[id(send.group), send.rank, receive.rank, send.tag]
            queue.popleft()
            if not queue:
                del self._sends[id(send.group), send.rank, receive.rank, send.tag]
            receive.op.detail = {"source": send.rank}
            self._pair(send, receive)
            matched = True
        return matched

    def _pair(self, send: Message, receive: Message) -> None:
        """Both sides of a message are there: check them, and let it go its way as a collective of two."""
        ctx = self._ctx
        if send.tensor.numel() != receive.tensor.numel() or send.tensor.dtype != receive.tensor.dtype:
            text = (
                f"a message from rank {send.rank} to rank {receive.rank} (tag {send.tag}, {send.group.name}) does not "
                f"match:\n  rank {send.rank}: {send.signature} at {send.location}\n"
                f"  rank {receive.rank}: {receive.signature} at {receive.location}\n"
                "No data has moved. Both sides must have the same dtype and number of elements."
            )
            for side in (send, receive):
                side.op.fail(CollectiveMismatchError(text), ctx._me().clock)
            return
        pair = ProcessGroup(f"{send.rank} -> {receive.rank} of {send.group.name}", (send.rank, receive.rank))
        signature = send.signature
        collective = Collective(pair, 0, signature, started=True)
        arrivals = [
            Arrival(send.rank, signature, (send.tensor,), (), send.op, send.location, send.after),
            Arrival(receive.rank, signature, (), (receive.tensor,), receive.op, receive.location, receive.after),
        ]
        collective.arrivals = dict(enumerate(arrivals))
        self._paired.append((collective, arrivals, send.tensor.numel()))

    def forget_unmatched(self) -> None:
        """Drop what can never be matched."""
        pending = self._ctx._pending_collectives
        pending[:] = [collective for collective in pending if collective.matched]
        self.reset()


def _splits(collective: Collective, arrivals: Sequence[Arrival]) -> Splits | None:
    """The lengths of the cells where they are not all alike. Raises :class:`CollectiveMismatchError` if sides differ."""
    if collective.signature.op != "all_to_all":
        return arrivals[0].splits
    sent = [[tensor.numel() for tensor in arrival.inputs] for arrival in arrivals]
    for receiver, arrival in enumerate(arrivals):
        for sender, tensor in enumerate(arrival.outputs):
            if tensor.numel() != sent[sender][receiver]:
                other = arrivals[sender]
                raise CollectiveMismatchError(
                    f"{collective}: rank {other.rank} sends {sent[sender][receiver]} elements to rank {arrival.rank}, "
                    f"which expects {tensor.numel()}:\n"
                    f"  rank {other.rank}: sends {sent[sender]} at {other.location}\n"
                    f"  rank {arrival.rank}: expects {[t.numel() for t in arrival.outputs]} at {arrival.location}\n"
                    "No data has moved. Element j of one rank's input splits is element i of rank j's output splits."
                )
    if all(size == sent[0][0] for row in sent for size in row):
        return None
    return tuple(tuple(row) + (0,) * len(row) for row in sent)
