"""A trace of ``torch.fx`` is of the rank that makes it, also while others run: it may call a collective, as of ``make_fx``.

As long as it lasts, ``torch.nn.Module``'s methods are replaced by ones that trace, and flags say so to Dynamo.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.fx._symbolic_trace
import torch.fx.experimental.proxy_tensor
import torch.fx.traceback

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.relies_on import Reliance

_Patcher: Any = torch.fx._symbolic_trace._Patcher

_GLOBALS = {
    torch.fx._symbolic_trace: ("_is_fx_tracing_flag", "CURRENT_PATCHER"),
    torch.fx.experimental.proxy_tensor: ("_CURRENT_MAKE_FX_TRACER",),
    torch.fx.traceback: ("current_meta",),
}

RELIES_ON = (
    Reliance("torch.fx._symbolic_trace._Patcher", "a trace replaces methods of classes by it", has=("patch_method",)),
    *(Reliance(module.__name__, "globals say which trace is made", has=names) for module, names in _GLOBALS.items()),
)  # fmt: skip


def install(patches: Patches, modules: ModuleGlobals, current_rank: Callable[[], int | None]) -> None:
    """Let each rank have its own traces. To be called where none is made."""
    stock = _Patcher.patch_method

    @functools.wraps(stock)
    def patch_method(self: Any, cls: type, name: str, *args: Any, **kwargs: Any) -> None:
        if current_rank() is not None:
            modules.part(cls, name)
        stock(self, cls, name, *args, **kwargs)

    patches.set(_Patcher, "patch_method", patch_method)
    for module, names in _GLOBALS.items():
        modules.take(module, names)
