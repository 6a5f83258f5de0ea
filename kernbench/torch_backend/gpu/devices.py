"""Simulated GPUs: what a rank of a program that was written for ``cuda`` sees.

Its tensors are CPU tensors. torch's own factories work with ``device="cuda"``, because the two operations that allocate
(``empty``, ``empty_strided``) are given kernels for the CUDA dispatch key which allocate on the CPU. What asks a CUDA runtime
first is replaced: functions (``device_functions``), methods of tensors (``device_tensors``), classes (``device_classes``) and
``torch.cuda`` (``cuda_names``). Which tensors are "on" the GPU is kept with their storages (``placement``).

Relies on: a CPU build of torch has no CUDA kernels of those two; ``torch._C._ensureCUDADeviceGuardSet``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from kernbench.cost.work import Cost, copy_cost, over_links
from kernbench.errors import KernbenchError
from kernbench.runtime_api.remote_traffic import RemoteTraffic
from kernbench.sim_engine.operation import Operation
from kernbench.torch_backend.features import sync_batch_norm
from kernbench.torch_backend.gpu import classes as device_classes
from kernbench.torch_backend.gpu import cuda_names
from kernbench.torch_backend.gpu import functions as device_functions
from kernbench.torch_backend.gpu import tensor_methods as device_tensors
from kernbench.torch_backend.gpu.generators import DeviceGenerators
from kernbench.torch_backend.gpu.placement import DeviceMemory, block_of, place
from kernbench.torch_backend.gpu.recording import Recorder, put_on_stream
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.process_state import seed_of
from kernbench.torch_backend.symmetric_memory import buffers as symmetric_memory

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.runtime_api.rank_state import RankState


class RankDevice:
    """The SIP that a rank drives, as torch sees it.

    Attributes:
        used: whether the program has put anything on a GPU: then only that is recorded, else everything is.
        generators: of the rank's GPUs.
        memory: of the SIP that the rank drives now.
        in_custom_operation: how many custom operations it is computing, one inside the other.
        collective_memory: where the tensors of the functional collective are that the rank is calling now.
    """

    def __init__(self, devices: Devices, rank: int) -> None:
        self.ctx = devices.ctx
        self.state: RankState = devices.ctx._ranks[rank]
        self.used = False
        self.in_custom_operation = 0
        self.collective_memory: DeviceMemory | None = None
        self.recorder = Recorder(self)
        self.generators = DeviceGenerators(seed_of(self.ctx.seed, rank))
        self._devices = devices

    @property
    def index(self) -> int:
        """Number of the SIP that the rank drives, as ``torch.cuda.current_device`` counts."""
        return self._devices.index_of_sip(self.state.sip)

    @property
    def memory(self) -> DeviceMemory:
        return self._devices.memory(self.state.sip)

    def enqueue(self, name: str, cost: Cost) -> Operation:
        """Put an operation on the rank's stream."""
        return put_on_stream(self, name, cost)

    def memory_at(self, device: Any) -> DeviceMemory:
        """Memory of a device that the program names."""
        return self._devices.memory_at(device)

    def number(self, device: Any) -> int:
        """Index of a device that the program names."""
        return self._devices.number(device)

    def transfer(self, outputs: Sequence[torch.Tensor], memory: DeviceMemory | None) -> None:
        """A copy from the host to a SIP's ``memory``, or (None) to the host, which waits for what is on the stream."""
        to_device = memory is not None
        nbytes = sum(output.numel() * output.element_size() for output in outputs)
        route = self.ctx.topology.host_route(self.state.sip, "h2d" if to_device else "d2h")
        name = "host to device" if to_device else "device to host"
        for output in outputs:
            place(output, memory)
        if self.ctx.hooks is not None and not to_device:
            self.ctx.hooks.host_read(outputs[0], "cpu")
        op = self.enqueue(name, copy_cost(route, nbytes))
        if not to_device:
            self.ctx.wait(op)

    def peer_copy(self, outputs: Sequence[torch.Tensor], source: DeviceMemory, target: DeviceMemory) -> None:
        """A copy from one SIP's memory to another's, on the links between them; it is on the rank's stream."""
        nbytes = sum(output.numel() * output.element_size() for output in outputs)
        route = self.ctx.topology.route(self.ctx.sips[source.index], self.ctx.sips[target.index])
        for output in outputs:
            place(output, target)
        self.enqueue("device to device", copy_cost(route, nbytes, "link"))

    def over_links(self, cost: Cost, tensors: Sequence[torch.Tensor]) -> Cost:
        """``cost`` of an operation some of whose operands may be in other SIPs' memory."""
        remote = RemoteTraffic(self.ctx)
        for tensor in tensors:
            block = block_of(tensor)
            if block is not None and block.shared:
                remote.move(self.ctx.sips[block.memory.index], self.state.sip, tensor.numel() * tensor.element_size())
        return over_links(cost, remote.seconds, remote.latency) if remote.nbytes else cost

    def look_around(self, name: str) -> None:
        """The host has looked at memory that other ranks write, maybe not for the last time: let them go on for a moment."""
        state = self.state
        look = Operation(
            f"{name} of memory that ranks share",
            "timer",
            rank=state.rank,
            sip=state.sip,
            stream="host",
            enqueue=state.clock,
        )
        self.ctx.polls.look(look)

    def finish(self) -> None:
        """Wait for what the rank has enqueued on its stream, and for what that stream was told to wait for."""
        self.finish_stream(self.state.stream)

    def finish_stream(self, name: str) -> None:
        """Wait for one of the rank's streams."""
        for op in self.state.before(name):
            self.ctx.wait(op)
        self.state.awaited.pop(name, None)

    def synchronize(self) -> None:
        """Wait for all streams of the rank, those of its groups too: ``cudaDeviceSynchronize``."""
        for op in list(self.state.tails.values()):
            self.ctx.wait(op)
        self.state.awaited.clear()


_allocating: list[Devices] = []
"""Whose the tensors are that torch makes on ``cuda`` now. A kernel that torch has once been given is kept for ever, so it must
not be a method."""


def current_device() -> RankDevice | None:
    """The device of the rank that runs; None outside ranks."""
    return _allocating[-1].current() if _allocating else None


def current_index() -> int | None:
    """Number of the GPU that the rank which runs drives; None outside ranks."""
    device = current_device()
    return None if device is None else device.index


def current_rank() -> int | None:
    """The rank that runs; None outside ranks."""
    device = current_device()
    return None if device is None else device.state.rank


def _empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    tensor = torch.ops.aten.empty.memory_format(
        size, dtype=dtype, layout=layout, device="cpu", memory_format=memory_format
    )
    return _allocating[-1].on_device(tensor, device)


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    tensor = torch.ops.aten.empty_strided(size, stride, dtype=dtype, layout=layout, device="cpu")
    return _allocating[-1].on_device(tensor, device)


class Devices:
    """The simulated GPUs of the spawn that it is bound to. The functions that are replaced keep it beyond that one."""

    def __init__(self) -> None:
        self._ctx: RuntimeContext | None = None
        self._ranks: dict[int, RankDevice] = {}
        self._memories: dict[int, DeviceMemory] = {}
        self._library: Any = None
        self._kernels: Any = None
        self.symmetric_memory = symmetric_memory.SymmetricMemory(self)
        self._index: dict[int, int] = {}

    @property
    def ctx(self) -> RuntimeContext:
        """The simulation. Raises :class:`KernbenchError` when no ranks run."""
        if self._ctx is None:
            raise KernbenchError("simulated GPUs exist while ranks run, and they have ended")
        return self._ctx

    def index_of_sip(self, sip: int) -> int:
        return self._index[sip]

    @property
    def count(self) -> int:
        """SIPs of the node: what ``torch.cuda.device_count`` says."""
        return len(self.ctx.sips)

    def memory(self, sip: int) -> DeviceMemory:
        """Memory of a SIP."""
        found = self._memories.get(sip)
        if found is None:
            noting = functools.partial(self.ctx.note_memory, sip)
            found = self._memories[sip] = DeviceMemory(self._index[sip], self.ctx.topology.device.hbm.size, noting)
        return found

    def of(self, rank: int) -> RankDevice:
        """The device of a rank."""
        device = self._ranks.get(rank)
        if device is None:
            device = self._ranks[rank] = RankDevice(self, rank)
        return device

    def current(self) -> RankDevice | None:
        """The device of the rank that runs, None outside ranks."""
        rank = None if self._ctx is None else self._ctx.scheduler.current_rank()
        return None if rank is None else self.of(rank)

    def mine(self) -> RankDevice:
        """The device of the rank that runs."""
        device = self.current()
        if device is None:
            raise KernbenchError("simulated GPUs exist inside ranks: this is main")
        return device

    def memory_at(self, device: Any = None) -> DeviceMemory:
        """Memory of a device given as torch lets one give it; default: the current one."""
        index = self.number(device)
        return self.memory(self.ctx.sips[index])

    def number(self, device: Any = None) -> int:
        """Index of a device given as an index, a string, a ``torch.device`` or None."""
        if isinstance(device, int):
            index: int | None = device
        elif device is None:
            index = None
        else:
            index = torch.device(device).index
        if index is None or index < 0:
            return self.mine().index
        if index >= self.count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal {index}: the simulated system has {self.count} devices"
            )
        return index

    # -- life --------------------------------------------------------------------------------------------------------

    def install(self, patches: Patches) -> None:
        """Replace the names, for this spawn's ranks and for those that it will be bound to."""
        device_classes.install(patches, self, cuda_names.install(patches, self))
        device_functions.install(patches, self)
        device_tensors.install(patches, self)
        symmetric_memory.install(patches, self.symmetric_memory)

    def bind(self, ctx: RuntimeContext) -> None:
        """Answer for the GPUs of ``ctx``."""
        self._ctx = ctx
        self._index = {sip: index for index, sip in enumerate(ctx.sips)}

    def open(self, ctx: RuntimeContext) -> None:
        """Give torch the simulated GPUs of ``ctx``."""
        self.bind(ctx)
        torch._C._ensureCUDADeviceGuardSet()
        _allocating.append(self)
        self._library = torch.library.Library("aten", "IMPL", "CUDA")
        self._library.impl("empty.memory_format", _empty, "CUDA")
        self._library.impl("empty_strided", _empty_strided, "CUDA")
        self._kernels = torch.library.Library("aten", "IMPL", "CPU")
        sync_batch_norm.register(self._kernels)
        self.symmetric_memory.open()

    def close(self) -> None:
        """Take them away again. Idempotent."""
        if self._library is not None:
            _allocating.remove(self)
        for library in (self._library, self._kernels):
            if library is not None:
                library._destroy()
        self._library = self._kernels = None
        self._ranks.clear()
        self.symmetric_memory.close()
        for memory in self._memories.values():
            memory.changed = None
        self._memories.clear()
        self._ctx = None

    # -- allocating --------------------------------------------------------------------------------------------------

    def on_device(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        """Put a fresh tensor of the rank that runs on a GPU, by default on its own."""
        mine = self.mine()
        mine.used = True
        place(tensor, self.memory_at(device))
        return tensor
