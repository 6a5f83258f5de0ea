"""Triton kernels inside a simulation: ``kernel[grid](...)`` and ``ctx.launch`` become launches of the rank.

While a simulation is active, :mod:`kernbench.triton_engine` hands every launch to it. The launch is enqueued on the rank's
stream and kept, so that the same kernel of several ranks runs as one batch. Its duration is known once it has been executed,
from what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernbench.errors import DeadlockError, KernbenchError
from kernbench.sim_engine import Operation
from kernbench.simulation.launches.kernel_tensors import (
    given_tensor,
    maps_nothing,
    require_reach,
    tensor_of,
    tensors_of,
)
from kernbench.simulation.launches.sampled_launch import SampledLaunch
from kernbench.simulation.launches.triton_launch import LaunchContext, TritonLaunch
from kernbench.simulation.memory.tensor_queries import plain, tells_of_looks
from kernbench.simulation.order.shadow_memory import link
from kernbench.simulation.ranks.graph_capture import GraphCapture
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.time.wait_queue import Waits
from kernbench.simulation.values.capture_rollback import behind_pointers, keep
from kernbench.triton_engine.launching import run_alone
from kernbench.triton_engine.machine import Launch
from kernbench.triton_engine.memory import find_all

_ADDRESS_BYTES = 8


def is_kernel(kernel: object) -> bool:
    """Whether ``kernel`` is Triton's: a ``@triton.jit`` function, or one wrapped by autotune or heuristics."""
    return hasattr(kernel, "run") and hasattr(kernel, "fn") and hasattr(kernel, "__getitem__")


@dataclass(eq=False)
class KernelLauncher(LaunchContext):
    """Launches Triton kernels in one simulation.

    Attributes:
        last: the operation of the last launch.
        maps: whether a kernel on a GPU reaches a tensor of the host, as it does one in pinned memory.
    """

    waits: Waits
    last: Operation | None = field(default=None, init=False)
    maps: Callable[[torch.Tensor], bool] = field(default_factory=lambda: maps_nothing, init=False)

    def launch(
        self, kernel: Any, grid: object, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
    ) -> Operation:
        """``kernel[grid](*args, **kwargs)``, whose operation is called ``name``."""
        self.last = None
        kernel[(grid,) if isinstance(grid, int) else grid](*args, **kwargs)
        op = self.last
        if op is None:
            raise KernbenchError(
                f"{kernel!r} was launched, but not through kernbench: another Triton driver is active in this process"
            )
        if name:
            op.name = name
        return op

    def _compute(self, launch: Launch, tensors: Sequence[torch.Tensor]) -> bool:
        """Without data: whether a launch is computed, as all that it touches has bytes.

        Otherwise, or if anything that it is given is assumed, what it may write is.
        """
        reach = launch.program.reach
        behind = {place: self._behind(launch, place) for place in reach.tables}
        touched = [*tensors, *(each for found in behind.values() for each in found)]
        notes = [stored for tensor in touched if (stored := self.streams.stored_of(tensor)) is not None]
        computed = bool(tensors) and not any(stored.hollow for stored in notes)
        launch.assumed = ()
        if not computed or any(stored.unknown for stored in notes):
            launch.assumed = tensors_of([launch.args[place] for place in sorted(reach.written)])
            with self.hosts.current().as_one():
                for tensor in launch.assumed:
                    self.streams.note_written(tensor, computed=computed)
                for tensor in (each for place in sorted(reach.written_tables) for each in behind[place]):
                    self.streams.note_written(tensor, computed=computed)
        return computed

    def _behind(self, launch: Launch, place: int) -> list[torch.Tensor]:
        """The bytes of all memory whose addresses are in the tensor at ``place`` among a launch's arguments."""
        table = tensor_of(launch.args[place])
        if table is None or table.dtype.itemsize != _ADDRESS_BYTES:
            return []
        stored = self.streams.stored_of(table)
        if stored is not None and (stored.hollow or stored.unknown):
            return []  # an access to what is in it is refused
        with self.hosts.current().as_one():
            addresses = dict.fromkeys(table.detach().flatten().view(torch.int64).tolist())
            return [each.flat(torch.uint8) for each in find_all(list(addresses), self.memory)]

    def submit(self, launch: Launch) -> None:
        """Enqueue a launch on the running rank's stream."""
        if self.hosts.inside_kernel:
            raise KernbenchError(
                f"kernel {launch.name} was launched from inside a kernel: launch it from the rank's program"
            )
        tensors = [tensor for arg in launch.args if (tensor := given_tensor(arg)) is not None]
        require_reach(launch, tensors, self.hosts.current(), self.streams.stored_of, self.maps)
        launch.args = [plain(arg) if isinstance(arg, torch.Tensor) else arg for arg in launch.args]
        host = self.hosts.current()
        launch.rank, launch.cold, launch.in_graph = host.rank, host.cold, host.in_graph
        launch.blind = not (self.engine.enable_data or self._compute(launch, tensors))
        if host.capture is not None:
            self._capture(host, host.capture, launch)
            return
        awaited = host.awaiting_values()
        detail = {"grid": list(launch.grid), "at": launch.where}
        op = self.streams.enqueue(host, launch.name, None, tensors=tensors, deferred=True, detail=detail)
        self.last = op
        try:
            self._hand_over(host, op, launch, tensors, awaited)
        except BaseException:
            if not op.executed and not self.executor.keeps(op):  # broken off before it was kept
                self.executor.computed(op)
                self.engine.break_off(op)
            raise

    def _hand_over(
        self, host: Host, op: Operation, launch: Launch, tensors: list[torch.Tensor], awaited: Sequence[Operation]
    ) -> None:
        """Have a launch computed, now or later."""
        if host.order is not None and host.rank is not None:
            launch.moment = host.order.kernel(op.moment)
            for tensor in tensors:
                link(host.order, tensor, self.streams.stored_of(tensor))
        if launch.blind and not len(self.executor):  # else what is to come may be what it is sampled with
            try:
                SampledLaunch(self, op, launch).price()
            finally:
                self.executor.computed(op)
            return
        deferred = (SampledLaunch if launch.blind else TritonLaunch)(self, op, launch, awaited)
        self.executor.submit(deferred)
        if not tensors or not all(map(tells_of_looks, tensors)):
            # no event says when the host reads a plain tensor: run it now, or at least until it waits for another writer
            if not awaited and op.stream not in host.unsettled:
                self._attempt(deferred)
            if not op.executed:
                host.unsettled.setdefault(op.stream, []).append(op)
            if op.error is not None:
                op.observed = True
                raise op.error

    def _attempt(self, launch: TritonLaunch) -> None:
        """Run a launch, or begin to. Where other ranks run, they go on until they launch something, too: the same kernel of
        several is one batch."""
        if self.scheduler.live_count == 1 and self.scheduler.current_rank() is not None:
            self.executor.flush(self.engine.now)
        if not launch.attempt.done:
            self.waits.block_on(launch.attempt)

    def _capture(self, host: Host, graph: GraphCapture, launch: Launch) -> None:
        """A launch that belongs to a graph: it runs now, as a warm-up, and whenever the graph is replayed."""
        graph.work(launch.name, host.stream)
        # the memory that they have now, also when the program gives a tensor other data later
        args = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in launch.args]
        graph.add_on_stream(host, lambda: self.submit(replace(launch, args=args)))
        if self.engine.enable_data:
            keep(host, tensors_of(launch.args))
            with host.as_one(), behind_pointers(self.memory) as memory, suppress(DeadlockError):
                run_alone(launch, memory)  # it may wait for another rank, which has to capture yet
