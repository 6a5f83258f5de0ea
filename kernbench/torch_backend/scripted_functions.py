"""``torch.jit.script`` compiles calls of functions of torch that are wrapped here to the operations of those that they wrap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from torch.jit import _builtins, _recursive

from kernbench.torch_backend.relies_on import Reliance

_OURS = __name__.partition(".")[0]
_NAME = "_find_builtin"

RELIES_ON = (
    Reliance("torch.jit._builtins._find_builtin", "TorchScript knows the functions by what they are", parameters=("fn",)),
    Reliance("torch.jit._recursive._find_builtin", "and looks them up here, too", parameters=("fn",)),
)  # fmt: skip


def replaced() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """What TorchScript finds them by: owner, name and value."""
    find = _knows_wrapped(_builtins._find_builtin)
    for module in (_builtins, _recursive):
        yield module, _NAME, find


def _knows_wrapped(stock: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def find(fn: object) -> Any:
        while type(fn) is FunctionType and str(fn.__globals__.get("__name__")).partition(".")[0] == _OURS:
            if not hasattr(fn, "__wrapped__"):
                break
            fn = fn.__wrapped__
        return stock(fn)

    return find
