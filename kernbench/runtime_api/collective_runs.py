"""Running what has been matched: a plan for the engine, the values, and who is told when they are in place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from kernbench.ccl.collectives import CollectiveRunner, Environ, Request, Splits, shared_runner
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.registry import algorithm_module
from kernbench.cost.uncertainty import collective_spread
from kernbench.errors import KernbenchError
from kernbench.runtime_api.groups import Arrival, Collective, ProcessGroup
from kernbench.runtime_api.kernel_collectives import KernelCollectives
from kernbench.runtime_api.tensor import plain
from kernbench.runtime_api.types import short_dtype
from kernbench.sim_engine.op_log import CollectiveTrace
from kernbench.sim_engine.operation import Operation

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


class CollectiveRuns:
    """Starts the collectives of one context."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx
        self._kernels = KernelCollectives()
        self._markers: dict[Operation, Operation] = {}
        self._request = lru_cache(maxsize=256)(self._find_request)  # a training step repeats the same collectives

    def clear(self) -> None:
        """Forget who waits for values."""
        self._markers.clear()

    def start(
        self,
        collective: Collective,
        arrivals: Sequence[Arrival],
        algorithm: str,
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
        parts = [arrival.op for arrival in arrivals]
        payload = max([op.nbytes for op in parts], default=0)
        detail = {
            "op": collective.signature.op,
            "group": collective.group.name,
            "sequence": collective.sequence,
            **request.described,
            "payload": payload,
        }
        sips = tuple([op.sip for op in parts])
        nodes = len(set(map(ctx.topology.node_of, sips))) if ctx.topology.nodes > 1 else 1
        spread = collective_spread(nodes, payload)
        for op in parts:
            op.detail = detail if op.detail is None else {**op.detail, **detail}
            op.executed, op.spread = True, spread
        for op in parts if self._markers else ():
            marker = self._markers.pop(op, None)
            if marker is not None:
                marker.executed = True
                ctx._ended_waits.append(marker)
        if ctx.hooks is not None:
            ctx.hooks.collective_matched(collective, arrivals, request.config.name, len(request.plan))
        run = ctx.engine.submit_collective(request.plan, parts, [arrival.after for arrival in arrivals])
        collective.run = run
        for arrival in arrivals:
            arrival.inputs = arrival.outputs = ()  # the log must not keep the tensors alive
        ctx.engine.op_log.collectives.append(
            CollectiveTrace(
                str(collective), run, collective.group.ranks, sips, request.config.buffer_kind,
                tuple([op.operands[-1].address if op.operands else 0 for op in parts]), request.chunk_offsets, detail,
            )
        )  # fmt: skip

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
            signature.op, algorithm, tuple([arrival.op.sip for arrival in arrivals]), root, count,
            signature.dtype or torch.int32, splits, collective.group.environ or (), signature.reduction,
        )  # fmt: skip
        if ctx.enable_data:
            inputs, outputs = zip(*map(_values_of, arrivals), strict=True)
            reduction = ReduceOp(signature.reduction) if signature.reduction else None
            module = algorithm_module(request.config.module)
            if hasattr(module, "run"):
                ranks = tuple(arrival.rank for arrival in arrivals)
                self._kernels.run(module, ranks, inputs, outputs, reduction, root)
            else:
                CollectiveRunner.move(request, inputs, outputs, reduction)
        return request

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
    ) -> Request:
        config = self._ctx.ccl_config
        return shared_runner(self._ctx.topology, config).request(
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

    def values_of(self, op: Operation) -> Operation:
        """A timer that is done once the values of ``op``, which has been posted, are there: when its members have arrived."""
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


def _values_of(arrival: Arrival) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs and outputs of a member, to be read and written past autograd: a collective writes memory, and what autograd has
    kept of it does not notice, on hardware either. A tensor that is both stays one."""
    outputs = [plain(tensor).data for tensor in arrival.outputs]
    if len(outputs) == 1 and len(arrival.inputs) == 1 and arrival.inputs[0] is arrival.outputs[0]:
        return outputs, outputs
    written = {id(tensor): output for tensor, output in zip(arrival.outputs, outputs, strict=True)}
    return [written[id(tensor)] if id(tensor) in written else plain(tensor) for tensor in arrival.inputs], outputs
