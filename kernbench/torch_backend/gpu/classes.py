"""Classes of torch whose constructors would ask a CUDA runtime: ``torch.device``, ``torch.Event``, ``torch.Generator``,
``torch.cuda.FloatTensor``.

Relies on: ``torch.device`` being looked up in ``torch`` by Python code; the names of ``torch._C._accelerator_*``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._device

from kernbench.torch_backend.gpu.placement import block_of
from kernbench.torch_backend.patches import Patches

if TYPE_CHECKING:
    from kernbench.torch_backend.gpu.devices import Devices

_stock_device: Any = torch.device

TENSOR_TYPES = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16,
    "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip
"""``torch.cuda``'s old names of tensor types."""


class _DeviceKind(type):
    """``torch.device`` of which ``torch.device(0)`` is ``cuda:0``; an instance is torch's own.

    It equals torch's: ``torch.fx`` compares what it has kept with what ``torch.device`` is now.
    """

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _stock_device

    def __hash__(cls) -> int:
        return hash(_stock_device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _stock_device)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and type(args[0]) is int and not kwargs:
            return _stock_device("cuda", args[0])
        return _stock_device(*args, **kwargs)


@functools.cache
def device_class() -> type:
    """What stands for ``torch.device``."""
    return _DeviceKind("device", (), {"__module__": "torch"})


def default_device() -> Any:
    """The device that ``with torch.device(...)`` or ``torch.set_default_device`` has set, None if nobody has."""
    C: Any = torch._C
    for depth in reversed(range(C._len_torch_function_stack())):
        mode = C._get_function_stack_at(depth)
        if isinstance(mode, torch.utils._device.DeviceContext):
            return mode.device
    return None


def _tensor_type(name: str, dtype: torch.dtype) -> type:
    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, torch.Tensor) and instance.dtype is dtype and block_of(instance) is not None

        def __call__(cls, *args: Any) -> Any:
            if len(args) == 1 and isinstance(args[0], list | tuple) and not isinstance(args[0], torch.Size):
                return torch.tensor(args[0], dtype=dtype, device="cuda")
            if len(args) == 1 and isinstance(args[0], torch.Tensor):
                return args[0].to("cuda", dtype)
            return torch.empty(*args, dtype=dtype, device="cuda")

    return Kind(name, (), {"__module__": "torch.cuda"})


def _device_event(cuda_event: Any) -> type:
    stock: Any = torch.Event

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (stock, cuda_event))

        def __call__(cls, device: Any = None, **kwargs: Any) -> Any:
            if device is None or torch.device(device).type == "cuda":
                return cuda_event(**kwargs)
            return stock(device, **kwargs)

    return Kind("Event", (), {"__module__": "torch"})


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


def install(patches: Patches, devices: Devices, cuda: dict[str, Any]) -> None:
    """Replace the classes, and what ``torch.accelerator`` calls.

    Args:
        cuda: ``torch.cuda``'s attributes.
    """
    torch.utils._device._device_constructors()  # it keeps what it finds: let that be torch's own functions
    patches.set(torch, "device", device_class())
    patches.set(torch, "Event", _device_event(cuda["Event"]))
    patches.set(torch, "Generator", _generator_class())
    for name, dtype in TENSOR_TYPES.items():
        patches.set(torch.cuda, name, _tensor_type(name, dtype))
    accelerator = {
        "exchangeDevice": cuda["_exchange_device"],
        "maybeExchangeDevice": cuda["_maybe_exchange_device"],
        "getDeviceIndex": cuda["current_device"],
        "setDeviceIndex": cuda["set_device"],
        "synchronizeDevice": cuda["synchronize"],
        "getStream": cuda["current_stream"],
        "setStream": cuda["set_stream"],
        "emptyCache": cuda["empty_cache"],
    }
    patches.set(torch._C, "_get_accelerator", lambda check=None: torch.device("cuda"))
    for name, value in accelerator.items():
        if hasattr(torch._C, f"_accelerator_{name}"):
            patches.set(torch._C, f"_accelerator_{name}", value)
