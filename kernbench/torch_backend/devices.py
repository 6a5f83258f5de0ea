"""Simulated GPUs: what a rank of a program that was written for ``cuda`` sees.

Its tensors are CPU tensors. torch's own factories work with ``device="cuda"``, because the two operations that allocate
(``empty``, ``empty_strided``) are given kernels for the CUDA dispatch key which allocate on the CPU; a few functions that ask
a CUDA runtime first are wrapped. Which tensors are "on" the GPU is kept with their storages (``placement``).

Relies on: a CPU build of torch has no CUDA kernels of those two; ``torch._C._ensureCUDADeviceGuardSet``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kernbench.cost.work import Cost, copy_cost
from kernbench.errors import KernbenchError
from kernbench.sim_engine.operation import Operation
from kernbench.torch_backend.device_classes import TENSOR_TYPES, default_device
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.placement import DeviceMemory, block_of, place, place_storage
from kernbench.torch_backend.recording import Recorder, put_on_stream

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.runtime_api.rank_state import RankState


class RankDevice:
    """The SIP that a rank drives, as torch sees it.

    Attributes:
        used: whether the program has put anything on a GPU: then only that is recorded, else everything is.
        memory: of the SIP that the rank drives now.
    """

    def __init__(self, devices: Devices, state: RankState) -> None:
        self.ctx = devices.ctx
        self.state = state
        self.used = False
        self.recorder = Recorder(self)
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


def current_index() -> int | None:
    """Number of the GPU that the rank which runs drives; None outside ranks."""
    device = _allocating[-1].current() if _allocating else None
    return None if device is None else device.index


def current_rank() -> int | None:
    """The rank that runs; None outside ranks."""
    device = _allocating[-1].current() if _allocating else None
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
    """The simulated GPUs of one spawn."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self.ctx = ctx
        self._ranks: dict[int, RankDevice] = {}
        self._memories: dict[int, DeviceMemory] = {}
        self._library: Any = None
        self._kernels: Any = None
        self._symmetric: Any = None
        self._index = {sip: index for index, sip in enumerate(ctx.sips)}

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
            device = self._ranks[rank] = RankDevice(self, self.ctx._ranks[rank])
        return device

    def current(self) -> RankDevice | None:
        """The device of the rank that runs, None outside ranks."""
        rank = self.ctx.scheduler.current_rank()
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

    def open(self, patches: Patches) -> None:
        """Give torch its simulated GPUs."""
        from kernbench.torch_backend import cuda_names, device_classes, symmetric_memory, sync_batch_norm

        torch._C._ensureCUDADeviceGuardSet()
        _allocating.append(self)
        self._library = torch.library.Library("aten", "IMPL", "CUDA")
        self._library.impl("empty.memory_format", _empty, "CUDA")
        self._library.impl("empty_strided", _empty_strided, "CUDA")
        self._kernels = torch.library.Library("aten", "IMPL", "CPU")
        sync_batch_norm.register(self._kernels)
        self._symmetric = torch.library.Library(symmetric_memory.NAMESPACE, "IMPL")
        symmetric_memory.install(patches, self._symmetric)
        device_classes.install(patches, self, cuda_names.install(patches, self))
        self._wrap_functions(patches)
        self._wrap_tensor(patches)

    def close(self) -> None:
        """Take them away again. Idempotent."""
        if self._library is not None:
            _allocating.remove(self)
        for library in (self._library, self._kernels, self._symmetric):
            if library is not None:
                library._destroy()
        self._library = self._kernels = self._symmetric = None
        self._ranks.clear()
        for memory in self._memories.values():
            memory.changed = None

    # -- allocating --------------------------------------------------------------------------------------------------

    def on_device(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        """Put a fresh tensor of the rank that runs on a GPU, by default on its own."""
        mine = self.mine()
        mine.used = True
        place(tensor, self.memory_at(device))
        return tensor

    # -- functions that would ask a CUDA runtime -----------------------------------------------------------------------

    def _wrap_functions(self, patches: Patches) -> None:
        for name in ("tensor", "as_tensor", "asarray", "sparse_coo_tensor", "tril_indices", "triu_indices"):
            patches.set(torch, name, self._places_result(getattr(torch, name)))
        patches.set(torch._C._nn, "_parse_to", _with_first_index(torch._C._nn._parse_to))
        for name in _TAKE_AN_INDEX:
            patches.set(torch, name, _with_index(getattr(torch, name)))
        patches.set(
            torch.amp.autocast_mode.autocast, "__init__", _autocast_init(torch.amp.autocast_mode.autocast.__init__)
        )
        patches.set(torch, "load", self._loads(torch.load))
        patches.set(torch, "Generator", _generator_class())

    def _places_result(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            if device is None and torch._C._len_torch_function_stack():
                device = default_device()
            if type(device) is not int and (device is None or torch.device(device).type != "cuda"):
                return stock(*args, **kwargs)
            kwargs["device"] = "cpu"
            tensor = stock(*args, **kwargs)
            if isinstance(args[0] if args else None, torch.Tensor) and block_of(tensor) is None:
                tensor = tensor.clone()
            return self.on_device(tensor, device)

        return wrapped

    def _loads(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """``torch.load`` whose ``map_location`` may name a simulated GPU: what is loaded is on it then."""

        @functools.wraps(stock)
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self.current() is None or map_location is None or callable(map_location):
                return stock(f, map_location, *args, **kwargs)

            def put(storage: Any, location: str) -> Any:
                wanted = map_location.get(location, location) if isinstance(map_location, dict) else map_location
                if type(wanted) is not int and torch.device(wanted).type != "cuda":
                    return storage if torch.device(wanted).type == "cpu" else None
                self.mine().used = True
                place_storage(storage, self.memory_at(wanted))
                return storage

            return stock(f, put, *args, **kwargs)

        return load

    def _wrap_tensor(self, patches: Patches) -> None:
        base: Any = torch._C.TensorBase
        stock_to, stock_device, stock_is_cuda = base.to, base.device, base.is_cuda
        current = self.current

        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            target = kwargs.get("device", args[0] if args else None)
            if isinstance(target, torch.Tensor):
                kind = "cuda" if block_of(target) is not None else "cpu"
                if kind == "cuda":
                    target = device_of(target)
                    args = (target, args[0].dtype, *args[1:])
            elif isinstance(target, str | torch.device | int) and not isinstance(target, bool):
                kind = "cuda" if isinstance(target, int) else torch.device(target).type
            else:
                return stock_to(tensor, *args, **kwargs)
            if kind not in ("cuda", "cpu") or current() is None:
                return stock_to(tensor, *args, **kwargs)
            if type(tensor) not in _PLAIN:
                return stock_to(tensor, *_with_device(args, "cpu"), **_with_device_keyword(kwargs, "cpu"))
            block = block_of(tensor)
            here = block is not None
            if block is not None and kind == "cuda" and _index_of(target) in (None, block.memory.index):
                return stock_to(tensor, *_with_dtype(tensor, args, kwargs), **kwargs)
            args, kwargs = _with_device(args, "cpu"), _with_device_keyword(kwargs, "cpu")
            if here == (kind == "cuda"):
                if block is None:
                    return stock_to(tensor, *args, **kwargs)
                mine = self.mine()
                inside, mine.state.inside_operation = mine.state.inside_operation, True
                try:
                    moved: torch.Tensor = stock_to(tensor, *args, **{**kwargs, "copy": True})
                finally:
                    mine.state.inside_operation = inside
                mine.peer_copy([moved], block.memory, self.memory_at(target))
                if moved.requires_grad and not moved.is_leaf:
                    origin = device_of(tensor)
                    moved.register_hook(lambda gradient: to(gradient, origin))
                return moved
            kwargs["copy"] = True
            result: torch.Tensor = stock_to(tensor, *args, **kwargs)
            if kind == "cuda":  # the way back has been recorded: the copy's source is on the device
                device = self.mine()
                device.used = True
                device.transfer([result], self.memory_at(target))
            return result

        def cuda(
            tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None
        ) -> torch.Tensor:
            return to(tensor, torch.device("cuda", self.number(device)))

        def cpu(tensor: torch.Tensor, memory_format: Any = None) -> torch.Tensor:
            return to(tensor, torch.device("cpu"))

        def device_of(tensor: torch.Tensor) -> torch.device:
            block = block_of(tensor) if current() is not None else None
            if block is None:
                return stock_device.__get__(tensor)
            return torch.device("cuda", block.memory.index)

        def is_cuda(tensor: torch.Tensor) -> bool:
            return stock_is_cuda.__get__(tensor) or (current() is not None and block_of(tensor) is not None)

        def get_device(tensor: torch.Tensor) -> int:
            block = block_of(tensor)
            return -1 if block is None else block.memory.index

        stock_type: Any = base.type

        def kind_or_cast(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
            on_device = current() is not None and block_of(tensor) is not None
            if dtype is None:
                name: str = stock_type(tensor)
                return name.replace("torch.", "torch.cuda.", 1) if on_device else name
            if isinstance(dtype, type):
                dtype = f"{dtype.__module__}.{dtype.__name__}"
            if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
                return to(tensor, "cuda", TENSOR_TYPES[dtype.removeprefix("torch.cuda.")])
            return stock_type(tensor, dtype, *args, **kwargs)

        tensor_class = torch.Tensor
        patches.set(tensor_class, "to", to)
        patches.set(tensor_class, "cuda", cuda)
        patches.set(tensor_class, "cpu", cpu)
        patches.set(tensor_class, "device", property(device_of))
        patches.set(tensor_class, "is_cuda", property(is_cuda))
        patches.set(tensor_class, "get_device", get_device)
        patches.set(tensor_class, "pin_memory", _pin_memory)
        patches.set(tensor_class, "is_pinned", _is_pinned)
        patches.set(tensor_class, "record_stream", lambda tensor, stream: None)
        patches.set(tensor_class, "type", kind_or_cast)


_TAKE_AN_INDEX = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "eye", "empty_strided",
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
)  # fmt: skip
"""Functions of which a program may write ``device=torch.cuda.current_device()``, a number: C++ would ask a CUDA runtime."""


def _with_index(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def factory(*args: Any, **kwargs: Any) -> Any:
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if kwargs.get("pin_memory"):
            return _pinned(stock(*args, **{**kwargs, "pin_memory": False}))
        return stock(*args, **kwargs)

    return factory


_PINNED = "_kernbench_pinned"


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Note that a tensor is in pinned memory, which on a simulated host all memory is as good as."""
    storage: Any = torch._C.TensorBase.untyped_storage(tensor)
    setattr(storage, _PINNED, True)
    return tensor


def _is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    return bool(getattr(torch._C.TensorBase.untyped_storage(tensor), _PINNED, False))


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    if block_of(tensor) is not None:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return tensor if _is_pinned(tensor) else _pinned(tensor.clone())


def _with_first_index(stock: Callable[..., Any]) -> Callable[..., Any]:
    """``Module.to(3)``: the first argument may be a number."""
    with_keyword = _with_index(stock)

    @functools.wraps(stock)
    def parse(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        return with_keyword(*args, **kwargs)

    return parse


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _index_of(target: Any) -> int | None:
    """The number in what a program gives as a CUDA device."""
    return target if isinstance(target, int) else torch.device(target).index


def _with_device(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """Positional arguments of ``Tensor.to`` with another device."""
    if args and not isinstance(args[0], torch.dtype | bool) and isinstance(args[0], str | torch.device | int):
        return (device, *args[1:])
    return args


def _with_dtype(tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Positional arguments of ``Tensor.to`` with a dtype, the tensor's unless given, in the place of the device it is on."""
    kwargs.pop("device", None)
    rest = args[1:] if args and not isinstance(args[0], torch.dtype) else args
    dtype = kwargs.pop("dtype", None)
    if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
        dtype, *others = rest
        rest = tuple(others)
    return (dtype or tensor.dtype, *rest)


def _with_device_keyword(kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    return {**kwargs, "device": device} if kwargs.get("device") is not None else kwargs


def _autocast_init(stock: Callable[..., None]) -> Callable[..., None]:
    """``torch.autocast("cuda")`` applies to the CPU tensors that stand for the GPU's, with CUDA's default dtype."""

    @functools.wraps(stock)
    def init(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        stock(self, device_type, dtype, enabled, cache_enabled)

    return init


@functools.cache
def _generator_class() -> type:
    """``torch.Generator`` that may be asked for on ``cuda``; an instance is torch's own."""
    stock = torch._C.Generator

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, stock)

        def __call__(cls, device: Any = "cpu") -> Any:
            return stock(device="cpu" if torch.device(device).type == "cuda" else device)

    return Kind("Generator", (), {})
