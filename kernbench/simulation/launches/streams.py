"""The one place where an operation is put on a stream: kernels, torch's operations, copies, collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass

from kernbench.cost.work import Cost
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.sim_engine.log_rows import Title
from kernbench.sim_engine.op_log import MemoryRanges
from kernbench.simulation.memory.storages import StorageTable, Stored
from kernbench.simulation.memory.tensor_queries import plain, tensors_in
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.ranks.listeners import Stages
from kernbench.simulation.values.assumptions import fill
from kernbench.simulation.values.collective_cells import Cells, wholes


class Streams:
    """What hosts enqueue.

    Args:
        engine: knows when streams are free.
        hosts: who enqueues.
        storages: note what operations touch.
        stages: the features that listen.
    """

    def __init__(
        self,
        engine: GraphEngine,
        hosts: Hosts,
        storages: StorageTable,
        stages: Stages,
    ) -> None:
        self._engine = engine
        self._hosts = hosts
        self._storages = storages
        self._stages = stages
        self._device = engine.topology.device
        self._costs = self._device.launch
        self._in_graphs: dict[tuple[str, Cost], tuple[Cost, Title, float]] = {}

    def enqueue(
        self,
        host: Host,
        name: str,
        cost: Cost | None,
        *,
        tensors: Sequence[object] = (),
        deferred: bool = False,
        detail: dict[str, Any] | None = None,
        sip: int | None = None,
        cost_then: Callable[[], Cost] | None = None,
    ) -> Operation:
        """Put an operation on ``host``'s current stream. The host pays the launch and goes on.

        Args:
            name: of the operation.
            cost: what it occupies the stream for; None: a kernel whose duration is not known until it has been executed.
            tensors: what it reads and writes, of what is noted with the memory: launches.
            deferred: whether its values are to come.
            detail: what a trace shows of it besides.
            sip: whose stream of that name it is; default: of the SIP that the host drives.
            cost_then: what it costs when a graph that is being captured is replayed; None: the same.
        """
        for listener in self._stages.enqueueing:
            listener()
        if self._hosts.observing:
            self._hosts.forbid_observers("launch")
        launch = self._costs
        if sip is None:
            sip = host.sip
        if host.capture is not None:
            again = None if cost is None else self._again(host, name, cost, cost_then, sip)
            return host.capture.enqueue(self.enqueue, host, name, cost, sip, cost_then, again)
        spent = host.launch(launch.overhead if cost is None else launch.overhead + cost.host)
        begin = host.clock + launch.latency
        if cost is not None and host.in_graph:
            cost = cost.in_graph(self._device)
        if cost is None:
            op = Operation(name, "kernel", host.rank, sip, host.stream, begin, None)
        else:
            op = Operation(name, cost.kind, host.rank, sip, host.stream, begin, cost.seconds, cost.spread)
            op.nbytes, op.draw = cost.nbytes, cost.draw
        op.host = spent
        for listener in self._stages.priced:
            listener(host, op)
        if deferred:
            op.executed = False
        if detail is not None:
            op.detail = detail
        if tensors:
            op.operands = [self._touch(op, tensor, host) for tensor in tensors_in(tensors)]
        self._engine.submit(op, after=host.take_awaited() if host.awaited else ())
        host.tails[host.stream] = op
        if host.watcher is not None:
            host.watcher.launched(op)
        for listener in self._stages.enqueued:
            listener(host, op)
        return op

    def _again(
        self, host: Host, name: str, cost: Cost, cost_then: Callable[[], Cost] | None, sip: int
    ) -> Callable[[], None]:
        """Puts an operation of a graph on ``host``'s stream at each replay: as a row of the log, where nothing listens."""
        engine, latency, costs = self._engine, self._costs.latency, self._in_graphs

        def row_of(cost: Cost) -> tuple[Cost, Title, float]:
            found = cost.in_graph(self._device)
            return cost, Title(name, found.kind, found.nbytes, found.spread, found.draw), found.seconds

        _, title, seconds = row_of(cost)

        def step() -> None:
            nonlocal title, seconds, cost
            if cost_then is not None and (then := cost_then()) is not cost:
                known = costs.get((name, then))
                if known is None:
                    known = costs[name, then] = row_of(then)
                cost, title, seconds = known
            stream = host.stream
            if host.detours != 1 or host.unsettled or stream in host.awaited or self._hosts.observing:
                self.enqueue(host, name, cost, sip=sip)  # one detour is that launches cost a replay nothing
                return
            lane = host.lanes.get(stream)
            if not lane or lane.sip != sip:
                lane = host.lanes[stream] = engine.lane(host.rank, sip, stream)
            spent, host.prepared = host.prepared, 0.0
            host.tails[stream] = engine.append(lane, title, host.clock + latency, seconds, spent)

        return step

    def stored_of(self, tensor: torch.Tensor) -> Stored | None:
        """What is known about a tensor's storage, None if nothing."""
        return self._storages.of(tensor)

    def note_written(self, tensor: torch.Tensor, *, computed: bool) -> None:
        """From now on what a tensor holds is assumed: something has written to it, which is ``computed``, or has numbers with a
        point of which nothing is known."""
        stored = self._storages.note(tensor)
        stored.stated, stored.missing = False, None
        measured = tensor.is_floating_point() or tensor.is_complex()
        if stored.hollow:
            stored.stand_in = None if measured else stored.stand_in
            return
        if measured and not computed:
            fill(plain(tensor).data, None)
        if stored.stand_in is None:
            stored.stand_in = 0.0

    def _touch(self, op: Operation, tensor: torch.Tensor, host: Host, access: str = "rw") -> Any:
        stored = self._storages.adopt(tensor, host)
        stored.last = op
        return stored.operand(tensor, access)

    def _touch_all(self, op: Operation, tensors: Sequence[torch.Tensor], host: Host, access: str) -> Any:
        """The ranges of tensors, each with how often it is repeated behind itself."""
        if type(tensors) is not Cells:
            return [(self._touch(op, tensor, host, access), 1) for tensor in tensors]
        whole = self._touch(op, tensors.whole, host, access)
        return [(whole._replace(nbytes=tensors.nbytes), len(tensors))]

    def name_for(self, host: Host, stream: str) -> str:
        """The name that a group's stream has for one of its members."""
        if host.rank is not None and host.sip != self._hosts.sips[host.rank]:
            return f"{stream} of rank {host.rank}"  # it drives another rank's SIP: their collectives must not queue up
        return stream

    def post(self, host: Host, name: str, stream: str, payload: Sequence[torch.Tensor]) -> Operation:
        """An operation of this rank on ``stream`` that passes ``payload`` to others. It starts when they have come, and its
        values are to come; the host pays the launch."""
        for listener in self._stages.enqueueing:
            listener()
        if self._hosts.observing:
            self._hosts.forbid_observers("communicate")
        if host.sip != self._hosts.sips[host.rank or 0]:
            stream = self.name_for(host, stream)
        spent = host.launch(self._costs.overhead)
        op = Operation(name, "collective", host.rank, host.sip, stream, host.clock)
        op.host = spent
        nbytes = 0
        for tensor in wholes(payload):
            nbytes += tensor.numel() * tensor.element_size()
        op.nbytes = nbytes
        op.executed = False
        return op

    def take(self, host: Host, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as it is now, for a message: the library has its address, whatever the program makes of it meanwhile."""
        with host.as_one(), DisableTorchFunctionSubclass():
            taken = tensor.detach()
        for listener in self._stages.taken:
            listener(host, tensor, taken)
        return taken

    def touch(self, host: Host, op: Operation, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Note in ``op`` and in the storages which memory it reads and writes."""
        if inputs is outputs and len(inputs) == 1:
            stored = self._storages.adopt(inputs[0], host)
            stored.last = op
            op.operands = stored.operands_in_place(inputs[0])
        elif type(inputs) is Cells or type(outputs) is Cells:
            op.operands = MemoryRanges(
                [*self._touch_all(op, inputs, host, "r"), *self._touch_all(op, outputs, host, "w")]
            )
        else:
            written = {id(tensor) for tensor in outputs}
            read = {id(tensor) for tensor in inputs}
            op.operands = [
                *(self._touch(op, tensor, host, "rw" if id(tensor) in written else "r") for tensor in inputs),
                *(self._touch(op, tensor, host, "w") for tensor in outputs if id(tensor) not in read),
            ]
        for listener in self._stages.posted:
            listener(host, op, inputs, outputs)
