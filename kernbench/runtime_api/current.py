"""The active context: the one that was opened, or spawned ranks, last and has not been closed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.runtime_api.rank_state import RankState

_active: list[weakref.ref[RuntimeContext]] = []


def current_context() -> RuntimeContext | None:
    """The active context, or None."""
    while _active:
        ctx = _active[-1]()
        if ctx is not None:
            return ctx
        del _active[-1]  # dropped without having been closed
    return None


def activate(ctx: RuntimeContext) -> None:
    """Make ``ctx`` the active context."""
    deactivate(ctx)
    _active.append(weakref.ref(ctx))


def deactivate(ctx: RuntimeContext) -> None:
    """``ctx`` is no longer active; the one that was active before it is again."""
    _active[:] = [other for other in _active if other() not in (ctx, None)]


def current_owner() -> RankState | None:
    """State of the simulated rank that is running, None in main and outside simulations.

    What a real process would keep in a module's globals, a library keeps per owner instead (in a mapping with weak keys),
    so that it works for ranks that share one process.
    """
    ctx = current_context()
    if ctx is None:
        return None
    me = ctx._me()
    return None if me.rank is None else me
