"""Calls of ``torch.distributed`` pass torch's dispatcher where a mode of the program looks on, as they do with groups of C++.

A method of a simulated group is Python and calls no operator. Where a ``TorchDispatchMode`` of the program is on
(``CommDebugMode``), the operator that the method stands for (``c10d::allreduce_``) is called instead: the modes see it, and the
recorder below them, which is always there, carries out the method. Operators take groups and reductions as objects of C++: a
mode sees the group, and a reduction that says nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils import _python_dispatch as python_dispatch

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.operations.recorder import Recorder
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C._len_torch_dispatch_stack", "whether a mode is on beside the recorder"),
    Reliance("torch.utils._python_dispatch._get_current_dispatch_mode_stack", "and whose it is"),
    Reliance("torch.ops.c10d", "what a mode sees of calls", has=("allreduce_", "_allgather_base_", "barrier")),
    Reliance("torch.distributed.Work", "operators give C++'s", has=("boxed", "unbox")),
    Reliance("torch.distributed.ProcessGroup", "and take C++'s", has=("boxed",)),
)

_Method = TypeVar("_Method", bound=Callable[..., Any])
Arguments = Callable[..., tuple[Any, ...]]
"""From a group as the operator takes it, and the arguments of a method, those of the operator."""


def dispatched(operator: str, arguments: Arguments) -> Callable[[_Method], _Method]:
    """A method of a process group that stands for an operator of ``torch.ops.c10d``."""

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(group: Any, *args: object, **kwargs: object) -> Any:
            if torch._C._len_torch_dispatch_stack() < 2 or not _is_watched():
                return method(group, *args, **kwargs)
            overload = getattr(torch.ops.c10d, operator).default
            return _through(
                overload, arguments(group.boxed(), *args), functools.partial(method, group, *args, **kwargs)
            )

        return call  # type: ignore[return-value]

    return decorate


def _is_watched() -> bool:
    """Whether a mode of the program is on, and the recorder is below it; not for ranks that are greenlets."""
    if current_device() is None:
        return False
    modes = python_dispatch._get_current_dispatch_mode_stack()
    own = [mode for mode in modes if isinstance(mode, Recorder)]
    return (
        bool(own)
        and not isinstance(modes[-1], Recorder)
        and all(getattr(mode, "_mode_key", None) is None for mode in modes)
    )


def _through(overload: OpOverload, args: tuple[object, ...], body: Callable[[], object]) -> Any:
    """Call an operator that is ``body`` for this rank; what the body gives, or a mode in its stead."""
    device = current_device()
    assert device is not None
    gives_work_alone = len(overload._schema.returns) == 1
    works: list[Any] = []

    def carry_out() -> object:
        works.append(body())
        boxed = works[-1].boxed()
        return boxed if gives_work_alone else (args[0], boxed)

    before, device.doing.dispatched = device.doing.dispatched, carry_out
    try:
        result = overload(*args)
    finally:
        device.doing.dispatched = before
    if works:
        return works[-1]
    return dist.Work.unbox(result if gives_work_alone else result[-1])


# -- arguments ---------------------------------------------------------------------------------------------------------


def any_reduction() -> object:
    """Some reduction as an operator takes it."""
    return torch.classes.c10d.ReduceOp()


def as_tensors(given: Any) -> list[torch.Tensor]:
    """The list that an operator takes."""
    return [given] if isinstance(given, torch.Tensor) else list(given or ())


def as_lists(given: Any) -> list[list[torch.Tensor]]:
    """The list of lists that an operator takes."""
    given = given or []
    return [list(given)] if not given or isinstance(given[0], torch.Tensor) else [list(each) for each in given]


def as_sizes(given: Any) -> list[int]:
    """Split sizes."""
    return [] if given is None else [int(size) for size in given]
