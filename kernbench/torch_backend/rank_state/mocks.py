"""What a rank replaces with :mod:`unittest.mock` is replaced for that rank: attributes of torch's classes, say, that all share.

From the first replacement on, the attributes of that class, or of that module, are each rank's own, as they are in processes.
One object may be entered by several ranks at a time, as a decorator is of a function that all call: each enters a copy.
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.relies_on import Reliance

_Patch: Any = mock._patch
_PatchDict: Any = mock._patch_dict
_stock_enter = _Patch.__enter__

RELIES_ON = (
    Reliance("unittest.mock._patch", "a replacement begins in `__enter__`, of an attribute of what `getter` gives", has=(
        "__enter__", "__exit__",
    ), parameters=("getter", "attribute")),
    Reliance("unittest.mock._patch_dict", "it keeps what the dictionary had from one of these to the other", has=(
        "_patch_dict", "_unpatch_dict",
    ), parameters=("in_dict",)),
)  # fmt: skip


class _Entered:
    """Copies of replacements that ranks are within.

    Args:
        current_rank: the rank that runs; None: main does.
    """

    def __init__(self, current_rank: Callable[[], int | None]) -> None:
        self._current_rank = current_rank
        self._copies: defaultdict[tuple[int, int], list[tuple[object, Any]]] = defaultdict(list)

    def each_in_its_own(self, enter: Callable[[Any], Any], leave: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
        """Both functions, of which in a rank the first one works on a copy, and the second one on that copy."""

        @functools.wraps(enter)
        def enter_copy(self_: Any) -> Any:
            rank = self._current_rank()
            if rank is None:
                return enter(self_)
            own = copy.copy(self_)
            result = enter(own)
            self._copies[id(self_), rank].append((self_, own))
            return result

        @functools.wraps(leave)
        def leave_copy(self_: Any, *args: Any) -> Any:
            rank = self._current_rank()
            copies = None if rank is None else self._copies.get((id(self_), rank))
            if not copies:  # main's, or a copy that could not be entered
                return leave(self_, *args)
            _, own = copies.pop()
            return leave(own, *args)

        return enter_copy, leave_copy


def install(patches: Patches, modules: ModuleGlobals, current_rank: Callable[[], int | None]) -> None:
    """Notice what ranks replace."""

    @functools.wraps(_stock_enter)
    def enter(self: Any) -> Any:
        if current_rank() is not None:
            target = self.getter()
            if isinstance(target, type | ModuleType):
                modules.part(target, self.attribute)
        return _stock_enter(self)

    entered = _Entered(current_rank)
    for kind, first, last, begin in (
        (_Patch, "__enter__", "__exit__", enter),
        (_PatchDict, "_patch_dict", "_unpatch_dict", _PatchDict._patch_dict),
    ):
        begin_own, end_own = entered.each_in_its_own(begin, getattr(kind, last))
        patches.set(kind, first, begin_own)
        patches.set(kind, last, end_own)
