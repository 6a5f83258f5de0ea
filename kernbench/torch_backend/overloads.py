"""The type of torch's operators by overload, for annotations: torch has no public name for it."""

from __future__ import annotations

from torch._ops import OpOverload

from kernbench.torch_backend.relies_on import Reliance

__all__ = ["OpOverload"]

RELIES_ON = (
    Reliance("torch._ops.OpOverload", "an operator as modes and the dispatcher have it", has=("name", "__call__")),
)
