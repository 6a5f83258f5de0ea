"""Methods of ``torch.Tensor`` that are replaced, to classes of tensors with a ``__torch_function__`` of their own.

Such a class knows functions by what ``torch`` calls them: it compares (``func is torch.Tensor.to``), or has a table that was
filled as its module was executed, which was before or after the methods were replaced. So what stands in the place of a method
is equal to it, and asks the class before it does anything, as C++ does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.overrides import handle_torch_function

from kernbench.torch_backend.gpu.tensors.placement import PLAIN
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.Tensor.__torch_function__", "a class that has another one answers itself",
             holds=lambda function: hasattr(function, "__func__")),
    Reliance("torch._C._disabled_torch_function_impl", "a class that has it leaves torch's functions as they are"),
    Reliance("torch._C._is_torch_function_enabled", "a class that has answered calls the function while this is off"),
    Reliance("torch.overrides.handle_torch_function", "it asks classes", parameters=("public_api", "relevant_args")),
)  # fmt: skip


@functools.cache
def answers_itself(cls: type) -> bool:
    """Whether a class of tensors has a torch function of its own."""
    stock: Any = torch.Tensor.__torch_function__
    function: Any = cls.__torch_function__  # type: ignore[attr-defined]
    return getattr(function, "__func__", function) not in (stock.__func__, torch._C._disabled_torch_function_impl)


class AskingMethod:
    """What stands in the place of a method of ``torch.Tensor``.

    Args:
        ours: what it does to tensors whose class does not answer itself, or has answered.
        stock: the method, which it is equal to.
    """

    def __init__(self, ours: Callable[..., object], stock: Callable[..., object]) -> None:
        functools.update_wrapper(self, ours)
        self._ours = ours
        self._stock = stock

    def __call__(self, tensor: object, *args: object, **kwargs: object) -> Any:
        """What the tensor's class answers, or what is done in its place."""
        cls: type = type(tensor)
        if cls not in PLAIN and torch._C._is_torch_function_enabled() and answers_itself(cls):
            return handle_torch_function(self, (tensor,), tensor, *args, **kwargs)
        return self._ours(tensor, *args, **kwargs)

    def __get__(self, tensor: object, owner: type | None = None) -> Any:
        return self if tensor is None else MethodType(self, tensor)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._stock

    def __hash__(self) -> int:
        return hash(self._stock)
