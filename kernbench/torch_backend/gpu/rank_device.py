"""The SIP that a rank (or main) drives, as torch sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kernbench.cost.work import Cost, copy_cost, over_links
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.hosts import Host
from kernbench.simulation.locations import user_location
from kernbench.simulation.remote_traffic import RemoteTraffic
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.storages import DeviceMemory
from kernbench.simulation.tensors import nbytes_of
from kernbench.torch_backend.gpu.generators import DeviceGenerators
from kernbench.torch_backend.gpu.pinning import is_pinned
from kernbench.torch_backend.gpu.placement import block_of, place

_UNPINNED = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. Please use "
    "tensor.pin_memory() or allocate the tensor with pin_memory=True."
)

Diverted = Callable[[str, Sequence[torch.Tensor], Sequence[torch.Tensor], Cost], None]
"""Takes an operation: its name, what it reads and writes, its cost."""


class RankDevice:
    """The SIP that a host drives.

    Args:
        seen: numbers of the SIPs of its node that its program sees, if it does not see all.

    Attributes:
        host: whose it is.
        visible: the SIPs that its program sees: those of its node, or some of them; main sees all.
        generators: of the rank's GPUs.
        streams_made: how many streams the program has made.
        collective_memory: where the tensors of the functional collective are that the rank is calling now.
        in_custom_operation: how many custom operations it is computing, one inside the other.
        moving: whether the program itself has asked for the copy between host and SIP that torch is making now.
        moving_module: whether a module is moving its parameters and buffers.
        compiling: whether a graph of operations on GPUs is being compiled.
        diverted: takes operations of torch instead of the stream, if anything does.
        dispatched: carries out the operator of ``c10d`` that the rank is calling now.
        cache_clears: how often the program has cleared the last-level cache, as ``triton.testing.do_bench`` does.
        cold_events: events to come until it is warm again.
        chosen: whether the program has said which GPU ``cuda`` is, or what it is on hardware has been remarked.
    """

    def __init__(self, simulation: Simulation, host: Host, seen: Sequence[int] | None = None) -> None:
        self.simulation = simulation
        self.host = host
        self.streams_made = 0
        self.collective_memory: DeviceMemory | None = None
        self.in_custom_operation = 0
        self.moving = self.moving_module = False
        self.compiling = False
        self.diverted: Diverted | None = None
        self.dispatched: Callable[[], Any] | None = None
        self.cache_clears = 0
        self.cold_events = 0
        self.chosen = host.rank is None
        self._first = 0
        topology, sips = simulation.topology, simulation.sips
        home = None if host.rank is None else topology.node_of(sips[host.rank])
        self.visible = sips if home is None else tuple([sip for sip in sips if topology.node_of(sip) == home])
        if seen is not None and host.rank is not None:
            self.visible = tuple([self.visible[number] for number in seen])
            if host.sip not in self.visible:
                host.sip = self.visible[0]
        self.generators = DeviceGenerators(host.generator, self.index)

    @property
    def index(self) -> int:
        """Number of the SIP that the host drives, as ``torch.cuda.current_device`` counts: on its node."""
        return self.index_of(self.host.sip)

    def index_of(self, sip: int) -> int:
        """The number of a SIP: on the rank's own node; those of other nodes, which a program on hardware cannot see, have the
        number that they have in the whole system."""
        return self.visible.index(sip) if sip in self.visible else self.simulation.sips.index(sip)

    def told(self, index: int) -> int:
        """What torch is told of the SIP of this number: the same, unless GPUs are counted from another one."""
        return {0: self._first, self._first: 0}.get(index, index)

    @contextmanager
    def counted_from(self, index: int) -> Iterator[None]:
        """For the length of a block, torch takes the SIP of this number for ``cuda:0``, and that one for it.

        A graph that is compiled is a graph for ``cuda:0``, whichever rank compiles it, and whichever runs it.
        """
        before, self._first = self._first, index
        try:
            yield
        finally:
            self._first = before

    @contextmanager
    def moves(self) -> Iterator[None]:
        """For the length of a block, a copy between host and SIP is one that the program has asked for."""
        before, self.moving = self.moving, True
        try:
            with self.host.detour():
                yield
        finally:
            self.moving = before

    @contextmanager
    def diverting(self, to: Diverted) -> Iterator[None]:
        """For the length of a block, operations of torch are told to ``to`` and enqueued by nobody."""
        before, self.diverted = self.diverted, to
        try:
            with self.host.detour():
                yield
        finally:
            self.diverted = before

    def find_cache_cold(self, cold: bool) -> None:
        """What is enqueued from now on finds its operands in memory, or (not ``cold``) in the last-level cache if they fit."""
        self.host.cold = cold
        self.simulation.op_costs.price_cold(cold)

    @property
    def memory(self) -> DeviceMemory:
        """Memory of that SIP."""
        return self.simulation.storages.memory(self.host.sip)

    def enqueue(self, name: str, cost: Cost) -> Operation:
        """Put an operation whose values are there already on the host's stream."""
        return self.simulation.streams.enqueue(self.host, name, cost)

    def memory_at(self, device: Any = None) -> DeviceMemory:
        """Memory of a device given as torch lets one give it; default: the current one."""
        if not self.chosen and not isinstance(device, int) and (device is None or torch.device(device).index is None):
            self._remark_on_choice()
        return self.simulation.storages.memory(self.sip(device))

    def _remark_on_choice(self) -> None:
        """The program uses the current GPU, and has made none the current one."""
        self.chosen = True
        if self.index:
            self.simulation.remarks.setdefault(
                "`cuda` is each rank's own GPU here; on hardware it is cuda:0 for every rank that has not called "
                f"torch.cuda.set_device, as at {user_location()}"
            )

    def sip(self, device: Any = None) -> int:
        """The SIP that a device is, which is given as torch lets one give it. A number beyond the node is one of the system."""
        number = self.number(device)
        return self.visible[number] if number < len(self.visible) else self.simulation.sips[number]

    def number(self, device: Any = None) -> int:
        """Index of a device given as an index, a string, a ``torch.device`` or None."""
        if isinstance(device, int):
            index: int | None = device
        elif device is None:
            index = None
        else:
            index = torch.device(device).index
        if index is None or index < 0:
            return self.index
        count = len(self.simulation.sips)
        if index >= count:
            raise RuntimeError(f"CUDA error: invalid device ordinal {index}: the simulated system has {count} devices")
        return self.told(index)

    def on_device(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        """Put a fresh tensor on a GPU, by default on the current one."""
        self.host.uses_gpu = True
        place(tensor, self.memory_at(device))
        return tensor

    def transfer(
        self,
        outputs: Sequence[torch.Tensor],
        memory: DeviceMemory | None,
        source: torch.Tensor | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """A copy from the host (``source``) to a SIP's ``memory``, or (None) to the host, which waits for its stream if it
        ``waits``.

        Raises RuntimeError in a capture, if the source is not pinned, as torch does.
        """
        simulation = self.simulation
        if self.host.capture is not None and memory is not None and (source is None or not is_pinned(source)):
            self.host.capture.broken = True
            raise RuntimeError(_UNPINNED)
        nbytes = nbytes_of(outputs)
        for output in outputs:
            place(output, memory)
        if memory is None:
            if simulation.hooks is not None:
                simulation.hooks.host_read(outputs[0], "cpu")
            simulation.host_reads.to_host(self.host.sip, nbytes, waits=waits)
        else:
            self.enqueue("host to device", copy_cost(simulation.topology.host_route(self.host.sip, "h2d"), nbytes))

    def peer_copy(self, outputs: Sequence[torch.Tensor], source: DeviceMemory, target: DeviceMemory) -> None:
        """A copy from one SIP's memory to another's, on the links between them; it is on the rank's stream."""
        nbytes = nbytes_of(outputs)
        route = self.simulation.topology.route(source.sip, target.sip)
        for output in outputs:
            place(output, target)
        self.enqueue("device to device", copy_cost(route, nbytes, "link"))

    def over_links(self, cost: Cost, tensors: Sequence[torch.Tensor]) -> Cost:
        """``cost`` of an operation some of whose operands may be in other SIPs' memory."""
        remote = RemoteTraffic(self.simulation.topology)
        for tensor in tensors:
            block = block_of(tensor)
            if block is not None and block.shared:
                remote.move(block.memory.sip, self.host.sip, tensor.numel() * tensor.element_size())
        return over_links(cost, remote.seconds, remote.latency) if remote.nbytes else cost

    def look_around(self, name: str) -> None:
        """The host has looked at memory that other ranks write, maybe not for the last time: let them go on for a moment."""
        self.simulation.polls.look(f"{name} of memory that ranks share")

    def finish_stream(self, name: str) -> None:
        """Wait for one of the rank's streams, and for what it was told to wait for."""
        self.simulation.host_reads.finish_stream(name)

    def synchronize(self) -> None:
        """Wait for all streams of the rank, those of its groups too: ``cudaDeviceSynchronize``. A compiler that measures has
        nothing on them."""
        if not self.compiling:
            self.simulation.host_reads.synchronize(())
