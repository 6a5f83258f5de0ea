"""The SIP that a rank (or main) drives, as torch sees it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.types import Device

from kernbench.cost.work import Cost, copy_cost, over_links
from kernbench.memory.pinned_memory import PinnedMemory
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.launches.remote_traffic import RemoteTraffic
from kernbench.simulation.memory.storages import DeviceMemory
from kernbench.simulation.ranks.accelerator_errors import cuda_error
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.device_numbers import number_of
from kernbench.torch_backend.gpu.device.generators import DeviceGenerators
from kernbench.torch_backend.gpu.device.gradient_streams import StreamChanges
from kernbench.torch_backend.gpu.device.stream_waits import let_stream_wait
from kernbench.torch_backend.gpu.device.thread_state import Diverted, ThreadState
from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus, settings, words
from kernbench.torch_backend.gpu.tensors.pinning import is_pinned
from kernbench.torch_backend.gpu.tensors.placement import block_of, place, stored_bytes

UNPINNED = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. Please use "
    "tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


class RankDevice:
    """The SIP that a host drives.

    Attributes:
        host: whose it is.
        generators: of the rank's GPUs.
        streams_made: how many streams the program has made.
        stream_changes: when it went on to other ones.
        doing: what the running thread of the rank does.
        cache_clears: how often the program has cleared the last-level cache, as ``triton.testing.do_bench`` does.
        cold_events: events to come until it is warm again.
        has_chosen: whether the program has made a GPU the current one for good, in any thread.
        pinned_memory: of the process, on the host.
        lost: why the process cannot use its GPUs any more, in the driver's words; empty: it can.
    """

    def __init__(self, simulation: Simulation, host: Host) -> None:
        self.simulation = simulation
        self.host = host
        self.streams_made = 0
        self.stream_changes = StreamChanges(host)
        self.doing = ThreadState(chosen=host.rank is None)
        self.cache_clears = 0
        self.cold_events = 0
        self.has_chosen = False
        self.pinned_memory = PinnedMemory()
        self.lost = ""
        self._first = 0
        self._hidden = ""  # the variables that pick the GPUs which the program sees
        self.generators = DeviceGenerators(host.generator, lambda: self.index)
        self._drive_one_of(self.sees())

    @property
    def inside_operation(self) -> bool:
        """Whether what is computed now is part of an operation or a kernel, and not the program's own."""
        return bool(self.doing.in_custom_operation or self.host.unrecorded or self.simulation.hosts.inside_kernel)

    @functools.cached_property
    def visible(self) -> Sequence[int]:
        """The SIPs that its program sees, by their ordinals; main sees all.

        The environment is read when they are first wanted, as a GPU's runtime does when it starts.
        """
        found = self.sees()
        self._drive_one_of(found)
        self._hidden = words(os.environ, self._backend) if self._picks else ""
        return found

    def sees(self) -> Sequence[int]:
        """The SIPs that its program would see if it used one now: those of its node, or those of them that the environment
        names (:mod:`kernbench.torch_backend.gpu.device.visible_devices`)."""
        if (settled := vars(self).get("visible")) is not None:
            return settled
        topology, sips = self.simulation.topology, self.simulation.sips
        if self.host.rank is None:
            return sips
        home = topology.node_of(self.simulation.hosts.sips[self.host.rank])
        if not self._picks:
            return tuple([sip for sip in sips if topology.node_of(sip) == home])
        there = topology.sips_of(home)
        return tuple([there[number] for number in NodeGpus.of(topology, home).visible() if there[number] in sips])

    @property
    def _backend(self) -> str:
        return self.simulation.topology.device.target.backend

    @property
    def _picks(self) -> bool:
        """Whether the environment says which GPUs the program sees."""
        return self.host.rank is not None and bool(settings(os.environ, self._backend))

    def _drive_one_of(self, seen: Sequence[int]) -> None:
        """A rank drives its own GPU if it sees that one, else the first that it sees, until it chooses another."""
        host = self.host
        if host.rank is not None and seen and host.sip not in seen:
            own = self.simulation.hosts.sips[host.rank]
            host.sip = host.home = own if own in seen else seen[0]

    @property
    def index(self) -> int:
        """Number of the SIP that the host drives, as ``torch.cuda.current_device`` counts: on its node, or of those it sees.

        Raises RuntimeError if it sees none, as torch does.
        """
        self.require()
        if not self.visible:
            raise RuntimeError(f"No CUDA GPUs are available: {self._hidden} hides all of the node's")
        return self.index_of(self.host.sip)

    def require(self) -> None:
        """Raise RuntimeError if the process has lost its GPUs."""
        if self.lost:
            raise RuntimeError(self.lost)

    def index_of(self, sip: int) -> int:
        """The number of a SIP, on the rank's own node or of those that it sees.

        Others, which a program on hardware cannot see, have the number that they have in the whole system. Where the
        environment hides some, memory of theirs is mapped into the SIP that the rank drives, and has its number.
        """
        visible = self.visible
        if sip in visible:
            return visible.index(sip)
        return self.index if self._hidden else self.simulation.sips.index(sip)

    def told(self, index: int) -> int:
        """What torch receives about the SIP of this number: the same, unless GPUs are counted from another one."""
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
    def moves(self, to: torch.device) -> Iterator[None]:
        """For the length of a block, a copy between host and SIP is one that the program has asked for."""
        doing = self.doing
        before, doing.moving, doing.moving_to = (doing.moving, doing.moving_to), True, to
        try:
            with self.host.detour():
                yield
        finally:
            doing.moving, doing.moving_to = before

    @contextmanager
    def diverting(self, to: Diverted) -> Iterator[None]:
        """For the length of a block, operations of torch are passed to ``to`` and not enqueued."""
        doing = self.doing
        before, doing.diverted = doing.diverted, to
        try:
            with self.host.detour():
                yield
        finally:
            doing.diverted = before

    def find_cache_cold(self, cold: bool) -> None:
        """What is enqueued from now on finds its operands in memory, or (not ``cold``) in the last-level cache if they fit."""
        self.host.cold = cold
        self.simulation.op_costs.price_cold(cold)

    @property
    def memory(self) -> DeviceMemory:
        """Memory of that SIP."""
        self.require()
        self.visible  # noqa: B018  (the first use decides which one that is)
        return self.simulation.storages.memory(self.host.sip)

    def enqueue(self, name: str, cost: Cost) -> Operation:
        """Put an operation whose values are there already on the host's stream."""
        return self.simulation.streams.enqueue(self.host, name, cost)

    def memory_at(self, device: Device = None) -> DeviceMemory:
        """Memory of a device given as torch lets one give it; default: the current one."""
        if not self.doing.chosen and number_of(device) is None:
            self._remark_on_choice()
        return self.simulation.storages.memory(self.sip(device))

    def go_on_to(self, device: Device) -> None:
        """Make a GPU the current one of the running thread."""
        self.host.uses_gpu = self.doing.chosen = True
        self.host.drive(self.sip(device))

    def sip_of_new_thread(self) -> int:
        """The SIP that a thread of the program drives at first: ``cuda:0``, as on hardware; the rank's own GPU, which ``cuda``
        is here, where the program has chosen none."""
        seen = self.sees()
        return seen[0] if self.has_chosen and seen else self.host.home

    def _remark_on_choice(self) -> None:
        """The running thread uses the current GPU, and has made none the current one."""
        self.doing.chosen = True
        if self.has_chosen and self.host.sip != self.host.home:
            self.simulation.remarks.setdefault(
                "`cuda` is cuda:0 in a thread that has not called torch.cuda.set_device, as on hardware, whatever the program "
                f"has chosen in another one: first at {user_location()}"
            )
        elif self.index and not self.has_chosen:
            self.simulation.remarks.setdefault(
                "`cuda` is each rank's own GPU here; on hardware it is cuda:0 for every rank that has not called "
                f"torch.cuda.set_device, as at {user_location()}"
            )

    def sip(self, device: Device = None) -> int:
        """The SIP that a device is, which is given as torch lets one give it. A number beyond the node is one of the system."""
        number = self.number(device)
        return self.visible[number] if number < len(self.visible) else self.simulation.sips[number]

    def number(self, device: Device = None) -> int:
        """Index of a device given as ``torch.cuda`` lets one give it.

        Raises ``torch.AcceleratorError``, as torch does, if there is none of that number, and RuntimeError if there is none.
        """
        self.require()
        index = number_of(device)
        if index is None or index < 0:
            return self.index
        visible = self.visible  # first: what hides some is known from then on
        count = len(visible if self._hidden else self.simulation.sips)
        if index >= count:
            if not visible:
                return self.index  # raises
            whose = f"{self._hidden} leaves" if self._hidden else "the simulated system has"
            raise cuda_error("invalid device ordinal", f"cuda:{index}: {whose} {count} devices")
        return self.told(index)

    def on_device(self, tensor: torch.Tensor, device: Device = None) -> torch.Tensor:
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
        """A copy from the host (``source``) to a SIP's ``memory``, or (None) to the host. If it ``waits``, the host waits for
        its stream, in either direction: as torch's copies do that are not asked to be ``non_blocking``.

        Raises RuntimeError in a capture, if the host's end is not pinned or the host is to wait, as torch does.
        """
        simulation = self.simulation
        if self.host.capture is not None:
            self.may_copy(source if memory is not None else outputs[0])
            if waits:
                self.host.capture.forbid()
        nbytes = stored_bytes(outputs)
        for output in outputs:
            place(output, memory)
        if memory is None:
            if simulation.hooks is not None:
                simulation.hooks.host_read(outputs[0], "cpu")
            block = None if source is None else block_of(source)
            sip = None if block is None else block.own_sip
            simulation.host_reads.to_host(sip, nbytes, waits=waits, pinned=is_pinned(outputs[0]))
            return
        with self.host.driving(memory.sip):
            self.copy_from_host(nbytes, pinned=source is not None and is_pinned(source), waits=waits)

    def copy_from_host(self, nbytes: int, *, pinned: bool = False, waits: bool = True) -> None:
        """A copy of so many bytes of the host's memory, for which the host waits or not."""
        topology = self.simulation.topology
        share = 1.0 if pinned else topology.device.host_link.pageable
        self.enqueue("host to device", copy_cost(topology.host_route(self.host.sip, "h2d"), nbytes, share=share))
        if waits:
            self.simulation.host_reads.finish_stream(self.host.stream)

    def may_copy(self, end: torch.Tensor | None) -> None:
        """Raise RuntimeError, as torch does, in a capture if what is copied between host and GPU is not pinned; ``end``: the
        host's, None if that is a value of Python's. The capture goes on."""
        if self.host.capture is not None and (end is None or not is_pinned(end)):
            raise RuntimeError(UNPINNED)

    def peer_copy(self, outputs: Sequence[torch.Tensor], source: DeviceMemory, target: DeviceMemory) -> None:
        """A copy from one SIP's memory to another's, on the links between them. It is on the current stream of the one that it
        comes from, after what is on the other's; what comes next there is after it."""
        host, nbytes = self.host, stored_bytes(outputs)
        route = self.simulation.topology.route(source.sip, target.sip)
        host.reaches.add((source.sip, target.sip))
        for output in outputs:
            place(output, target)
        with host.driving(source.sip):
            there = host.stream_on(target.sip)
            let_stream_wait(host, host.stream, there)
            self.enqueue("device to device", copy_cost(route, nbytes, "link"))
            let_stream_wait(host, there, host.stream)

    def over_links(self, cost: Cost, tensors: Sequence[torch.Tensor]) -> Cost:
        """``cost`` of an operation some of whose operands may be in the memory of other SIPs or of the host."""
        remote = RemoteTraffic(self.simulation.topology)
        for tensor in tensors:
            block = block_of(tensor)
            if block is not None and block.mapped:
                remote.read_host(self.host.sip, tensor.numel() * tensor.element_size())
            elif block is not None and block.shared:
                remote.move(block.memory.sip, self.host.sip, tensor.numel() * tensor.element_size())
        return over_links(cost, remote.seconds, remote.latency) if remote.nbytes else cost

    def look_around(self, name: str) -> None:
        """The host has looked at memory that other ranks write, maybe not for the last time: let them go on for a moment."""
        self.simulation.polls.look(f"{name} of memory that ranks share")

    def finish_stream(self, name: str) -> None:
        """Wait for one of the rank's streams, and for what it has to wait for."""
        self.simulation.host_reads.finish_stream(name)

    def synchronize(self, device: Device = None) -> None:
        """Wait for all streams of a GPU, those of its groups too: ``cudaDeviceSynchronize``. A compiler that measures has
        nothing on them."""
        if not self.doing.compiling:
            self.simulation.host_reads.synchronize((), self.sip(device))
