"""Simulated GPUs: what a rank of a program that was written for ``cuda`` sees.

Its tensors are CPU tensors. torch's own factories work with ``device="cuda"``, because the two operations that allocate
(``empty``, ``empty_strided``) are given kernels for the CUDA dispatch key which allocate on the CPU. What asks a CUDA runtime
first is replaced: functions (``functions``), methods of tensors (``tensor_methods``), classes (``classes``) and
``torch.cuda`` (``cuda_names``, ``streams``). Which tensors are "on" the GPU is kept with their storages (``placement``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.types import Device

from kernbench.errors import KernbenchError
from kernbench.memory.pinned_memory import PinnedBlock
from kernbench.simulation.memory.storages import DeviceMemory
from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.listeners import Listener, Stages
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.assumptions import default_stand_in, fill
from kernbench.torch_backend.features import sync_batch_norm
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.kernels import (
    autocasting,
    fused_cells,
    fused_operators,
    packed_weights,
    program_kernels,
    recurrent_layers,
    vendor_operators,
)
from kernbench.torch_backend.gpu.tensors.pinning import is_pinned
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.hollow.executor import HollowValues
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.computing import ComputedValues, Executor
from kernbench.torch_backend.operations.filling import Filling
from kernbench.torch_backend.operations.flop_counts import FlopCounts
from kernbench.torch_backend.operations.ordering import order_listeners
from kernbench.torch_backend.operations.plans import Plans
from kernbench.torch_backend.operations.recorder import Recorder, open_recorder
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C._ensureCUDADeviceGuardSet", "C++ may ask which GPU is the current one without a CUDA runtime"),
)


class HostDevices:
    """The devices of a simulation's hosts, and the recorders of what torch computes for them.

    A rank with a thread of its own has a recorder of its own, which is on as long as the rank lives. Main, and ranks that are
    greenlets, share a recorder that asks who runs; it is on as long as such ranks live, and in main while something is computed
    with tensors of the context.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._devices: dict[Host, RankDevice] = {}
        self._stages = Stages(_listeners(simulation))
        computed = ComputedValues(widens=not simulation.exact_dtype)
        has_data = simulation.engine.enable_data
        self._executor: Executor = computed if has_data else HollowValues(simulation, computed)
        widens = not simulation.exact_dtype
        launch = simulation.topology.device.launch.overhead
        flops = FlopCounts(simulation.op_costs)
        self._plans = Plans(simulation.op_costs, flops, self._executor, launch, widens=widens)
        self._shared = self._recorder(self.current, simulation.hosts.current, shared=True)
        self._recording = False

    def of(self, host: Host) -> RankDevice:
        """The device of a host."""
        device = self._devices.get(host)
        if device is None:
            if host.rank is not None and len(self._devices) > len(self.simulation.hosts.of_rank):
                self._forget()
            device = self._devices[host] = RankDevice(self.simulation, host)
        return device

    def _forget(self) -> None:
        """Drop the devices of worlds that have ended."""
        hosts = self.simulation.hosts
        alive = {hosts.main, *hosts.of_rank.values()}
        self._devices = {host: device for host, device in self._devices.items() if host in alive}

    def current(self) -> RankDevice:
        """The running rank's device."""
        return self.of(self.simulation.hosts.current())

    def lose(self, device: RankDevice) -> None:
        """In a process that a rank has forked: its GPU is not there, nor is what it has in that GPU's memory."""
        device.lost = _BAD_FORK

        def refuse(call: OperatorCall) -> None:
            if any(map(block_of, listed_tensors((*call.args, *call.kwargs.values())))):
                device.require()

        self._stages.computing = (*self._stages.computing, refuse)
        device.host.detours += 1

    def recorder_of(self, rank: int) -> Recorder:
        """A recorder of one rank."""
        device = self.of(self.simulation.hosts.of_rank[rank])
        host = device.host
        return self._recorder(lambda: device, lambda: host)

    def _recorder(self, who: Callable[[], RankDevice], host: Callable[[], Host], *, shared: bool = False) -> Recorder:
        return Recorder(self.simulation, who, host, self._executor, self._plans, self._stages, shared=shared)

    @staticmethod
    def paused() -> AbstractContextManager[None]:
        """For the length of a block, what torch computes in this thread is seen by no mode."""
        return plain_torch()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """For the length of a block, what torch computes in this thread, which is main's, is recorded."""
        if self._recording:
            yield
            return
        self._recording = True
        try:
            with open_recorder(self._shared):
                yield
        finally:
            self._recording = False


def _listeners(simulation: Simulation) -> Iterator[Listener]:
    """The features of a simulation that listen to torch's operations, in this order."""
    yield from simulation.listeners
    if simulation.order is not None:
        yield from order_listeners(weak=simulation.order.weak is not None)
    if simulation.fill_uninitialized != "off" and simulation.engine.enable_data:
        yield Filling(simulation.fill_uninitialized)


_BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
    "you must use the 'spawn' start method"
)
"""torch's words."""

ENDED = "simulated GPUs exist while ranks run, and they have ended"

_allocating: list[Devices] = []
"""Whose the tensors are that torch makes on ``cuda`` now. A kernel that torch has once been given is kept for ever, so it must
not be a method."""


def bound_devices() -> Devices:
    """The simulated GPUs of the spawn whose ranks run. Raises :class:`KernbenchError` when none do."""
    if not _allocating:
        raise KernbenchError(ENDED)
    return _allocating[-1]


def current_device() -> RankDevice | None:
    """The device of the rank that runs; None outside ranks."""
    return _allocating[-1].current() if _allocating else None


def take_pinned(nbytes: int) -> PinnedBlock | None:
    """A block of pinned memory of the rank that runs, for as long as it is referenced; None outside ranks."""
    device = current_device()
    return None if device is None else device.pinned_memory.take(nbytes)


def compares_devices() -> bool:
    """Whether operands on several devices are refused where the program is now: not in what a kernel computes with."""
    device = current_device()
    return device is not None and not device.inside_operation


def _lose() -> None:
    if _allocating:
        _allocating[-1].lose()


os.register_at_fork(after_in_child=_lose)


def current_index() -> int | None:
    """Number of the GPU that the rank which runs drives, as it counts them; None outside ranks."""
    device = current_device()
    return None if device is None else device.told(device.index)


def current_rank() -> int | None:
    """The rank that runs; None outside ranks."""
    device = current_device()
    return None if device is None else device.host.rank


def _empty(
    size: Any, *, dtype: Any = None, layout: object = None, device: Device = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    tensor = torch.ops.aten.empty.memory_format(
        size, dtype=dtype, layout=layout, device="cpu", memory_format=memory_format
    )
    return _allocating[-1].mine().on_device(tensor, device)


def _empty_strided(
    size: Any, stride: Any, *, dtype: object = None, layout: Any = None, device: Device = None, pin_memory: Any = None
) -> torch.Tensor:
    tensor = torch.ops.aten.empty_strided(size, stride, dtype=dtype, layout=layout, device="cpu")
    return _allocating[-1].mine().on_device(tensor, device)


def are_there() -> bool:
    """Whether ranks run, and with them simulated GPUs."""
    return bool(_allocating)


def allocate(size: Any, stride: Any, dtype: Any) -> torch.Tensor:
    """Memory of the GPU that the rank which runs drives, for what a compiled graph computes."""
    tensor = _empty_strided(size, stride, dtype=dtype)
    simulation = bound_devices().simulation
    if not simulation.engine.enable_data and tensor.nbytes <= simulation.storages.most_bytes:
        value = default_stand_in(dtype)  # kernels are counted: it is never written
        with bound_devices().mine().host.as_one():
            fill(tensor, value)
        simulation.storages.note(tensor).stand_in = value
    return tensor


class Devices:
    """The simulated GPUs of the spawn that it is bound to. The functions that are replaced keep it beyond that one."""

    def __init__(self) -> None:
        self._hosts: HostDevices | None = None
        self._library: Any = None
        self._kernels: Any = None
        self._shapes: Any = None

    @property
    def simulation(self) -> Simulation:
        """Raises :class:`KernbenchError` when no ranks run."""
        if self._hosts is None:
            raise KernbenchError(ENDED)
        return self._hosts.simulation

    @property
    def count(self) -> int:
        """SIPs that the program sees: what ``torch.cuda.device_count`` says, which is no use of one yet."""
        device = self.current()
        return len(self.simulation.sips if device is None else device.sees())

    def current(self) -> RankDevice | None:
        """The device of the rank that runs, None outside ranks."""
        if self._hosts is None:
            return None
        host = self._hosts.simulation.hosts.current()
        return None if host.rank is None else self._hosts.of(host)

    def mine(self) -> RankDevice:
        """The device of the rank that runs."""
        device = self.current()
        if device is None:
            beside = self._hosts is not None and self.simulation.world.is_beside
            until = ". The ranks that it has spawned have not ended: join them before it uses one" if beside else ""
            raise KernbenchError(f"simulated GPUs exist inside ranks: this is main{until}")
        return device

    def recorder_of(self, rank: int) -> Recorder:
        """A recorder of one rank."""
        assert self._hosts is not None
        return self._hosts.recorder_of(rank)

    def memory_at(self, device: Device = None) -> DeviceMemory:
        """Memory of a device given as torch lets one give it; default: the current one."""
        return self.mine().memory_at(device)

    def number(self, device: Device = None) -> int:
        """Index of a device given as an index, a string, a ``torch.device`` or None."""
        return self.mine().number(device)

    def told(self, index: int) -> int:
        """What the running rank reports to torch about the GPU of this number."""
        return self.mine().told(index)

    def on_device(self, tensor: torch.Tensor, device: Device = None) -> torch.Tensor:
        """Put a fresh tensor of the rank that runs on a GPU, by default on its own."""
        return self.mine().on_device(tensor, device)

    # -- life --------------------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """In a process that has been forked: a GPU that the rank has used by then is not there."""
        device = self.current() if self._hosts is not None else None
        if device is not None and device.host.rank is not None and device.host.uses_gpu:
            assert self._hosts is not None
            self._hosts.lose(device)

    def bind(self, hosts: HostDevices) -> None:
        """Answer for the GPUs of a simulation."""
        self._hosts = hosts

    def open(self, hosts: HostDevices) -> None:
        """Give torch the simulated GPUs of a simulation."""
        self.bind(hosts)
        hosts.simulation.kernels.maps = is_pinned
        torch._C._ensureCUDADeviceGuardSet()
        _allocating.append(self)
        self._library = torch.library.Library("aten", "IMPL", "CUDA")
        self._library.impl("empty.memory_format", _empty, "CUDA")
        self._library.impl("empty_strided", _empty_strided, "CUDA")
        self._kernels = torch.library.Library("aten", "IMPL", "CPU")
        sync_batch_norm.register(self._kernels)
        fused_operators.register(self._kernels)
        fused_cells.register(self._kernels)
        recurrent_layers.register(self._kernels)
        vendor_operators.register(self._kernels)
        packed_weights.register(self._kernels)
        self._shapes = torch.library.Library("aten", "IMPL", "Meta")
        recurrent_layers.register_shapes(self._shapes)
        vendor_operators.register_shapes(self._shapes)
        packed_weights.register_shapes(self._shapes)

    def close(self) -> None:
        """Take them away again. Idempotent."""
        program_kernels.forget()
        autocasting.close()
        if self._library is not None:
            _allocating.remove(self)
        for library in (self._library, self._kernels, self._shapes):
            if library is not None:
                library._destroy()
        self._library = self._kernels = self._shapes = None
        self._hosts = None
