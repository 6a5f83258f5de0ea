"""Methods of ``torch.Tensor`` that ask where a tensor is, or put it elsewhere: ``to``, ``cuda``, ``device``, ``type``, ..."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, cast

import torch
import torch.nn.parameter
from torch.autograd import forward_ad
from torch.types import Device

from kernbench.simulation.memory.storages import Block
from kernbench.simulation.memory.tensor_queries import storage_of, tells_of_looks
from kernbench.simulation.order import shadow_memory
from kernbench.simulation.values.known_values import keep
from kernbench.torch_backend.gpu.device.devices import bound_devices, current_device
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.names.asked_classes import AskingMethod, answers_itself
from kernbench.torch_backend.gpu.names.torch_classes import TENSOR_TYPES
from kernbench.torch_backend.gpu.tensors.pinning import is_pinned, pin_memory
from kernbench.torch_backend.gpu.tensors.placement import (
    PLAIN,
    beneath_transform,
    block_of,
    components_of,
    is_batch,
    is_described,
    is_wrapped_by_transform,
    place,
    place_wrapper,
    stored_in,
)
from kernbench.torch_backend.hollow.assumed_numbers import marked
from kernbench.torch_backend.hollow.host_looks import NUMBERS, is_assumed, text, visible
from kernbench.torch_backend.operations.gradient_places import note_move
from kernbench.torch_backend.operations.ordering import looking, looks, sent
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_Base: Any = torch._C.TensorBase
_stock_to, _stock_type, _stock_make_wrapper = _Base.to, _Base.type, _Base._make_wrapper_subclass
_stock_device, _stock_is_cuda, _stock_is_cpu = _Base.device, _Base.is_cuda, _Base.is_cpu
_stock_deepcopy: Any = torch.Tensor.__deepcopy__
_stock_item: Any = torch.Tensor.item
_stock_repr: Any = torch.Tensor.__repr__
_stock_type_as: Any = torch.Tensor.type_as


def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``Tensor.to``."""
    target = kwargs.get("device", args[0] if args else None)
    if isinstance(target, torch.Tensor) and is_described(type(target)):
        if target.device == tensor.device:  # to C++ they are on the CPU, and a copy would go there
            return _stock_to(tensor, target.dtype, *args[1:], **kwargs)
        return to(tensor, target.device, target.dtype, *args[1:], **kwargs)
    if isinstance(target, torch.Tensor):
        if block_of(target) is None:
            kind, target = "cpu", torch.device("cpu")
        else:
            kind, target = "cuda", device_of(target)
            args = (target, args[0].dtype, *args[1:])
    elif isinstance(target, str | torch.device | int) and not isinstance(target, bool):
        kind = "cuda" if isinstance(target, int) else torch.device(target).type
    else:
        return _stock_to(tensor, *_where_it_is(tensor, args, kwargs), **kwargs)
    mine = current_device()
    if kind not in ("cuda", "cpu") or mine is None:
        return _stock_to(tensor, *args, **kwargs)
    if is_described(type(tensor)):  # to C++ it may be elsewhere, and it would ask a CUDA runtime for an index
        there = _gpu(target) if kind == "cuda" else torch.device("cpu")
        if tensor.device == there:
            return _stock_to(tensor, *_with_dtype(tensor, args, kwargs), **kwargs)
        args, kwargs = _with_device(there, args, kwargs)
        with mine.moves(there):
            told: torch.Tensor = _stock_to(tensor, *args, **kwargs if len(args) > 3 else {**kwargs, "copy": True})
        if told.requires_grad and not told.is_leaf:  # a gradient is to C++ where it has to go, wherever it is
            origin = tensor.device
            told.register_hook(lambda gradient: to(gradient, origin))
        return told
    block = block_of(tensor)
    if block is not None and kind == "cuda" and _index_in(target) in (None, _index_of(block)):
        return _stock_to(tensor, *_with_dtype(tensor, args, kwargs), **kwargs)
    args, kwargs = _with_device("cpu", args, kwargs)
    if block is None and kind == "cpu":
        return _stock_to(tensor, *args, **kwargs)
    if block is not None and kind == "cuda":
        return _to_peer(mine, tensor, block, target, args, kwargs)
    goes_on = kwargs.get("non_blocking") or next((each for each in args[1:] if type(each) is bool), False)
    if mine.host.sync_debug and kind == "cuda" and not goes_on:
        mine.simulation.host_reads.synchronizing(mine.host)
    with mine.moves(_gpu(target) if kind == "cuda" else torch.device("cpu")):
        result: torch.Tensor = _stock_to(tensor, *args, **{**kwargs, "copy": True})
    shown = _shown(result)
    if kind == "cuda":  # the way back has been recorded: the copy's source is on the device
        mine.host.uses_gpu = True
        memory = mine.memory_at(target)
        if block_of(result) is None:  # or a tracer has had it be copied there
            mine.transfer(stored_in(result), memory, tensor, waits=not goes_on)
        with mine.host.driving(memory.sip):
            sent(mine, stored_in(tensor), stored_in(result), goes_on=goes_on)
        for tangent in shown:
            if block_of(tangent) is None:
                mine.transfer((tangent,), memory, waits=not goes_on)
    _send_back(shown, device_of(tensor))
    return result


def _shown(moved: torch.Tensor) -> list[torch.Tensor]:
    """All tensors that a copy shows: itself, what transforms have wrapped, and the tangents of these, copied with them."""
    found, mine = [moved], current_device()
    if (
        forward_ad._current_level >= 0 and mine is not None and not is_batch(moved)
    ):  # of a batch, what it consists of has one
        with mine.host.as_one():
            tangent = forward_ad.unpack_dual(moved).tangent
        if tangent is not None:
            found += _shown(tangent)
    if is_wrapped_by_transform(moved):
        with beneath_transform(moved) as wrapped:
            found += _shown(wrapped)
    return found


def _send_back(moved: Iterable[torch.Tensor], origin: torch.device) -> None:
    """The gradient of a tensor that was moved goes to where it came from: C++, to which both are on the host, leaves it."""
    for tensor in moved:
        node = tensor.grad_fn
        if node is not None:
            note_move(node, to_gpu=block_of(tensor) is not None)
            node.register_hook(lambda given, _: tuple(None if each is None else to(each, origin) for each in given))


def _where_it_is(tensor: torch.Tensor, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments of a ``to`` that names no device, of a GPU's tensor: with a dtype.

    Without one (a memory format or a copy alone) C++ names the device, and to it that is the host.
    """
    if current_device() is None or block_of(tensor) is None or is_described(type(tensor)):
        return args
    given = [args[0], *([args[1]] if args[0] is None and len(args) > 1 else [])] if args else []
    dtype = kwargs.pop("dtype", None) or next((each for each in given if isinstance(each, torch.dtype)), tensor.dtype)
    kwargs.pop("device", None)
    return (dtype, *args[2 if args and args[0] is None and len(args) > 1 else 1 :])


def _to_peer(
    mine: RankDevice, tensor: torch.Tensor, block: Block, target: Any, args: tuple[object, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """A copy on another GPU of the rank's node; its gradient comes back to where the tensor is."""
    inside, mine.host.unrecorded = mine.host.unrecorded, True
    try:
        moved: torch.Tensor = _stock_to(tensor, *args, **{**kwargs, "copy": True})
    finally:
        mine.host.unrecorded = inside
    there, shown = mine.memory_at(target), _shown(moved)
    mine.peer_copy(stored_in(moved), block.memory, there)
    for tangent in shown:
        if block_of(tangent) is None:
            mine.peer_copy((tangent,), block.memory, there)
    with mine.host.driving(block.memory.sip):
        sent(mine, stored_in(tensor), shown, goes_on=False)
    _send_back(shown, device_of(tensor))
    return moved


def cuda(
    tensor: torch.Tensor, device: Device = None, non_blocking: bool = False, memory_format: object = None
) -> torch.Tensor:
    """``Tensor.cuda``."""
    return to(tensor, _gpu(device), non_blocking=non_blocking)


def _gpu(device: Device) -> torch.device:
    """A GPU by its number as torch counts them just now (:meth:`.RankDevice.counted_from`); None: the current one."""
    devices = bound_devices()
    return torch.device("cuda", devices.told(devices.number(device)))


def cpu(tensor: torch.Tensor, memory_format: object = None) -> torch.Tensor:
    """``Tensor.cpu``."""
    return to(tensor, torch.device("cpu"))


def device_of(tensor: torch.Tensor) -> torch.device:
    """``Tensor.device``."""
    block = block_of(tensor) if current_device() is not None else None
    if block is None:
        cls = type(tensor)
        if answers_itself(cls):  # it knows torch's getter, not what stands in its place
            return cls.__torch_function__(_stock_device.__get__, (cls,), (tensor,), {})
        return _stock_device.__get__(tensor) if (fake := _fake_inside(tensor)) is None else fake.device
    return torch.device("cuda", _index_of(block))


def _fake_inside(tensor: torch.Tensor) -> torch.Tensor | None:
    """The fake tensor that transforms (``torch.func``) have wrapped while Dynamo traces: it alone knows of its GPU."""
    inner = tensor
    while is_wrapped_by_transform(inner):
        (inner,) = components_of(inner)
    return None if inner is tensor or not hasattr(inner, "fake_mode") else inner


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return block_of(tensor) is not None or ((fake := _fake_inside(tensor)) is not None and fake.is_cuda)


def is_cuda(tensor: torch.Tensor) -> bool:
    """``Tensor.is_cuda``."""
    return _stock_is_cuda.__get__(tensor) or (current_device() is not None and _is_on_gpu(tensor))


def is_cpu(tensor: torch.Tensor) -> bool:
    """``Tensor.is_cpu``."""
    return _stock_is_cpu.__get__(tensor) and (current_device() is None or not _is_on_gpu(tensor))


def get_device(tensor: torch.Tensor) -> int:
    """``Tensor.get_device``."""
    block = block_of(tensor)
    if block is not None:
        return _index_of(block)
    fake = _fake_inside(tensor)
    return -1 if fake is None or fake.device.index is None else fake.device.index


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """``Tensor.record_stream``: its memory is not given to others before what is on ``stream`` then has ended."""
    block = block_of(tensor)
    if block is not None:
        while is_wrapped_by_transform(tensor):
            (tensor,) = components_of(tensor)
        block.record_stream(stream.name)
        shadow_memory.record_stream(storage_of(tensor), stream.name)


def type_or_cast(tensor: torch.Tensor, dtype: object = None, *args: object, **kwargs: object) -> Any:
    """``Tensor.type``."""
    if dtype is None:
        name: str = _stock_type(tensor)
        on_device = current_device() is not None and block_of(tensor) is not None
        return name.replace("torch.", "torch.cuda.", 1) if on_device else name
    if isinstance(dtype, type):
        dtype = f"{dtype.__module__}.{dtype.__name__}"
    if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
        return to(tensor, "cuda", TENSOR_TYPES[dtype.removeprefix("torch.cuda.")])
    if isinstance(dtype, str) and current_device() is not None and block_of(tensor) is not None:
        of_host = TENSOR_TYPES.get(dtype.removeprefix("torch."))
        if of_host is not None:  # the type's name says where, too
            return to(tensor, "cpu", of_host)
    return _stock_type(tensor, dtype, *args, **kwargs)


def type_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``Tensor.type_as``: to C++ the host's and a GPU's tensors are in one place, so it would change the dtype alone."""
    if current_device() is None or tensor.device.type == other.device.type == "cpu":
        return cast(torch.Tensor, _stock_type_as(tensor, other))
    if tensor.device == other.device:  # C++ would name the device, and of a fake tensor the host
        return cast(torch.Tensor, _stock_to(tensor, other.dtype))
    return to(tensor, other.device, other.dtype)


def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """``Tensor.__deepcopy__``."""
    copied: torch.Tensor = _stock_deepcopy(tensor, memo)
    block = block_of(tensor) if current_device() is not None else None
    if block is not None and copied is not tensor:
        if not block.hollow:
            keep(block.table, copied)
        place(copied, block.memory)
    return copied


_DEVICE_OF_WRAPPER = 6
"""Place of the device among what ``Tensor._make_wrapper_subclass`` is given after the class: size, strides, offset, memory
format, dtype, layout, device."""


def make_wrapper(cls: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``Tensor._make_wrapper_subclass``.

    Autograd would ask a CUDA runtime: to it a wrapper is on the CPU, as its parts are.
    """
    by_place = len(args) > _DEVICE_OF_WRAPPER
    wanted, mine = args[_DEVICE_OF_WRAPPER] if by_place else kwargs.get("device"), current_device()
    if wanted is None or mine is None or is_described(cls) or torch.device(wanted).type != "cuda":
        return _stock_make_wrapper(cls, *args, **kwargs)
    if by_place:
        args = (*args[:_DEVICE_OF_WRAPPER], "cpu", *args[_DEVICE_OF_WRAPPER + 1 :])
    else:
        kwargs = {**kwargs, "device": "cpu"}
    wrapper: torch.Tensor = _stock_make_wrapper(cls, *args, **kwargs)
    if not hasattr(cls, "__tensor_flatten__"):
        place_wrapper(wrapper, mine.memory_at(wanted))
    return wrapper


def is_sequence_of_values(value: object) -> bool:
    """Whether ``Tensor.new(value)``, as ``torch.Tensor(value)``, takes numbers for elements: a list or a tuple, no size."""
    return isinstance(value, list | tuple) and not isinstance(value, torch.Size)


def _beside(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method that makes a tensor where its own is, of what it is given."""

    @functools.wraps(stock)
    def method(tensor: torch.Tensor, *args: object, device: Device = None, **kwargs: object) -> torch.Tensor:
        block = block_of(tensor) if current_device() is not None else None
        if device is None and block is None:
            return stock(tensor, *args, **kwargs)
        if device is not None and type(device) is not int and torch.device(device).type != "cuda":
            return stock(tensor, *args, device=device, **kwargs)
        made: torch.Tensor = stock(tensor, *args, **kwargs)
        mine = bound_devices()
        if stock.__name__ == "new_tensor" or any(map(is_sequence_of_values, (*args, *kwargs.values()))):
            mine.mine().may_copy(None)
            keep(mine.simulation.storages, made)
        return mine.on_device(made, device_of(tensor) if device is None else device)

    return method


_OF_HOST_MEMORY = frozenset({"numpy", "__array__"})
"""Looks that share the tensor's memory, which of a GPU torch refuses, in these words."""


def _looks(name: str) -> Callable[..., object]:
    """A method by which the host gets values without an operation of torch: of a GPU's tensor, by a copy."""
    stock = getattr(torch.Tensor, name)

    @functools.wraps(stock)
    def method(tensor: torch.Tensor, *args: object, **kwargs: object) -> Any:
        mine = current_device()
        if mine is None or mine.host.unrecorded or tells_of_looks(tensor):
            return stock(tensor, *args, **kwargs)
        assumed = is_assumed(mine.simulation, tensor)
        if not assumed and block_of(tensor) is None:
            if mine.host.order is not None:
                looks(mine, name, (tensor,))
            with looking(mine, name, tensor):
                return stock(tensor, *args, **kwargs)
        if name in _OF_HOST_MEMORY and block_of(tensor) is not None:
            raise TypeError(
                f"can't convert {device_of(tensor)} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                "memory first."
            )
        mine.simulation.host_reads.before((tensor,), name)
        if mine.host.order is not None:
            looks(mine, name, (tensor,))
        if assumed:
            tensor = visible(mine.simulation, tensor, name)
        with mine.host.as_one(), looking(mine, name, tensor):
            found = stock(tensor, *args, **kwargs)
        return marked(found) if assumed and name in NUMBERS else found

    return method


def item(tensor: torch.Tensor) -> Any:
    """``Tensor.item``: an operation, whose result says when it is assumed."""
    found, mine = _stock_item(tensor), current_device()
    if mine is not None and not mine.host.unrecorded and is_assumed(mine.simulation, tensor):
        return marked(found)
    return found


def as_text(tensor: torch.Tensor, *args: object, **kwargs: object) -> str:
    """``Tensor.__repr__``: one look, whatever torch computes to find out how to write the numbers."""
    mine = current_device()
    if mine is None or mine.host.unrecorded or tells_of_looks(tensor) or is_wrapped_by_transform(tensor):
        return str(_stock_repr(tensor, *args, **kwargs))  # of what is wrapped it asks in its turn
    assumed = is_assumed(mine.simulation, tensor)
    if block_of(tensor) is not None and type(tensor) in PLAIN:
        mine.simulation.host_reads.before((tensor,), "__repr__")
    elif not assumed:
        return str(_stock_repr(tensor, *args, **kwargs))
    if assumed:
        visible(mine.simulation, tensor, "print")
    with mine.host.as_one():
        shown = functools.partial(_stock_repr, tensor, *args, **kwargs)
        return text(tensor, shown) if assumed else str(shown())


_METHODS: dict[str, object] = {
    **{name: _looks(name) for name in ("tolist", "numpy", "__array__")},
    "item": item,
    "__repr__": as_text,
    "to": to,
    "cuda": cuda,
    "cpu": cpu,
    "device": property(device_of),
    "is_cuda": property(is_cuda),
    "is_cpu": property(is_cpu),
    "get_device": get_device,
    "pin_memory": pin_memory,
    "is_pinned": is_pinned,
    "record_stream": record_stream,
    "type": type_or_cast,
    "type_as": type_as,
    "new": _beside(torch.Tensor.new),
    "new_tensor": _beside(torch.Tensor.new_tensor),
    "__deepcopy__": deepcopy,
    "_make_wrapper_subclass": staticmethod(make_wrapper),
}

RELIES_ON = (
    Reliance("torch.Tensor", "its methods tell the simulated GPU from the host", has=(*_METHODS, "__torch_function__")),
    Reliance(
        "torch._C.TensorBase", "a method of this class is torch's own also where a subclass has another one",
        has=("to", "type", "device", "is_cuda", "is_cpu", "_make_wrapper_subclass"),
        holds=lambda base: all(hasattr(each, "__get__") for each in (base.device, base.is_cuda, base.is_cpu)),
    ),
    Reliance("torch.autograd.forward_ad", "the level is negative outside forward derivatives",
             has=("_current_level", "unpack_dual")),
    Reliance(
        "torch.nn.parameter.UninitializedTensorMixin", "parameters of lazy modules are moved by the methods that it lists",
        has=("_allowed_methods",), holds=lambda mixin: torch.Tensor.copy_ in mixin._allowed_methods,
    ),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Replace the methods, and let parameters without a shape, which refuse what they do not know, have them."""
    for name, method in _METHODS.items():
        if isinstance(method, FunctionType):
            method = AskingMethod(method, getattr(torch.Tensor, name))
        patches.set(torch.Tensor, name, method)
    lazy: Any = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
    moves = [getattr(torch.Tensor, name) for name in ("to", "cuda", "cpu", "get_device")]
    patches.set(lazy, "_allowed_methods", [*lazy._allowed_methods, *moves])


def _index_of(block: Block) -> int:
    """The number of the GPU that a block is on, to the rank that runs."""
    mine = bound_devices().mine()
    return mine.told(mine.index if block.shared else mine.index_of(block.memory.sip))


def _index_in(target: Any) -> int | None:
    """The number in what a program gives as a CUDA device."""
    return target if isinstance(target, int) else torch.device(target).index


def _with_device(
    device: Device, args: tuple[object, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of ``Tensor.to`` with this in the place of the device."""
    if args and not isinstance(args[0], torch.dtype | bool) and isinstance(args[0], str | torch.device | int):
        args = (device, *args[1:])
    return args, {**kwargs, "device": device} if kwargs.get("device") is not None else kwargs


def _with_dtype(tensor: torch.Tensor, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Positional arguments of ``Tensor.to`` with a dtype, the tensor's unless given, in the place of the device it is on."""
    kwargs.pop("device", None)
    rest = args[1:] if args and not isinstance(args[0], torch.dtype) else args
    dtype = kwargs.pop("dtype", None)
    if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
        dtype, *others = rest
        rest = tuple(others)
    return (dtype or tensor.dtype, *rest)
