"""The active context: the innermost one that has been entered and not left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

_active: list[RuntimeContext] = []


def current_context() -> RuntimeContext | None:
    """The active context, or None."""
    return _active[-1] if _active else None


def activate(ctx: RuntimeContext) -> None:
    """Make ``ctx`` the active context; activating it again is a no-op."""
    if ctx not in _active:
        _active.append(ctx)


def deactivate(ctx: RuntimeContext) -> None:
    """``ctx`` is no longer active, nor are those entered inside it."""
    if ctx in _active:
        del _active[_active.index(ctx) :]
