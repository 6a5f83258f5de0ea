"""What a rank replaces with :mod:`unittest.mock` is replaced for that rank: attributes of torch's classes, say, that all share.

From the first replacement on, the attributes of that class, or of that module, are each rank's own, as they are in processes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.relies_on import Reliance

_Patch: Any = mock._patch
_stock_enter = _Patch.__enter__

RELIES_ON = (
    Reliance("unittest.mock._patch", "a replacement begins in `__enter__`, of an attribute of what `getter` gives", has=(
        "__enter__", "__exit__",
    ), parameters=("getter", "attribute")),
)  # fmt: skip


def install(patches: Patches, modules: ModuleGlobals, current_rank: Callable[[], int | None]) -> None:
    """Notice what ranks replace."""

    @functools.wraps(_stock_enter)
    def enter(self: Any) -> Any:
        if current_rank() is not None:
            target = self.getter()
            if isinstance(target, type | ModuleType):
                modules.part(target, self.attribute)
        return _stock_enter(self)

    patches.set(_Patch, "__enter__", enter)
