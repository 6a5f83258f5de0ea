"""Streams that tell the order of events of what is put on them, where somebody wants to know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.cost.work import Cost
from kernbench.sim_engine import Operation
from kernbench.simulation.hosts import Host
from kernbench.simulation.shadows import shadow_of, touch
from kernbench.simulation.streams import Streams
from kernbench.simulation.weak_memory import FutureWrite, older_of, writes_of


class OrderedStreams(Streams):
    """What hosts enqueue, and what it happens after."""

    def enqueue(
        self,
        host: Host,
        name: str,
        cost: Cost | None,
        *,
        tensors: Sequence[Any] = (),
        deferred: bool = False,
        detail: dict[str, Any] | None = None,
        sip: int | None = None,
    ) -> Operation:
        """See :meth:`Streams.enqueue`."""
        op = super().enqueue(host, name, cost, tensors=tensors, deferred=deferred, detail=detail, sip=sip)
        order = host.order
        if order is not None and host.capture is None:
            order.one = not host.uses_gpu
            op.moment = order.enqueued(host.stream)
        return op

    def take(self, host: Host, tensor: torch.Tensor) -> torch.Tensor:
        """See :meth:`Streams.take`."""
        taken = super().take(host, tensor)
        kept = None if host.order is None else shadow_of(host.order, tensor)
        if kept is not None:
            kept.lend(taken)
        return taken

    def touch(self, host: Host, op: Operation, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """See :meth:`Streams.touch`. A collective reads its inputs, and writes its outputs, from now to its end."""
        super().touch(host, op, inputs, outputs)
        order = host.order
        if order is None or host.capture is not None:
            return
        order.one = not host.uses_gpu
        op.moment = order.posted(op.stream, host.stream)
        access = order.access(op.moment.strand, op.name)
        written = {id(tensor) for tensor in outputs}
        future: list[FutureWrite] = []
        if order.weak is not None:
            with host.as_one():
                older = older_of(order, op.name, inputs, op.moment.strand, order.stream(host.stream), order.host)
                future = writes_of(order, outputs)
            if older:
                order.weak.reading[op] = older
        for tensor in (*(each for each in inputs if id(each) not in written), *outputs):
            kept = shadow_of(order, tensor)
            if kept is not None:
                before = kept.shadow.undefined
                if op.name == "all_reduce":  # adds to what is there
                    kept.shadow.undefined = None
                touch(kept, tensor, access, writes=id(tensor) in written)
                if op.name == "all_reduce":
                    kept.shadow.undefined = before
        for each in future:
            each.written(access)
