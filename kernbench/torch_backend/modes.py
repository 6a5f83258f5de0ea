"""Torch as it is without the user's modes: what an engine that computes with torch runs its own calls under.

A kernel launch is one opaque operation to the program that makes it. What computes it here is made of torch calls, and modes
apply to those too: a ``TorchDispatchMode`` would count them, autocast would lower the precision of a kernel's products,
inference mode would make cached tensors unusable outside of it, a default dtype or device would leak into constants (ADR 0027).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch._C import (
    DisableTorchFunction,
    DispatchKey,
    DispatchKeySet,
    _DisableTorchDispatch,
    _ExcludeDispatchKeyGuard,
    _is_any_autocast_enabled,
)

from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch._C.DisableTorchFunction", "it skips function modes and subclasses, in the calling thread",
        has=("__enter__", "__exit__"),
    ),
    Reliance(
        "torch._C._DisableTorchDispatch", "it skips dispatch modes and subclasses, in the calling thread",
        has=("__enter__", "__exit__"),
    ),
    Reliance("torch._C._ExcludeDispatchKeyGuard", "it skips autocast, in the calling thread", has=("__enter__", "__exit__")),
    Reliance("torch._C", "what is skipped is said by keys, and only where it is on",
             has=("DispatchKey", "DispatchKeySet", "_is_any_autocast_enabled")),
    Reliance("torch._C.DispatchKey.AutocastCPU", "and this is autocast's"),
)  # fmt: skip

_AUTOCAST = DispatchKeySet(DispatchKey.AutocastCPU)


class plain_torch:
    """``with plain_torch():`` torch calls inside see no mode, no autocast, no inference mode, fp32 as the default dtype.

    Instances are used once; blocks nest.
    """

    __slots__ = ("_dtype", "_guards")

    def __enter__(self) -> None:
        self._guards: list[Any] = [DisableTorchFunction(), _DisableTorchDispatch()]
        if torch.is_inference_mode_enabled():
            self._guards.append(torch.inference_mode(False))
        if _is_any_autocast_enabled():
            self._guards.append(_ExcludeDispatchKeyGuard(_AUTOCAST))
        for guard in self._guards:
            guard.__enter__()
        self._dtype = torch.get_default_dtype()
        if self._dtype is not torch.float32:
            torch.set_default_dtype(torch.float32)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._dtype is not torch.float32:
            torch.set_default_dtype(self._dtype)
        for guard in reversed(self._guards):
            guard.__exit__(kind, error, trace)
