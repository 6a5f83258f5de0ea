"""The order of events on streams: what is put on one happens after what its host and the stream have done."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernbench.sim_engine import Operation
from kernbench.simulation.order.shadow_memory import shadow_of, touch
from kernbench.simulation.order.weak_memory import FutureWrite, older_of, writes_of
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.listeners import Listener


class StreamOrder(Listener):
    """Notes in operations what they happen after, and in the shadows of memory what collectives touch."""

    def enqueued(self, host: Host, op: Operation) -> None:
        """See :class:`Listener`."""
        order = host.order
        if order is not None and host.capture is None:
            order.one = not host.uses_gpu
            op.moment = order.enqueued(host.stream)

    def taken(self, host: Host, tensor: torch.Tensor, taken: torch.Tensor) -> None:
        """See :class:`Listener`."""
        kept = None if host.order is None else shadow_of(host.order, tensor)
        if kept is not None:
            kept.lend(taken)

    def posted(
        self, host: Host, op: Operation, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """See :class:`Listener`. A collective reads its inputs, and writes its outputs, from now to its end."""
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
