"""``torch.cuda`` and ``torch.accelerator`` inside a rank: functions of torch's names for simulated GPUs, and the table of them.

Time is virtual: ``synchronize`` and ``Event.elapsed_time`` speak of it. What cannot be pretended raises and says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.cuda._utils import _get_device_index
from torch.types import Device

from kernbench.cost.work import stated_cost
from kernbench.topology import Topology
from kernbench.torch_backend.gpu.device import streams
from kernbench.torch_backend.gpu.device.devices import are_there, bound_devices, current_device
from kernbench.torch_backend.gpu.device.generators import DefaultGenerators, home_of
from kernbench.torch_backend.gpu.device.identity import bus_of, capability_of
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.device.software_versions import CUDNN, architectures, nccl_version
from kernbench.torch_backend.gpu.device.visible_devices import uuid_of
from kernbench.torch_backend.gpu.memory import memory_pools
from kernbench.torch_backend.gpu.names import cuda_comm, cuda_graphs, cuda_runtime, runtime_traces, source_kernels
from kernbench.torch_backend.gpu.tensors.placement import is_wrapped_by_transform
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance, fit


def always(*args: object, **kwargs: object) -> bool:
    """True of every simulated GPU."""
    return True


def never(*args: object, **kwargs: object) -> bool:
    """True of no simulated GPU."""
    return False


def nothing(*args: object, **kwargs: object) -> None:
    """Without effect on a simulated GPU."""


def is_available() -> bool:
    """Whether the program sees a GPU; it sees these from then on, whatever its environment says later."""
    mine = current_device()
    return mine is None or bool(mine.visible)


def is_in_bad_fork() -> bool:
    """Whether the process was forked by a rank that had used its GPU by then. A rank that was forked as one has its GPU."""
    mine = current_device()
    return mine is not None and bool(mine.lost)


def start() -> None:
    """``torch.cuda.init``. Raises RuntimeError if the program sees no GPU."""
    mine = current_device()
    if mine is not None and (mine.lost or not mine.visible):
        mine.number()


def current_accelerator(check_available: bool = False) -> torch.device | None:
    """``torch.accelerator.current_accelerator``."""
    return torch.device("cuda") if not check_available or is_available() else None


def is_acceptable(tensor: torch.Tensor) -> bool:
    """``torch.backends.cudnn.is_acceptable``, of a torch with cuDNN: one without warns of recurrent layers. It cannot lay out
    what has no memory."""
    cudnn = torch.backends.cudnn
    on_gpu = tensor.device.type == "cuda" and not is_wrapped_by_transform(tensor)
    return bool(cudnn.enabled and on_gpu and tensor.dtype in cudnn.CUDNN_TENSOR_DTYPES)


# -- which GPU, and what it is -----------------------------------------------------------------------------------------


def _mine() -> RankDevice:
    return bound_devices().mine()


def device_count() -> int:
    return bound_devices().count


def current_device_index() -> int:
    """``torch.cuda.current_device``."""
    mine = _mine()
    return mine.told(mine.index)


def set_device(device: Device) -> None:
    """``torch.cuda.set_device``. Raises ValueError if that is no GPU, or not which."""
    mine = _gone_on_to(device)
    if mine is not None:
        mine.has_chosen = True


def _gone_on_to(device: Device) -> RankDevice | None:
    """The rank, which is on another GPU now; None: that is no GPU, or there is no rank, as in a DataLoader's thread that pins
    memory."""
    index, mine = _get_device_index(device), current_device()
    if mine is None or index < 0:
        return None
    mine.go_on_to(index)
    return mine


def exchange_device(device: Device) -> int:
    """Make a GPU the current one; the index of the one before."""
    before = current_device_index()
    _gone_on_to(device)
    return before


class DeviceGuard:
    """``torch.cuda.device``: another device for the length of a block."""

    def __init__(self, device: Device) -> None:
        mine = _mine()
        self.idx = mine.told(mine.number(device))

    def __enter__(self) -> None:
        mine = _mine()
        self._before = mine.host.sip
        mine.go_on_to(self.idx)

    def __exit__(self, *exc: Any) -> None:
        _mine().host.drive(self._before)


def synchronize(device: Device = None) -> None:
    if are_there():  # an exit handler has kept this function; nothing is under way any more
        _mine().synchronize(device)


class GpuProperties(SimpleNamespace):
    """What ``torch.cuda.get_device_properties`` gives, printed as torch prints it. Clocks are in kHz, sizes in bytes."""

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name={self.name!r}, major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id=0, pci_domain_id=0, "
            f"L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def properties_of(topology: Topology, sip: int = 0) -> GpuProperties:
    """What ``torch.cuda.get_device_properties`` says of a SIP of a system."""
    spec = topology.device
    major, minor = capability_of(spec.target.arch)
    memory_clock, memory_bits = spec.hbm.pins
    return GpuProperties(
        name=spec.product or spec.name, major=major, minor=minor, total_memory=spec.hbm.size, multi_processor_count=spec.pes,
        is_integrated=0, is_multi_gpu_board=0, warp_size=spec.target.warp_size, gcnArchName=str(spec.target.arch),
        max_threads_per_multi_processor=spec.pe.max_threads, max_threads_per_block=1024,
        regs_per_multiprocessor=spec.pe.registers // 4, clock_rate=round(spec.clock / 1e3),
        memory_clock_rate=memory_clock, memory_bus_width=memory_bits,
        shared_memory_per_multiprocessor=spec.pe.tcm.size, shared_memory_per_block=spec.pe.tcm_per_block,
        shared_memory_per_block_optin=spec.pe.tcm_per_block, L2_cache_size=spec.l2.size if spec.l2 else 0,
        uuid=uuid_of(topology.system.name, sip), pci_bus_id=bus_of(sip % topology.sips_per_node), pci_device_id=0,
        pci_domain_id=0,
    )  # fmt: skip


def _checked(device: Device, words: str = "Invalid device id") -> None:
    """Raise AssertionError, as torch does before it asks the runtime, if there is no GPU of a number."""
    start()
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise AssertionError(words)


def get_device_properties(device: Device = None) -> GpuProperties:
    mine = current_device()
    if device is not None:
        _checked(device)
    return properties_of(bound_devices().simulation.topology, 0 if mine is None else mine.sip(device))


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """``torch.cuda.can_device_access_peer``."""
    _checked(device)
    _checked(peer_device, "Invalid peer device id")
    return True


def get_arch_list() -> list[str]:
    """``torch.cuda.get_arch_list``: what a build of torch for such a GPU has kernels for."""
    return architectures(bound_devices().simulation.topology)


def cudnn_version() -> int | None:
    """``torch.backends.cudnn.version``."""
    return CUDNN if bound_devices().simulation.topology.device.target.backend == "cuda" else None


def get_device_name(device: Device = None) -> str:
    name: str = get_device_properties(device).name
    return name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    properties = get_device_properties(device)
    return properties.major, properties.minor


# -- random numbers ----------------------------------------------------------------------------------------------------


def _generator(device: Device = None) -> torch.Generator:
    return _mine().generators.of(bound_devices().number(device))


def _index(device: Device) -> int | None:
    """What torch's functions of states take of a device: its index alone, whatever kind it is of."""
    return torch.device(device).index if isinstance(device, str | torch.device) else device


def _reseed(seed: int) -> int:
    """Raise RuntimeError, as torch does, if a graph is captured whose generator has another seed."""
    mine = current_device()
    if mine is not None and mine.host.capture is not None and _generator().initial_seed() != int(seed):
        raise RuntimeError(
            "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the "
            "original seed."
        )
    return int(seed)


def manual_seed(seed: int) -> None:
    _generator().manual_seed(_reseed(seed))


def manual_seed_all(seed: int) -> None:
    mine = current_device()
    if mine is not None:
        mine.generators.seed_all(_reseed(seed))


def seed() -> None:
    _generator().seed()


def seed_all() -> None:
    manual_seed_all(_generator().seed())


def initial_seed() -> int:
    return _generator().initial_seed()


def get_rng_state(device: Device = "cuda") -> torch.Tensor:
    generator, capture = _generator(_index(device)), _mine().host.capture
    return generator.get_state() if capture is None else capture.read_state(home_of(generator))


def set_rng_state(new_state: torch.Tensor, device: Device = "cuda") -> None:
    generator, capture = _generator(_index(device)), _mine().host.capture
    if capture is None:
        generator.set_state(new_state.cpu())
    else:
        capture.put_state(home_of(generator), new_state, torch.equal)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def get_sync_debug_mode() -> int:
    return _mine().host.sync_debug


def set_sync_debug_mode(debug_mode: int | str) -> None:
    modes = {"default": 0, "warn": 1, "error": 2}
    if isinstance(debug_mode, str) and debug_mode not in modes:
        raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
    _mine().host.sync_debug = modes[debug_mode] if isinstance(debug_mode, str) else int(debug_mode)


def sleep(cycles: int) -> None:
    """``torch.cuda._sleep``: a kernel that takes so many cycles of a clock of 1 GHz."""
    _mine().enqueue("sleep", stated_cost(cycles / 1e9))


def current_blas_handle() -> int:
    """``torch.cuda.current_blas_handle``: a number that stands for the handle of cuBLAS."""
    return 1


def current_solver_handle() -> int:
    """``torch.cuda.current_solver_handle``: one that stands for the handle of cuSOLVER."""
    return 2


# -- the tables --------------------------------------------------------------------------------------------------------


def each_its_own(table: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """The table with no function twice, nor one of the others': Dynamo looks up by function which name it has."""
    seen = {id(value) for other in others for value in other.values()}
    own = {}
    for name, value in table.items():
        own[name] = _another(value) if id(value) in seen and isinstance(value, FunctionType) else value
        seen.add(id(value))
    return own


def _another(function: Callable[..., object]) -> Callable[..., Any]:
    """A function of its own that does the same."""
    return lambda *args, **kwargs: function(*args, **kwargs)


CUDA: dict[str, Any] = each_its_own({
    "is_available": is_available,
    "is_initialized": always,
    "_initialized": True,
    "_is_compiled": always,
    "init": start,
    "_lazy_init": start,
    "_lazy_call": lambda callable, **kwargs: callable(),
    "is_bf16_supported": always,
    "device_count": device_count,
    "current_device": current_device_index,
    "set_device": set_device,
    "_DeviceGuard": DeviceGuard,
    "_exchange_device": exchange_device,
    "_maybe_exchange_device": exchange_device,
    "synchronize": synchronize,
    "ipc_collect": nothing,
    "_is_in_bad_fork": is_in_bad_fork,
    "get_device_name": get_device_name,
    "get_device_capability": get_device_capability,
    "get_device_properties": get_device_properties,
    "_CudaDeviceProperties": GpuProperties,
    "can_device_access_peer": can_device_access_peer,
    "get_arch_list": get_arch_list,
    "Stream": streams.Stream,
    "ExternalStream": streams.ExternalStream,
    "Event": streams.Event,
    "stream": streams.StreamContext,
    "StreamContext": streams.StreamContext,
    "set_stream": streams.set_stream,
    "current_stream": streams.current_stream,
    "default_stream": streams.default_stream,
    "manual_seed": manual_seed,
    "manual_seed_all": manual_seed_all,
    "seed": seed,
    "seed_all": seed_all,
    "initial_seed": initial_seed,
    "get_rng_state": get_rng_state,
    "set_rng_state": set_rng_state,
    "get_rng_state_all": get_rng_state_all,
    "set_rng_state_all": set_rng_state_all,
    "default_generators": DefaultGenerators(device_count, _generator),
    "_sleep": sleep,
    "cudart": cuda_runtime.cudart,
    "_cudart": cuda_runtime.CUDART,
    "get_sync_debug_mode": get_sync_debug_mode,
    "set_sync_debug_mode": set_sync_debug_mode,
    "current_blas_handle": current_blas_handle,
    "MemPool": memory_pools.MemPool,
    "use_mem_pool": memory_pools.use_mem_pool,
    "_compile_kernel": source_kernels.compile_kernel,
    **cuda_graphs.CUDA_GRAPHS,
})  # fmt: skip
"""``torch.cuda``'s attributes."""

ACCELERATOR: dict[str, Any] = each_its_own({
    "is_available": is_available,
    "device_count": device_count,
    "current_accelerator": current_accelerator,
    "current_device_index": current_device_index,
    "current_device_idx": current_device_index,
    "set_device_index": set_device,
    "set_device_idx": set_device,
    "current_stream": streams.current_stream,
    "set_stream": streams.set_stream,
    "synchronize": synchronize,
    "get_device_capability": get_device_capability,
    **cuda_graphs.ACCELERATOR_GRAPHS,
}, CUDA)  # fmt: skip
"""``torch.accelerator``'s attributes."""

ACCELERATOR_IN_C: dict[str, Any] = each_its_own({
    "_get_accelerator": lambda check=None: current_accelerator(bool(check)) or torch.device("cpu"),
    "_accelerator_exchangeDevice": exchange_device,
    "_accelerator_maybeExchangeDevice": exchange_device,
    "_accelerator_getDeviceIndex": current_device_index,
    "_accelerator_setDeviceIndex": set_device,
    "_accelerator_synchronizeDevice": synchronize,
    "_accelerator_getStream": streams.current_stream,
    "_accelerator_setStream": streams.set_stream,
    "_graph_pool_handle": cuda_graphs.graph_pool_handle,
}, CUDA, ACCELERATOR)  # fmt: skip
"""Attributes of ``torch._C`` that ``torch.accelerator`` and programs call."""

_MARKS = ("range_push", "range_pop", "range_start", "range_end", "mark", "_device_range_start", "_device_range_end")

NVTX: dict[str, Any] = {name: lambda *args, **kwargs: 0 for name in _MARKS}
"""``torch.cuda.nvtx``'s attributes; its ``range``, a context and a decorator, calls these."""

_TABLES: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("torch.cuda", torch.cuda, CUDA),
    ("torch.cuda.nccl", torch.cuda.nccl, {"version": nccl_version}),
    (
        "torch.cuda.profiler",
        torch.cuda.profiler,
        each_its_own({"start": nothing, "stop": nothing}, CUDA, ACCELERATOR_IN_C),
    ),
    ("torch.cuda.nvtx", torch.cuda.nvtx, NVTX),
    ("torch.backends.cudnn", torch.backends.cudnn, {"is_acceptable": is_acceptable, "version": cudnn_version}),
    ("torch.accelerator", torch.accelerator, ACCELERATOR),
    ("torch.accelerator.graphs", torch.accelerator.graphs, cuda_graphs.ACCELERATOR_GRAPHS),
    ("torch._C", torch._C, ACCELERATOR_IN_C),
)

RELIES_ON = (
    Reliance("torch.cuda._utils._get_device_index", "it raises in torch's words for what is no GPU"),
    *(Reliance(name, "programs for GPUs call these names, which are answered here", has=tuple(table))
      for name, _, table in _TABLES),
    *(Reliance(name, "what it calls in C++ takes here what it gives", holds=fit(ACCELERATOR_IN_C))
      for name in ("torch.cuda", "torch.cuda.random", "torch.accelerator")),
)  # fmt: skip


def _instead_of(stock: type, simulated: type) -> Any:
    """``stock.__new__``: a program that has kept torch's class, by ``from torch.cuda import Event`` say, makes ours by it."""
    stock_new: Any = vars(stock)["__new__"]

    @functools.wraps(stock_new)
    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        return simulated(*args, **kwargs) if cls is stock else stock_new.__func__(cls, *args, **kwargs)

    return staticmethod(make)


def install(patches: Patches) -> None:
    """Give torch the simulated GPUs."""
    cuda_comm.install(patches)
    runtime_traces.install(patches)
    for _, owner, table in _TABLES:
        for name, value in table.items():
            stock = vars(owner).get(name)
            if isinstance(stock, type) and isinstance(value, type) and "__new__" in vars(stock):
                patches.set(stock, "__new__", _instead_of(stock, value))
            patches.set(owner, name, value)
    for module in (
        torch.cuda.random,
        torch.cuda.memory,
        torch.cuda.streams,
        torch.cuda.graphs,
    ):  # which have names of torch.cuda's
        for name in sorted(vars(module).keys() & CUDA.keys()):
            patches.set(module, name, vars(torch.cuda)[name])
