"""Hooks on all modules belong to the rank that registers them.

``register_module_forward_hook`` and its like, on which ``CommDebugMode`` and ``ModuleTracker`` stand, keep hooks in
dictionaries of ``torch.nn.modules.module``. These become each rank's own when the first of them is written to; until then
they cost nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.nn.modules import module as nn_module

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch.nn.modules.module", "hooks on all modules are in globals of these names", has=(
            "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
        ),
    ),
    Reliance(
        "torch.nn.modules.module._global_forward_hooks", "calls of modules look there", looked_up_by=("torch.nn.Module",),
        holds=lambda hooks: isinstance(hooks, OrderedDict),
    ),
)  # fmt: skip


class _Hooks(OrderedDict[Any, Any]):
    """A dictionary that says when it is first written to."""

    claim: Callable[[], None] | None = None

    def __setitem__(self, key: object, value: Any) -> None:
        if self.claim is not None:
            self.claim()
        super().__setitem__(key, value)


def install(patches: Patches, modules: ModuleGlobals) -> None:
    """Watch the dictionaries."""
    names = [name for name, value in vars(nn_module).items() if name.startswith("_global_")]
    watched: list[_Hooks] = []

    def claim() -> None:
        for hooks in watched:
            hooks.claim = None
        modules.take(nn_module, names)

    for name in names:
        value = vars(nn_module)[name]
        if isinstance(value, OrderedDict):
            hooks = _Hooks(value)
            watched.append(hooks)
            patches.set(nn_module, name, hooks)
        else:
            patches.set(nn_module, name, value)
    for hooks in watched:
        hooks.claim = claim
