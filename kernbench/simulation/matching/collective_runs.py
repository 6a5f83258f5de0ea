"""Running what has been matched: a plan for the engine, the values, and the callbacks once they are in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch

from kernbench.ccl.collectives import CollectiveRunner, Environ, Request, Splits, shared_runner
from kernbench.ccl.config import CclConfig
from kernbench.ccl.movements import move_among
from kernbench.ccl.reduce_op import Reduction, reduction_named
from kernbench.ccl.registry import algorithm_module
from kernbench.collective_kinds import KINDS
from kernbench.cost.peer_access import FEW_BLOCKS
from kernbench.cost.uncertainty import collective_spread
from kernbench.errors import KernbenchError
from kernbench.order import met
from kernbench.sim_engine import Condition, GraphEngine, Operation
from kernbench.sim_engine.engine import Seats
from kernbench.sim_engine.op_log import CollectiveTrace
from kernbench.sim_engine.plan_run import PlanRun
from kernbench.simulation.launches.kernel_collectives import KernelCollectives
from kernbench.simulation.matching.groups import Arrival, Collective, Communicator, Signature
from kernbench.simulation.matching.hooks import RunHooks
from kernbench.simulation.memory.storages import StorageTable
from kernbench.simulation.memory.tensor_queries import plain, short_dtype
from kernbench.simulation.order.weak_memory import as_before
from kernbench.simulation.ranks.folding import MOST_STEPPED
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.time.wait_queue import Awaited
from kernbench.simulation.values.collective_cells import Cells, wholes
from kernbench.simulation.values.collective_values import (
    Brought,
    Effect,
    all_have_bytes,
    brought_by,
    not_moved,
    note,
    that_matter,
)


@dataclass(eq=False, repr=False)
class CollectiveRuns:
    """Starts the collectives of one simulation.

    Args:
        engine: gets the plans.
        hosts: which SIPs ranks drive.
        storages: which tensors are on SIPs: where no values are computed, those of the host still are.
        config: reads the collective configuration.
        paused: nothing that torch computes is recorded, for the length of a block.
        hooks: receive what has been matched.

    Attributes:
        watch: receives each collective whose values have been moved, while nothing is recorded; None: no listener.
    """

    engine: GraphEngine
    hosts: Hosts
    storages: StorageTable
    config: Callable[[], CclConfig]
    paused: Callable[[], AbstractContextManager[None]]
    hooks: RunHooks | None

    def __post_init__(self) -> None:
        self._kernels = KernelCollectives()
        self._awaited: dict[Operation, Condition] = {}
        self.watch: Callable[[Collective, Sequence[Arrival]], None] | None = None
        self._request = lru_cache(maxsize=256)(self._find_request)  # a training step repeats the same collectives

    def clear(self) -> None:
        """Forget the waiters for values."""
        self._awaited.clear()

    def start(
        self,
        collective: Collective,
        arrivals: Sequence[Arrival],
        count: int,
        root: int | None,
        splits: Splits | None,
    ) -> None:
        """Move the values of a collective whose members have all arrived, and hand its plan to the engine.

        Args:
            count: elements of the work buffer.
            root: number of the root in the group.
            splits: elements per cell, where they are not all alike.
        """
        running = arrivals if collective.group.players is None else list(dict.fromkeys(arrivals))
        sips = self._sips(collective, arrivals)
        request = self._prepare(collective, arrivals, sips, count, root, splits)
        if self.hosts.order is not None:
            self._meet(collective, running)
        parts = [arrival.op for arrival in running]
        detail = self._describe(collective, request, parts, sips)
        if self.hooks is not None:
            self.hooks.collective_matched(collective, arrivals, request.config.name, len(request.plan))
        run = collective.run = self.engine.submit_collective(
            request.plan, parts, [arrival.after for arrival in running], _seats(collective, arrivals, running)
        )
        for arrival in arrivals:
            arrival.inputs = arrival.outputs = ()  # the log must not keep the tensors alive
        members = parts if running is arrivals else [arrival.op for arrival in arrivals]
        self._log(collective, request, run, sips, members, detail)

    def _meet(self, collective: Collective, arrivals: Sequence[Arrival]) -> None:
        """What is before the ends of its members, in the order of events."""
        sender = 0 if collective.signature.op == "send" else None
        met([getattr(arrival.op, "moment", None) for arrival in arrivals], sender=sender)

    def _describe(
        self, collective: Collective, request: Request, parts: Sequence[Operation], sips: Sequence[int]
    ) -> dict[str, object]:
        """Note in operations of a collective what it is, and that their values are there."""
        topology = self.engine.topology
        payload = max([op.nbytes for op in parts], default=0)
        detail = {
            "op": collective.signature.op,
            "group": collective.group.name,
            "sequence": collective.sequence,
            **request.described,
            "payload": payload,
        }
        nodes = len(set(map(topology.node_of, sips))) if topology.nodes > 1 else 1
        spread = collective_spread(nodes, payload)
        for op in parts:
            op.detail = detail if op.detail is None else {**op.detail, **detail}
            op.executed, op.spread = True, spread
        for op in parts if self._awaited else ():
            there = self._awaited.pop(op, None)
            if there is not None:
                there.fulfil()
        return detail

    def _log(
        self,
        collective: Collective,
        request: Request,
        run: PlanRun,
        sips: Sequence[int],
        parts: Sequence[Operation | None],
        detail: dict[str, object],
    ) -> None:
        """``parts``: each member's, None of one that is to come."""
        addresses = tuple([part.operands[-1].address if part is not None and part.operands else 0 for part in parts])
        self.engine.op_log.collectives.append(
            CollectiveTrace(
                run, collective.group.ranks, sips, request.config.buffer_kind, addresses,
                request.chunk_offsets, detail,
            )
        )  # fmt: skip

    # -- messages that go ahead into the receiver's buffer -----------------------------------------------------------

    def taken(self, arrival: Arrival) -> tuple[torch.Tensor, Brought | None]:
        """What a message brings, as it is now: its sender may change the memory before the receiver comes."""
        (tensor,) = arrival.inputs
        with self.paused(), self._as_read((arrival,)):
            brought = arrival.brought
            if not self.engine.enable_data:
                brought = brought or brought_by(self.storages, arrival.inputs, ())
                brought.effect = Effect(brought.has_bytes, unknown=brought.unknown)
                if not brought.has_bytes:
                    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), brought
            return _values_of(arrival)[0][0].detach().clone(), brought

    def send_ahead(self, collective: Collective, arrival: Arrival, receiver: int, count: int) -> Operation:
        """Hand the sending side of a message to the engine: it does not wait for the receiver.

        Returns an operation that ends when all is in the receiver's buffer.
        """
        sips = (arrival.op.sip, self.hosts.sip_of(receiver))
        request = self._message(collective, sips, count)
        arrived = Operation("arrival", "timer", receiver, sips[1], "", arrival.op.enqueue)
        detail = self._describe(collective, request, [arrival.op], sips)
        run = self.engine.submit_collective(
            request.plan,
            [arrival.op],
            [arrival.after],
            Seats((0,), (0, 0)),
            lambda member, time: arrived.resolve(time, time),
        )
        self._log(collective, request, run, sips, [arrival.op, None], detail)
        return arrived

    def take(
        self, collective: Collective, arrivals: Sequence[Arrival], count: int, arrived: Operation, seconds: float
    ) -> None:
        """Hand the receiving side of such a message to the engine, and move its values; it copies for ``seconds``."""
        sips = (arrivals[0].op.sip, arrivals[1].op.sip)
        request = self._message(collective, sips, count)
        self._move_values(collective, request, arrivals, 0, None)
        if self.hosts.order is not None:
            self._meet(collective, arrivals)
        self._describe(collective, request, [arrivals[1].op], sips)
        if self.hooks is not None:
            self.hooks.collective_matched(collective, arrivals, request.config.name, len(request.plan))
        self.engine.submit_arrival(arrivals[1].op, arrived, seconds, after=arrivals[1].after)
        for arrival in arrivals:
            arrival.inputs = arrival.outputs = ()

    def _message(self, collective: Collective, sips: tuple[int, ...], count: int) -> Request:
        signature = collective.signature
        return self._request(
            signature.op, signature.algorithm, sips, 0, count, signature.dtype or torch.int32, None,
            collective.group.environ or (), None, False,
        )  # fmt: skip

    def _prepare(
        self,
        collective: Collective,
        arrivals: Sequence[Arrival],
        sips: tuple[int, ...],
        count: int,
        root: int | None,
        splits: Splits | None,
    ) -> Request:
        """Plan a matched collective, and move its values."""
        signature = collective.signature
        request = self._request(
            signature.op, signature.algorithm, sips, root, count,
            signature.dtype or torch.int32, splits, collective.group.environ or (), signature.reduction,
            collective.group.players is not None, signature.blocks,
        )  # fmt: skip
        reduction = reduction_named(signature.reduction) if signature.reduction else None
        self._move_values(collective, request, arrivals, root, reduction)
        return request

    def _move_values(
        self,
        collective: Collective,
        request: Request,
        arrivals: Sequence[Arrival],
        root: int | None,
        reduction: Reduction | None,
    ) -> None:
        with self.paused(), self._as_read(arrivals):
            if collective.group.players is not None:
                self._move_folded(collective.group, arrivals, root, reduction)
            elif self.engine.enable_data:
                self._move(request, arrivals, root, reduction)
            else:
                self._move_known(request, arrivals, root, reduction)
            if self.watch is not None:
                self.watch(collective, arrivals)

    def _as_read(self, arrivals: Sequence[Arrival]) -> AbstractContextManager[None]:
        """For the length of a block, memory is as the members see it, where that is weak."""
        weak = None if self.hosts.order is None else self.hosts.order.weak
        older = [] if weak is None else [view for each in arrivals for view in weak.reading.pop(each.op, ())]
        return as_before(older, [tensor for each in arrivals for tensor in each.outputs]) if older else nullcontext()

    def _sips(self, collective: Collective, arrivals: Sequence[Arrival]) -> tuple[int, ...]:
        """The members' SIPs, also of those that do not run."""
        group = collective.group
        if group.players is None:
            sips = tuple([arrival.op.sip for arrival in arrivals])
            if sips != group.sips:
                group.sips = sips
            return group.sips  # the same object for all that a log keeps
        return tuple(map(self.hosts.sip_of, collective.group.ranks))

    def _move_known(
        self, request: Request, arrivals: Sequence[Arrival], root: int | None, reduction: Reduction | None
    ) -> None:
        """Move values if all members have them, and note what is assumed."""
        members = self._brought(arrivals)
        if all_have_bytes(members):
            effect = Effect(True, unknown=any(member.unknown for member in members))
            self._move(request, arrivals, root, reduction)
        else:
            effect = not_moved(members, reduces=reduction is not None)
        self._note(arrivals, effect)

    def _move_folded(
        self, group: Communicator, arrivals: Sequence[Arrival], root: int | None, reduction: Reduction | None
    ) -> None:
        """Move values among members some of whom do not run, and bring what their representatives bring: that is assumed."""
        running = list(dict.fromkeys(arrivals))
        kind = KINDS[arrivals[0].signature.op]
        brings_nothing = kind.root == "gives" and root is not None and arrivals[root].rank != group.ranks[root]
        members = self._brought(running)
        if brings_nothing or not all_have_bytes(members):
            return self._note(running, not_moved(members, reduces=reduction is not None))
        op = arrivals[0].signature.op
        unknown = kind.root != "gives" or any(member.unknown for member in members)
        tensors = {id(arrival): _values_of(arrival) for arrival in running}
        brought = [tensors[id(arrival)][0] for arrival in arrivals]
        receivers = {group.index[arrival.rank]: tensors[id(arrival)][1] for arrival in running}
        move_among(op, brought, receivers, reduction, root)
        return self._note(running, Effect(True, unknown=unknown))

    def _brought(self, arrivals: Sequence[Arrival]) -> list[Brought]:
        return [each.brought or brought_by(self.storages, _that_matter(each), each.outputs) for each in arrivals]

    def _note(self, arrivals: Sequence[Arrival], effect: Effect) -> None:
        for arrival in arrivals:
            if arrival.brought is None:
                note(self.storages, arrival.inputs, arrival.outputs, effect)
            else:
                arrival.brought.effect = effect

    def _move(
        self, request: Request, arrivals: Sequence[Arrival], root: int | None, reduction: Reduction | None
    ) -> None:
        """Move the values."""
        inputs, outputs = zip(*[_values_of(arrival) for arrival in arrivals], strict=True)
        module = algorithm_module(request.config.module)
        if hasattr(module, "run"):
            self._kernels.run(module, tuple(arrival.rank for arrival in arrivals), inputs, outputs, reduction, root)
        else:
            CollectiveRunner.move(request, inputs, outputs, reduction)

    def _find_request(
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
        folded: bool = False,
        blocks: int = FEW_BLOCKS,
    ) -> Request:
        config = self.config()
        fidelity = config.fidelity
        if folded and fidelity == "auto" and len(sips) ** 2 > MOST_STEPPED:
            fidelity = "closed_form"
        return shared_runner(self.engine.topology, config).request(
            op=op, config=config.select(algorithm), sips=sips, root=root, count=count, itemsize=dtype.itemsize,
            dtype=short_dtype(dtype), splits=splits, environ=environ, fidelity=fidelity, reduction=reduction,
            blocks=blocks,
        )  # fmt: skip

    def request_for(
        self, op: str, count: int, dtype: torch.dtype, group: Communicator, root: int | None = None
    ) -> Request:
        """What a collective of ``group`` would be, with the algorithm that is set for it."""
        sips = tuple(map(self.hosts.sip_of, group.ranks))
        return self._request(
            op, self.config().algorithm_for(op), sips, root, count, dtype, None, group.environ or (), None
        )

    def expected(self, signature: Signature, count: int, group: Communicator) -> Request:
        """What a collective that has been posted will be once it is matched; ``count``: elements of the work buffer."""
        sips = tuple(map(self.hosts.sip_of, group.ranks))
        root = None if signature.root is None else group.index[signature.root]
        return self._request(
            signature.op, signature.algorithm, sips, root, count, signature.dtype or torch.int32, None, group.environ or (),
            signature.reduction, group.players is not None, signature.blocks,
        )  # fmt: skip

    def values_of(self, op: Operation) -> Condition:
        """Fulfilled once the values of ``op``, which has been posted, are there: when its members have arrived."""
        there = self._awaited[op] = Condition(f"values of {op.name}", op.rank)

        def ended() -> None:
            if op.error is not None and self._awaited.pop(op, None) is not None:
                there.fail(op.error, 0.0)

        op.when_resolved(ended)
        return there

    def awaited(self, awaited: Awaited) -> Awaited:
        """The operation whose values a condition of :meth:`values_of` stands for; else ``awaited`` itself."""
        return next((posted for posted, there in self._awaited.items() if there is awaited), awaited)


def _seats(collective: Collective, arrivals: Sequence[Arrival], running: Sequence[Arrival]) -> Seats | None:
    """Where the members sit that run, if not all do."""
    group = collective.group
    if group.players is None:
        return None
    place = {id(arrival): at for at, arrival in enumerate(running)}
    own = tuple([group.index[arrival.rank] for arrival in running])
    return Seats(own, tuple([place[id(arrival)] for arrival in arrivals]))


def _that_matter(arrival: Arrival) -> Sequence[torch.Tensor]:
    signature = arrival.signature
    return that_matter(signature.op, signature.root, arrival.rank, arrival.inputs)


def _values_of(arrival: Arrival) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs and outputs of a member, to be read and written past autograd: a collective writes memory, and what autograd has
    kept of it does not notice, on hardware either. A tensor that is both stays one.

    Raises :class:`KernbenchError` if the program has taken the memory of one away since (``UntypedStorage.resize_``).
    """
    inputs, in_place = arrival.inputs, arrival.inputs is arrival.outputs
    written = (arrival.outputs.whole,) if type(arrival.outputs) is Cells else arrival.outputs
    for tensor in written if in_place else (*wholes(inputs), *written):
        if not tensor.data_ptr() and tensor.numel():
            raise KernbenchError(
                f"{arrival.signature.op}, which rank {arrival.rank} called at {arrival.location}: the program has taken the "
                "memory of its tensor away (UntypedStorage.resize_) before it had run, and without waiting for it; on hardware "
                "it would read or write memory that has another owner by then. Wait for its work first"
            )
    outputs = [plain(tensor).data for tensor in arrival.outputs]  # cells are made here, of memory that is there
    if in_place:
        return outputs, outputs
    both = {id(tensor): output for tensor, output in zip(arrival.outputs, outputs, strict=True)}
    return [both[id(tensor)] if id(tensor) in both else plain(tensor) for tensor in inputs], outputs
