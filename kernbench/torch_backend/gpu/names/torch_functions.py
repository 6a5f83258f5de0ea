"""Functions of torch that would ask a CUDA runtime, or could not put their result on a simulated GPU: factories,
``Module.to``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.types import Device

from kernbench.simulation.values.known_values import keep
from kernbench.torch_backend import scripted_functions
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.names.torch_classes import default_device
from kernbench.torch_backend.gpu.tensors.pinning import pinned
from kernbench.torch_backend.gpu.tensors.placement import block_of, components_of, is_described
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_TAKE_AN_INDEX = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "eye", "empty_strided",
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "logspace", "normal",
    "scalar_tensor", "empty_permuted", "hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window",
)  # fmt: skip
"""Functions of which a program may write ``device=torch.cuda.current_device()``, a number: C++ would ask a CUDA runtime."""
_METHODS_THAT_TAKE_AN_INDEX = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
_HAVE_NO_KERNEL = (
    "tensor", "as_tensor", "asarray", "sparse_coo_tensor", "sparse_csr_tensor", "tril_indices", "triu_indices", "range",
)  # fmt: skip
"""Functions whose result is not made by the two operations that allocate."""
_COPY = frozenset(("tensor", "as_tensor", "asarray"))
"""Those of them that copy what the host has."""
_NEST = ("nested_tensor", "as_nested_tensor")
"""Functions of ``torch.nested`` that give C++ the device, unless the layout is ``torch.jagged``."""


RELIES_ON = (
    Reliance("torch.from_dlpack", "programs call it by two names", parameters=("ext_tensor", "device", "copy"),
             holds=lambda function: function is torch.utils.dlpack.from_dlpack),
    Reliance("torch", "programs make tensors with these on a simulated GPU", has=(*_HAVE_NO_KERNEL, *_TAKE_AN_INDEX)),
    Reliance("torch.Tensor", "and with these methods", has=_METHODS_THAT_TAKE_AN_INDEX),
    Reliance("torch._C._nn._parse_to", "`Module.to(3)` means a GPU", looked_up_by=("torch.nn.Module.to",)),
    Reliance("torch._C._len_torch_function_stack", "whether there may be a default device"),
    Reliance(
        "torch._use_cudnn_rnn_flatten_weight", "builds for CUDA lay out recurrent weights by a call of cuDNN",
        looked_up_by=("torch.nn.modules.rnn.RNNBase.flatten_parameters",),
    ),
    Reliance("torch.nested", "and nested ones with these", has=_NEST),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Wrap the functions."""
    for name in _HAVE_NO_KERNEL:
        patches.set(torch, name, _places_result(getattr(torch, name)))
    patches.set(torch._C._nn, "_parse_to", _with_first_index(torch._C._nn._parse_to))
    for name in _TAKE_AN_INDEX:
        patches.set(torch, name, _with_index(getattr(torch, name)))
    for name in _METHODS_THAT_TAKE_AN_INDEX:
        patches.set(torch.Tensor, name, _with_index(getattr(torch.Tensor, name)))
    from_dlpack = _takes_tensors(torch.from_dlpack)
    for module in (torch, torch.utils.dlpack):
        patches.set(module, "from_dlpack", from_dlpack)
    for name in _NEST:
        patches.set(torch.nested, name, _nests(getattr(torch.nested, name)))
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: False)
    for owner, name, value in scripted_functions.replaced():
        patches.set(owner, name, value)


def _places_result(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def wrapped(*args: object, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None and torch._C._len_torch_function_stack():
            device = default_device()
        pin = kwargs.pop("pin_memory", False)  # of what goes to a GPU, the memory that it comes from is
        if type(device) is not int and (device is None or torch.device(device).type != "cuda"):
            return pinned(stock(*args, **kwargs)) if pin else stock(*args, **kwargs)
        kwargs["device"] = "cpu"
        tensor = stock(*args, **kwargs)
        if is_described(type(tensor)):  # a graph is being traced, in which it is copied there
            return tensor.to(device)
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if source is not None and block_of(tensor) is None:
            tensor = tensor.clone()
        mine = bound_devices()
        if stock.__name__ in _COPY and (source is None or block_of(source) is None):
            mine.mine().may_copy(source)
        for part in components_of(tensor) or (tensor,):
            keep(mine.simulation.storages, part)
        return mine.on_device(tensor, device)

    return wrapped


def _takes_tensors(stock: Callable[..., object]) -> Callable[..., Any]:
    """``from_dlpack``, which of a tensor of torch gives that tensor's memory, wherever it is."""

    @functools.wraps(stock)
    def from_dlpack(ext_tensor: object, *, device: Device = None, copy: bool | None = None) -> Any:
        if not isinstance(ext_tensor, torch.Tensor) or block_of(ext_tensor) is None:
            return stock(ext_tensor, device=device, copy=copy)
        tensor = ext_tensor.detach()
        there = tensor if device is None else tensor.to(device)
        if copy is False and there is not tensor:
            raise ValueError(f"cannot move to {device} without a copy, and copy=False")
        return there.clone() if copy and there is tensor else there

    return from_dlpack


def _nests(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a nested tensor of tensors, which are where they are: it is put where it is to be."""

    @functools.wraps(stock)
    def nest(*args: object, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or kwargs.get("layout") is torch.jagged:
            return stock(*args, **kwargs)
        if type(device) is not int and torch.device(device).type != "cuda":
            return stock(*args, **kwargs)
        leaf = kwargs.pop("requires_grad", False)
        made = stock(*args, **{**kwargs, "device": None}).to(device)
        return made.requires_grad_() if leaf else made

    return nest


def _with_index(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def factory(*args: object, **kwargs: Any) -> Any:
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if kwargs.get("out") is not None:
            _leave_to_out(kwargs)
        if kwargs.get("pin_memory"):
            return pinned(stock(*args, **{**kwargs, "pin_memory": False}))
        return stock(*args, **kwargs)

    return factory


def _leave_to_out(kwargs: dict[str, Any]) -> None:
    """Replace the device that a factory is given, or that is the default, by that of ``out`` to C++, which compares them.

    Raises RuntimeError, as torch does, if ``out`` is on another one."""
    device = kwargs.get("device")
    if device is None and torch._C._len_torch_function_stack():
        device = default_device()
    if device is None:
        return
    device, there = torch.device(device), kwargs["out"].device
    if device.type != there.type or device.index not in (None, there.index):
        raise RuntimeError(f"device type {device.type} does not match device type of out parameter ({there.type})")
    if there.type == "cuda":
        kwargs["device"] = torch.device("cpu")


def _with_first_index(stock: Callable[..., object]) -> Callable[..., Any]:
    """``Module.to(3)``: the first argument may be a number."""
    with_keyword = _with_index(stock)

    @functools.wraps(stock)
    def parse(*args: object, **kwargs: object) -> Any:
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        return with_keyword(*args, **kwargs)

    return parse
