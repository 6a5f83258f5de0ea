"""Methods of ``torch.Tensor`` that ask where a tensor is, or put it elsewhere: ``to``, ``cuda``, ``device``, ``type``, ..."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from kernbench.torch_backend.gpu.classes import TENSOR_TYPES
from kernbench.torch_backend.gpu.pinning import is_pinned, pin_memory
from kernbench.torch_backend.gpu.placement import Block, block_of, is_described, place, place_wrapper, stored_in
from kernbench.torch_backend.patches import Patches

if TYPE_CHECKING:
    from kernbench.torch_backend.gpu.devices import Devices


def install(patches: Patches, devices: Devices) -> None:
    """Replace the methods."""
    base: Any = torch._C.TensorBase
    stock_to, stock_device, stock_is_cuda = base.to, base.device, base.is_cuda
    current = devices.current

    def index_of(block: Block) -> int:
        return devices.mine().index if block.shared else block.memory.index

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
        if kind not in ("cuda", "cpu") or current() is None or is_described(type(tensor)):
            return stock_to(tensor, *args, **kwargs)
        block = block_of(tensor)
        here = block is not None
        if block is not None and kind == "cuda" and _index_of(target) in (None, index_of(block)):
            return stock_to(tensor, *_with_dtype(tensor, args, kwargs), **kwargs)
        args, kwargs = _with_device(args, "cpu"), _with_device_keyword(kwargs, "cpu")
        if here == (kind == "cuda"):
            if block is None:
                return stock_to(tensor, *args, **kwargs)
            mine = devices.mine()
            inside, mine.state.inside_operation = mine.state.inside_operation, True
            try:
                moved: torch.Tensor = stock_to(tensor, *args, **{**kwargs, "copy": True})
            finally:
                mine.state.inside_operation = inside
            mine.peer_copy(stored_in(moved), block.memory, devices.memory_at(target))
            if moved.requires_grad and not moved.is_leaf:
                origin = device_of(tensor)
                moved.register_hook(lambda gradient: to(gradient, origin))
            return moved
        kwargs["copy"] = True
        result: torch.Tensor = stock_to(tensor, *args, **kwargs)
        if kind == "cuda":  # the way back has been recorded: the copy's source is on the device
            device = devices.mine()
            device.used = True
            device.transfer(stored_in(result), devices.memory_at(target))
        return result

    def cuda(
        tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> torch.Tensor:
        return to(tensor, torch.device("cuda", devices.number(device)))

    def cpu(tensor: torch.Tensor, memory_format: Any = None) -> torch.Tensor:
        return to(tensor, torch.device("cpu"))

    def device_of(tensor: torch.Tensor) -> torch.device:
        block = block_of(tensor) if current() is not None else None
        if block is None:
            if _answers_itself(type(tensor)):
                return type(tensor).__torch_function__(stock_device.__get__, (type(tensor),), (tensor,), {})
            return stock_device.__get__(tensor)
        return torch.device("cuda", index_of(block))

    def is_cuda(tensor: torch.Tensor) -> bool:
        return stock_is_cuda.__get__(tensor) or (current() is not None and block_of(tensor) is not None)

    def get_device(tensor: torch.Tensor) -> int:
        block = block_of(tensor)
        return -1 if block is None else index_of(block)

    stock_wrapper: Any = base._make_wrapper_subclass

    def make_wrapper(cls: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        wanted = kwargs.get("device")
        if wanted is None or current() is None or is_described(cls) or torch.device(wanted).type != "cuda":
            return stock_wrapper(cls, *args, **kwargs)
        wrapper: torch.Tensor = stock_wrapper(cls, *args, **{**kwargs, "device": "cpu"})
        if not hasattr(cls, "__tensor_flatten__"):
            place_wrapper(wrapper, devices.memory_at(wanted))
        return wrapper

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

    stock_deepcopy: Any = torch.Tensor.__deepcopy__

    def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        copied: torch.Tensor = stock_deepcopy(tensor, memo)
        block = block_of(tensor) if current() is not None else None
        if block is not None and copied is not tensor:
            place(copied, block.memory)
        return copied

    def beside(stock: Any) -> Any:
        """A method that makes a tensor where its own is, of what it is given."""

        @functools.wraps(stock)
        def method(tensor: torch.Tensor, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
            block = block_of(tensor) if current() is not None else None
            if device is None and block is None:
                return stock(tensor, *args, **kwargs)
            if device is not None and type(device) is not int and torch.device(device).type != "cuda":
                return stock(tensor, *args, device=device, **kwargs)
            made: torch.Tensor = stock(tensor, *args, **kwargs)
            return devices.on_device(made, device_of(tensor) if device is None else device)

        return method

    tensor_class = torch.Tensor
    patches.set(tensor_class, "__deepcopy__", deepcopy)
    for name in ("new", "new_tensor"):
        patches.set(tensor_class, name, beside(getattr(tensor_class, name)))
    patches.set(tensor_class, "to", to)
    patches.set(tensor_class, "cuda", cuda)
    patches.set(tensor_class, "cpu", cpu)
    patches.set(tensor_class, "device", property(device_of))
    patches.set(tensor_class, "is_cuda", property(is_cuda))
    patches.set(tensor_class, "get_device", get_device)
    patches.set(tensor_class, "pin_memory", pin_memory)
    patches.set(tensor_class, "is_pinned", is_pinned)
    patches.set(tensor_class, "record_stream", lambda tensor, stream: None)
    patches.set(tensor_class, "type", kind_or_cast)
    # to autograd, which would ask a CUDA runtime, a wrapper is on the CPU as its parts are
    patches.set(tensor_class, "_make_wrapper_subclass", staticmethod(make_wrapper))


@functools.cache
def _answers_itself(cls: type) -> bool:
    """Whether a class of tensors has a torch function of its own: it knows torch's getter, not what stands in its place."""
    stock: Any = torch.Tensor.__torch_function__
    function: Any = cls.__torch_function__  # type: ignore[attr-defined]
    return getattr(function, "__func__", function) not in (stock.__func__, torch._C._disabled_torch_function_impl)


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
