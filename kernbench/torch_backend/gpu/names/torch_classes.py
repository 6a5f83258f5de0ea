"""Classes of torch whose constructors would ask a CUDA runtime: ``torch.device``, ``torch.Stream``, ``torch.Event``,
``torch.Generator``, ``torch.cuda.FloatTensor``. What stands for them makes torch's own objects, or a simulated GPU's."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils._device
from torch.types import Device

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.device.generators import GpuGenerator
from kernbench.torch_backend.gpu.device.streams import Event, Stream
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_stock_device: Any = torch.device
_stock_generator: Any = torch.Generator

TENSOR_TYPES = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16,
    "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip
"""``torch.cuda``'s old names of tensor types."""

RELIES_ON = (
    Reliance(
        "torch.device", "`torch.device(0)` of a program finds the class that stands in its place",
        looked_up_by=("torch.serialization",),
    ),
    Reliance("torch", "a stream or an event of a simulated GPU is one of ours, any other one torch's", has=("Stream", "Event")),
    Reliance(
        "torch.Generator", "a generator on `cuda` is one of the CPU",
        holds=lambda generator: isinstance(torch.default_generator, generator),
    ),
    Reliance("torch.cuda", "old names of tensor types make tensors on a simulated GPU", has=tuple(TENSOR_TYPES)),
    Reliance("torch._C", "the default device is that of the innermost function mode", has=(
        "_len_torch_function_stack", "_get_function_stack_at",
    )),
    Reliance("torch.utils._device.DeviceContext", "it is the mode of `with torch.device(...)`", parameters=("device",)),
    Reliance(
        "torch.utils._device._device_constructors", "it keeps the functions that it finds: called before they are replaced",
        holds=lambda function: hasattr(function, "cache_info"),
    ),
)  # fmt: skip


class _DeviceKind(type):
    """``torch.device`` of which ``torch.device(0)`` is ``cuda:0``; an instance is torch's own.

    It equals torch's: ``torch.fx`` compares what it has kept with what ``torch.device`` is now.
    """

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _stock_device

    def __hash__(cls) -> int:
        return hash(_stock_device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _stock_device)

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        if len(args) == 1 and type(args[0]) is int and not kwargs:
            return _stock_device("cuda", args[0])
        return _stock_device(*args, **kwargs)


class _OfAnyDevice(type):
    """A class of streams or events: one on ``cuda``, which is the default, is ``simulated``, any other one is ``stock``'s.

    ``torch.cuda``'s are subclasses of it, as torch's are.
    """

    stock: Any
    simulated: type

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        own = type.__subclasscheck__(cls, subclass)
        return own if cls not in _CLASSES.values() else own or issubclass(subclass, (cls.stock, cls.simulated))


class _StreamKind(_OfAnyDevice):
    def __call__(cls, device: Device = None, **kwargs: object) -> Any:
        on_gpu = device is None or type(device) is int or torch.device(device).type == "cuda"
        return cls.simulated(device, **kwargs) if on_gpu else cls.stock(device, **kwargs)


class _EventKind(_OfAnyDevice):
    def __call__(cls, device: Device = None, **kwargs: object) -> Any:
        on_gpu = device is None or torch.device(device).type == "cuda"
        return cls.simulated(**kwargs) if on_gpu else cls.stock(device, **kwargs)


_NEW_GENERATOR = (
    "Cannot construct a new CUDAGeneratorImpl during CUDA graph capture. If you need this call to be captured, please file an "
    "issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
)


class _GeneratorKind(type):
    """``torch.Generator`` that may be asked for on ``cuda``; an instance is torch's own. Its methods are torch's."""

    def __getattr__(cls, name: str) -> Any:
        return getattr(_stock_generator, name)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _stock_generator)

    def __call__(cls, device: torch.device | str | int = "cpu") -> Any:
        on_gpu = type(device) is int or torch.device(device).type == "cuda"
        if not on_gpu:
            return _stock_generator(device=device)
        mine = current_device()
        if mine is not None and mine.host.capture is not None:
            raise RuntimeError(_NEW_GENERATOR)
        return GpuGenerator(device="cpu")


class _TensorKind(type):
    """A type of tensors on a simulated GPU, of the class's ``dtype``."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype is cls.dtype and block_of(instance) is not None

    def __call__(cls, *args: object, size: Any = None, device: Device = "cuda") -> Any:
        """Of a size, uninitialized, or of data, as torch's own types are called."""
        device = "cuda" if device is None else device
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].to(device, cls.dtype)
        if len(args) == 1 and not isinstance(args[0], int | torch.SymInt | torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device=device)
        if size is None:
            size = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(tuple(size), dtype=cls.dtype, device=device)


_CLASSES: dict[str, type] = {
    "device": _DeviceKind("device", (), {"__module__": "torch"}),
    "Stream": _StreamKind("Stream", (), {"__module__": "torch", "stock": torch.Stream, "simulated": Stream}),
    "Event": _EventKind("Event", (), {"__module__": "torch", "stock": torch.Event, "simulated": Event}),
    "Generator": _GeneratorKind("Generator", (), {}),
}
"""What stands for ``torch``'s classes."""

_TENSOR_CLASSES: dict[str, type] = {
    name: _TensorKind(name, (), {"__module__": "torch.cuda", "dtype": dtype}) for name, dtype in TENSOR_TYPES.items()
}
"""What stands for ``torch.cuda``'s types of tensors."""


_BY_TYPE = torch.device("cuda")
"""Where tensors are made of which a default type on a GPU is all that says it."""


def default_device() -> object:
    """The device that ``with torch.device(...)`` or ``torch.set_default_device`` has set, None if unset."""
    C: Any = torch._C
    for depth in reversed(range(C._len_torch_function_stack())):
        mode = C._get_function_stack_at(depth)
        if isinstance(mode, torch.utils._device.DeviceContext):
            return mode.device
    return None


def _made_without_modes(stock: Any) -> Any:
    """``torch.Tensor.__new__``: a subclass without a constructor of its own is made where no mode is on.

    C++ asks for an empty tensor and makes it the subclass's; one that a mode has seen is a ``torch.Tensor`` already.
    """

    @functools.wraps(stock)
    def make(cls: object, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.Tensor:
            return stock(cls, *args, **kwargs)
        with plain_torch():
            return stock(cls, *args, **kwargs)

    return staticmethod(make)


def _default_type(stock: Any) -> Any:
    """``torch.set_default_tensor_type``, which may be given a type on a GPU: then it is where tensors are made, too."""

    @functools.wraps(stock)
    def set_default_tensor_type(t: Any) -> None:
        named = t.rpartition(".")[2] if isinstance(t, str) and t.startswith("torch.cuda.") else None
        given = _TENSOR_CLASSES.get(named) if named is not None else t
        if not isinstance(given, _TensorKind):
            stock(t)
            if current_device() is not None and default_device() == _BY_TYPE:
                torch.set_default_device(None)
            return
        torch.set_default_dtype(given.dtype)
        torch.set_default_device(_BY_TYPE)

    return set_default_tensor_type


def install(patches: Patches) -> None:
    """Replace the classes."""
    patches.set(torch, "set_default_tensor_type", _default_type(torch.set_default_tensor_type))
    patches.add(torch.Tensor, "__new__", _made_without_modes(torch.Tensor.__new__))
    torch.utils._device._device_constructors()  # it keeps what it finds: let that be torch's own functions
    for owner, classes in ((torch, _CLASSES), (torch.cuda, _TENSOR_CLASSES)):
        for name, cls in classes.items():
            patches.set(owner, name, cls)
