"""What uses a GPU by itself, and is stopped by a build of torch for CPUs before it asks for one: classes of CUDA's objects,
generators, pinned memory, and functions that call what C++ lacks.

A process that is no rank yet has these replaced (:mod:`.late_joining`): each has the process join, and goes on as the rank's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._device import DeviceContext

from kernbench.torch_backend import scripted_functions
from kernbench.torch_backend.relies_on import Reliance

_CLASSES = ("Stream", "ExternalStream", "Event", "CUDAGraph", "MemPool")
_FUNCTIONS = {
    "torch.cuda": ("_exchange_device", "_maybe_exchange_device", "graph_pool_handle"),
    "torch.cuda.memory": ("_record_memory_history", "_snapshot", "_dump_snapshot"),
    "torch.cuda.nvtx": ("range_push", "range_pop", "range_start", "range_end", "mark"),
    "torch.accelerator": ("current_stream", "set_stream", "synchronize"),
}
"""By their module."""

_MAKERS = {
    "torch": (
        "tensor", "as_tensor", "asarray", "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor",
        "sparse_bsc_tensor", "sparse_compressed_tensor",
    ),
    "torch.nested": ("nested_tensor",),
}  # fmt: skip
"""Functions that make a tensor on ``device`` within C++, which would say itself that a GPU is used, and goes on without one
afterwards; so do methods of tensors."""

_CALLS = "torch._dynamo.eval_frame"

_OF_DEVICES = ("Generator", "Stream", "Event")
"""Classes of ``torch`` whose constructors are given a device, the first argument or ``device``."""

RELIES_ON = (
    Reliance("torch.cuda", "its classes stand on ones of C++ that CPU builds lack", has=_CLASSES),
    *(Reliance(owner, "they call what C++ has of a GPU", has=names) for owner, names in _FUNCTIONS.items()),
    Reliance("torch", "they are given a device", has=(*_OF_DEVICES, *_MAKERS["torch"])),
    Reliance("torch.Tensor", "they are methods of C++", has=("pin_memory", "cuda", "new_tensor", "to")),
    Reliance("torch.nested", "so is this", has=_MAKERS["torch.nested"]),
    Reliance("torch.utils._device.DeviceContext", "`with torch.device(...)` and a default device enter it", has=("__enter__",)),
    Reliance(f"{_CALLS}._callback_from_stance", "every call of a compiled function calls it first", parameters=("callback",)),
    Reliance("torch.cuda._lazy_init", "modules of `torch.cuda` have it by this name"),
)  # fmt: skip


Covered = Mapping[tuple[object, str], tuple[Callable[..., Any], Callable[..., Any] | None]]
"""By owner and name, where the program has put a function around torch's: what is there now, and what the rank has under it;
None: torch's own."""


def of_process(
    use: Callable[[], bool], names_gpu: Callable[..., bool], covered: Covered
) -> Iterator[tuple[Any, str, Any]]:
    """What has another value until the process has a GPU: owner, name and value.

    Args:
        use: has it join, at the first use, and says that it has. Afterwards it does nothing.
        names_gpu: whether one of what it is given is a GPU's name.
        covered: empty until it has joined.
    """
    yield from scripted_functions.replaced()

    def on_gpu(*args: Any, device: object = None, **kwargs: Any) -> bool:
        return names_gpu(device)

    def to_gpu(tensor: torch.Tensor, *args: Any, device: object = None, **kwargs: Any) -> bool:
        return names_gpu(*args[:1], device)

    for table, is_use in ((_FUNCTIONS, _always), (_MAKERS, on_gpu)):
        for owner_name, names in table.items():
            owner = sys.modules.get(owner_name)
            for name in names if owner is not None else ():
                yield owner, name, _used(use, covered, owner, name, is_use)
    for name, is_use in (("pin_memory", _always), ("cuda", _always), ("new_tensor", on_gpu), ("to", to_gpu)):
        yield torch.Tensor, name, _used(use, covered, torch.Tensor, name, is_use)
    entered = _used(use, covered, DeviceContext, "__enter__", lambda context: names_gpu(context.device))
    yield DeviceContext, "__enter__", entered
    yield torch, "compile", _compile(use)
    for name in _CLASSES:
        yield getattr(torch.cuda, name), "__new__", _constructor(use, name)
    for name in _OF_DEVICES:
        yield torch, name, _class_of_devices(use, names_gpu, name)
    stock: Any = torch.cuda._lazy_init
    for name, module in [*sys.modules.items()]:
        if name.startswith("torch.cuda.") and vars(module).get("_lazy_init") is stock:
            yield module, "_lazy_init", use


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


def _used(
    use: Callable[[], bool], covered: Covered, owner: Any, name: str, is_use: Callable[..., bool] = _always
) -> Any:
    """What is called by this name, before which the process has a GPU if ``is_use`` of the arguments."""
    stock = getattr(owner, name)

    @functools.wraps(stock)
    def used(*args: Any, **kwargs: Any) -> Any:
        if not is_use(*args, **kwargs):
            return stock(*args, **kwargs)
        begins = use()
        now, (programs, below) = getattr(owner, name), covered.get((owner, name), (used, None))
        if now is used or (now is programs and not (begins and below is None)):
            now = below or stock
        return now(*args, **kwargs)

    return used


def _compile(use: Callable[[], bool]) -> Any:
    """Calls of what it compiles, which ask for GPUs in many places: the first is a use, before anything is compiled."""
    stock = torch.compile
    seen = False

    @functools.wraps(stock)
    def compiles(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        made = stock(*args, **kwargs)
        frames: Any = sys.modules.get(_CALLS)
        if frames is not None and not seen:
            seen, called = True, frames._callback_from_stance

            def first(callback: Any) -> Any:
                frames._callback_from_stance = called
                use()
                return called(callback)

            frames._callback_from_stance = first
        return made

    return compiles


def _constructor(use: Callable[[], bool], name: str) -> Any:
    stock: Any = getattr(torch.cuda, name)
    make = stock.__new__

    def made(cls: type, *args: Any, **kwargs: Any) -> Any:
        """Of the rank's class; a program may have taken torch's by then."""
        use()
        now = getattr(torch.cuda, name)
        return make(cls, *args, **kwargs) if now is stock else now(*args, **kwargs)

    return staticmethod(made)


def _class_of_devices(use: Callable[[], bool], names_gpu: Callable[..., bool], name: str) -> Any:
    stock: Any = getattr(torch, name)

    class FirstUsed(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if not names_gpu(*args[:1], kwargs.get("device")):
                return stock(*args, **kwargs)
            use()
            return getattr(torch, name)(*args, **kwargs)

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, stock)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, stock)

        def __getattr__(cls, attribute: str) -> Any:
            return getattr(stock, attribute)

    return FirstUsed(name, (), {"__module__": "torch", "__doc__": stock.__doc__})
