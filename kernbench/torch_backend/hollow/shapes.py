"""What an operation's results would be: sizes, strides and dtypes, found by torch's own meta kernels, once per kind of call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.memory.reserved import reserved_zeros
from kernbench.simulation.memory.storages import SMALL_BYTES
from kernbench.torch_backend.gpu.memory.host_memory import refused
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch._subclasses.fake_tensor.FakeTensorMode", "it knows shapes that meta kernels do not",
        has=("from_tensor", "__enter__", "__exit__"),
    ),
    Reliance(
        "torch._subclasses.fake_tensor", "how it says that it does not know an operator",
        has=("UnsupportedOperatorException", "DynamicOutputShapeException", "DataDependentOutputException", "log"),
    ),
    Reliance("torch._prims_common.suggest_memory_format", "it says as C++ does whether channels come last", parameters=("x",)),
)  # fmt: skip


class Described(NamedTuple):
    """A tensor that an operation gives: size and stride in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Elements."""
        return next(reversed([*accumulate(self.size, lambda a, b: a * b, initial=1)]))


class UnknownShapeError(Exception):
    """Neither a meta kernel nor a fake one knows what an operation gives.

    Attributes:
        refused: one knows the operation, and refuses these arguments.
    """

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


MOST_KNOWN = 200_000
"""Calls whose results are remembered."""

_known: dict[object, Any] = {}


def described(func: OpOverload, args: Any, kwargs: Any, key: object = None) -> Any:
    """What ``func(*args, **kwargs)`` gives, with a :class:`Described` in the place of each tensor.

    Args:
        key: what that depends on; None: it is found out each time.

    Raises :class:`UnknownShapeError`.
    """
    found = _known.get(key)
    if found is None:
        found = _find(func, args, kwargs)
        if key is not None:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            _known[key] = found
    return found


def _find(func: OpOverload, args: Any, kwargs: Any) -> Any:
    options = {name: on_meta(value) for name, value in kwargs.items() if name != "generator"}
    try:
        result = func(*on_meta(args), **options)
    except KernbenchError:
        raise
    except (NotImplementedError, RuntimeError):
        result = _fake(func, args, kwargs)
    return _as_on_host(func, args, described_results(result))


def described_results(result: Any) -> Any:
    """What a call has given, with a :class:`Described` in the place of each tensor."""
    return mapped(result, _describe)


def _as_on_host(func: OpOverload, args: Any, found: Any) -> Any:
    """Results as the CPU's kernels give them, so that a program takes the same bytes with data and without: statistics of
    a norm, and channels that come last.

    Meta kernels describe the GPU's: they keep float32 where the CPU's keep the input's dtype, unless weights have more bits.
    """
    name = func._opname
    if name == "native_group_norm":
        first = args[0].dtype
        mixed = any(isinstance(each, torch.Tensor) and each.dtype is torch.float32 for each in args[1:])
        return (found[0], *(each._replace(dtype=torch.float32 if mixed else first) for each in found[1:]))
    if name == "native_batch_norm" and not args[5]:
        return (found[0], *(each._replace(size=(0,), stride=(1,)) for each in found[1:]))
    if name == "convolution":
        return _laid_out(found, _layout(*args[:2]))
    if name == "convolution_backward":
        layout = _layout(*args[1:3])
        return (*(each and _laid_out(each, layout) for each in found[:2]), found[2])
    return found


def _layout(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """How a convolution lays out what it gives, on a GPU and on the CPU: meta kernels do not say."""
    from torch._prims_common import suggest_memory_format

    layouts = {suggest_memory_format(each) for each in (input, weight)}
    return next((each for each in layouts if each is not torch.contiguous_format), torch.contiguous_format)


def _laid_out(what: Described, layout: torch.memory_format) -> Described:
    if layout is torch.contiguous_format:
        return what
    return what._replace(stride=torch.empty(what.size, device="meta", memory_format=layout).stride())


def _fake(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The result according to torch's fake tensors."""
    from torch._subclasses import fake_tensor
    from torch._subclasses.fake_tensor import FakeTensorMode

    unknown = (
        NotImplementedError,
        fake_tensor.UnsupportedOperatorException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.DataDependentOutputException,
    )
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    before, fake_tensor.log.disabled = fake_tensor.log.disabled, True  # it would show what is raised, at length
    try:
        with mode:
            return func(*mapped(args, mode.from_tensor), **mapped(kwargs, mode.from_tensor))
    except Exception as error:
        raise UnknownShapeError(f"{func}: {error}", refused=not isinstance(error, unknown)) from error
    finally:
        fake_tensor.log.disabled = before


def on_meta(value: Any) -> Any:
    """A value with each tensor and device in it on ``meta``, and None for a generator."""
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, list | tuple):
        return type(value)(map(on_meta, value))
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), torch.Tensor.stride(value), dtype=value.dtype, device="meta")
    return value


def _describe(tensor: torch.Tensor) -> Described:
    return Described(tuple(map(int, tensor.size())), tuple(map(int, torch.Tensor.stride(tensor))), tensor.dtype)


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A value with each tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(mapped(each, change) for each in value)
    if isinstance(value, dict):
        return {name: mapped(each, change) for name, each in value.items()}
    return value


def allocate(what: Described) -> torch.Tensor:
    """A tensor whose bytes are untouched: it takes address space alone, also beyond the host's memory."""
    try:
        return torch.empty_strided(what.size, what.stride, dtype=what.dtype)
    except RuntimeError:
        return reserved_zeros(what.dtype, what.size, what.stride)


def made_on_host(call: Callable[..., Any], func: OpOverload, args: Any, kwargs: Any, key: Any = None) -> Any:
    """What ``call``, which is ``func``, allocates on the host: address space alone, where that has no more to give."""
    try:
        return call(*args, **kwargs)
    except RuntimeError as error:
        if refused(error) is None:
            raise
        what = described(func, args, kwargs, key)
        if type(what) is not Described:
            raise
        return reserved_zeros(what.dtype, what.size, what.stride)


def hollow(make: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """What ``make("cpu")`` gives, if its values are few; else a tensor like it, which ``make("meta")`` describes."""
    what = make("meta")
    if what.numel() * what.element_size() <= SMALL_BYTES:
        return make("cpu")
    return allocate(_describe(what))
