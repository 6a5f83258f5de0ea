"""What tensors of a context do before torch looks at, overwrites or computes with their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from kernbench.cost.work import copy_cost
from kernbench.errors import KernbenchError
from kernbench.runtime_api.launch import ValueMarker
from kernbench.runtime_api.storages import StorageState, StorageTable
from kernbench.runtime_api.tensor import COMPARED_ON_DEVICE, HOST_COPIES, storage_of
from kernbench.sim_engine import DataExecutor, GraphEngine, Operand, Operation
from kernbench.sim_engine.operation import COPY_STREAM

if TYPE_CHECKING:
    from kernbench.runtime_api.handles import Handle, Work
    from kernbench.runtime_api.hooks import RunHooks
    from kernbench.runtime_api.rank_state import RankState
    from kernbench.topology import Topology


class Barriers:
    """Base of the context: has what a tensor's values depend on completed first."""

    if TYPE_CHECKING:
        engine: GraphEngine
        executor: DataExecutor
        storages: StorageTable
        hooks: RunHooks | None

        @property
        def topology(self) -> Topology: ...
        def _me(self) -> RankState: ...
        def wait(self, handle: Handle | Work) -> None: ...
        def _block_on(self, op: Operation) -> None: ...
        def _unobserved_failures(self, me: RankState | None = None) -> list[Operation]: ...

    def _before_host_read(self, tensors: Iterable[torch.Tensor], name: str) -> None:
        """Drain what the values of ``tensors`` depend on. Pending collectives do not count: they complete when all
        their members have arrived, which a rank that stopped here could prevent (ADR 0004).

        ``name``: the entry point of ``_HOST_READ_BARRIERS``.
        """
        for tensor in tensors:
            if tensor.is_meta and name in HOST_COPIES and name != "__repr__":
                raise KernbenchError(
                    f"{name}: the host looks at a value, but this context was made with enable_data=False and has none: "
                    "a program whose control flow reads data needs enable_data=True"
                )
            if self.hooks is not None:
                self.hooks.host_read(tensor, name)
            state = self.storages.known(tensor)
            if state is None or state.last is None:
                continue
            op = state.last
            if op.kind == "collective" and not op.done:
                self._before_compute((tensor,))
                continue
            self.wait(op)
            if self.executor.failed:
                self._raise_failure_on(state)
            if name in HOST_COPIES:
                self._charge_read(tensor, state, 1 if name in COMPARED_ON_DEVICE else tensor.nbytes)

    def _raise_failure_on(self, state: StorageState) -> None:
        """An earlier operation on this memory failed and nobody has seen that: its values mean nothing."""
        mine = state.allocation
        for op in self._unobserved_failures(self._me()):
            if any(isinstance(it, Operand) and it.space == mine.space and it.sip == mine.sip
                   and mine.address <= it.address < mine.address + max(mine.nbytes, 1) for it in op.operands):  # fmt: skip
                self.wait(op)

    def _charge_read(self, tensor: torch.Tensor, state: StorageState, nbytes: int) -> None:
        """The host pays the copy of what it looks at: latency and bytes of the link from its SIP."""
        me = self._me()
        sip = state.allocation.sip
        route = self.topology.host_route(sip, "d2h")
        cost = copy_cost(route, nbytes)
        op = Operation(
            "device to host", "dma", rank=me.rank, sip=sip, stream=COPY_STREAM, enqueue=me.clock,
            duration=cost.seconds, spread=cost.spread,
        )  # fmt: skip
        op.nbytes = nbytes
        op.operands = [state.operand(tensor, "r"), Operand("host", sip, 0, nbytes, "w")]
        self.engine.submit(op)
        self.wait(op)

    def _before_copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """``target.copy_(source)`` drains its source only. Draining the target would wait for a collective of another
        rank that this rank has yet to join, and deadlock (ADR 0005)."""
        if isinstance(source, torch.Tensor):
            state = self.storages.known(source)
            if state is not None and state.last is not None and state.last.kind != "collective":
                self.wait(state.last)

    def _before_compute(self, tensors: Iterable[torch.Tensor]) -> None:
        """Kept launches that touch these tensors run first: a rank's operations take effect in program order."""
        if len(self.executor) and self.executor.touches_any(id(storage_of(tensor)) for tensor in tensors):
            self._flush_values()

    def _flush_values(self) -> None:
        """Have the values of everything that this rank has launched computed."""
        if not len(self.executor):
            return
        me = self._me()
        marker = Operation("values", "timer", rank=me.rank, sip=me.sip, stream="host", enqueue=me.clock)
        marker.resolve(me.clock, me.clock)
        self.executor.submit(ValueMarker(marker, self.executor.kept(me.rank)))
        self._block_on(marker)
