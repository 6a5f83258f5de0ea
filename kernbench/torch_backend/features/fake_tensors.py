"""Fake tensors, with which DTensor finds the shapes of results, of ranks that share a process.

What an operation gives is kept for the process, by the operation and its arguments; a tensor made on ``cuda`` is on the current
GPU. Here the current GPU belongs to what is looked up by: else the ranks would find each other's.

``Tensor.copy_`` asks for a CUDA runtime before it dispatches, its operation does not. Autograd asks for one of every fake
tensor whose device C++ takes for a GPU, and ends the process: to C++ a fake tensor of a simulated GPU is on the CPU, as the
tensors are that it stands for, and only Python knows of the GPU (what Dynamo traces branches on that).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from kernbench.torch_backend.gpu.device.devices import current_device, current_index
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch._subclasses.fake_tensor"


RELIES_ON = (
    Reliance(
        f"{MODULE}._DispatchCacheKey.__init__", "what is kept for the process is looked up by one tuple",
        parameters=("self", "tup"),
    ),
    Reliance(
        f"{MODULE}.FakeTensor.__new__", "`device` is what C++ receives", parameters=("cls", "elem", "device"),
    ),
    Reliance(f"{MODULE}.FakeTensor", "these are what Python reads, and what copies call",
             has=("device", "is_cuda", "is_cpu", "copy_")),
    Reliance("torch.ops.aten._to_copy", "casts are this operation, also those that C++ makes", has=("default",)),
    Reliance(
        f"{MODULE}.FakeTensorMode.__torch_dispatch__", "operations on fake tensors arrive there",
        parameters=("self", "func", "types", "args", "kwargs"),
    ),
    Reliance(
        f"{MODULE}.FakeTensor.__torch_dispatch__", "C++ asks there where one is",
        parameters=("func", "types", "args", "kwargs"),
    ),
    Reliance("torch.ops.prim.device", "by this operation", has=("default",)),
    Reliance(
        f"{MODULE}.FakeTensor.fake_device", "rules of shapes read it; what C++ receives may be set later, of a view",
        holds=lambda fake_device: fake_device.fset is not None,
    ),
    Reliance(
        f"{MODULE}.FakeTensor.device", "a kernel receives the device that C++ knows",
        holds=lambda device: "in_kernel_invocation" in device.fget.__code__.co_names,
    ),
)  # fmt: skip


_CAST = torch.ops.aten._to_copy.default

_ASKED_WHERE = torch.ops.prim.device.default
"""By this operation C++ asks where a fake tensor is."""


def install(patches: Patches, module: ModuleType) -> None:
    """Add the current GPU to the keys, and let copies dispatch."""
    stock = module._DispatchCacheKey.__init__

    def init(self: object, tup: tuple[object, ...]) -> None:
        stock(self, (*tup, current_index()))

    def copy_(self: object, src: object, non_blocking: bool = False) -> Any:
        return torch.ops.aten.copy_.default(self, src, non_blocking)

    dispatched = module.FakeTensorMode.__torch_dispatch__

    def where(fake: Any) -> torch.device:
        return torch.device("meta") if fake.fake_mode.in_kernel_invocation else kept.fget(fake)

    def dispatch(self: object, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ASKED_WHERE:
            return where(args[0])
        if func is _CAST and kwargs and _asked_by_cpp(args[0], kwargs):
            kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        return dispatched(self, func, types, args, kwargs)

    of_class = module.FakeTensor.__torch_dispatch__.__func__

    def dispatch_class(cls: object, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return where(args[0]) if func is _ASKED_WHERE else of_class(cls, func, types, args, kwargs)

    make, told, kept = module.FakeTensor.__new__, module.FakeTensor.device, module.FakeTensor.fake_device

    def new(cls: object, mode: Any, elem: Any, device: Any, *args: object, **kwargs: object) -> Any:
        if device.type != "cuda":
            return make(cls, mode, elem, device, *args, **kwargs)
        made = make(cls, mode, elem, torch.device("cpu"), *args, **kwargs)
        simulate(made, device)
        return made

    def simulate(fake: Any, device: torch.device) -> None:
        index = current_index() or 0 if device.index is None else device.index
        fake.simulated_device = torch.device("cuda", index)

    def set_device(fake: object, device: torch.device) -> None:
        if device.type == "cuda":
            simulate(fake, device)
        else:
            kept.fset(fake, device)

    def fake_device(fake: object) -> Any:
        return getattr(fake, "simulated_device", None) or kept.fget(fake)

    def device(fake: Any) -> Any:
        simulated = getattr(fake, "simulated_device", None)
        return told.fget(fake) if simulated is None or fake.fake_mode.in_kernel_invocation else simulated

    patches.set(module.FakeTensor, "__new__", staticmethod(new))
    patches.set(module.FakeTensor, "device", property(device))
    patches.set(module.FakeTensor, "fake_device", property(fake_device, set_device))
    patches.set(module.FakeTensor, "is_cuda", property(lambda fake: fake.device.type == "cuda"))
    patches.set(module.FakeTensor, "is_cpu", property(lambda fake: fake.device.type == "cpu"))
    patches.set(module.FakeTensor, "__torch_dispatch__", classmethod(dispatch_class))
    patches.set(module._DispatchCacheKey, "__init__", init)
    patches.set(module.FakeTensor, "copy_", copy_)
    patches.set(module.FakeTensorMode, "__torch_dispatch__", dispatch)


def _asked_by_cpp(fake: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a cast to the CPU is one that C++ makes of a tensor that it takes for the CPU's: ``x.type_as(y)``, say.

    What the program asks for itself comes by ``Tensor.to``; and once Inductor compiles, a graph says where things are.
    """
    device, wanted = current_device(), kwargs.get("device")
    if device is None or device.doing.moving or device.doing.compiling or wanted is None or wanted.type != "cpu":
        return False
    return fake.device.type == "cuda" and kwargs.get("dtype") not in (None, fake.dtype)
