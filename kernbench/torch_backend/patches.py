"""Attributes that are replaced for a while."""

from __future__ import annotations

from typing import Any

_MISSING: Any = object()


class Patches:
    """Attributes of modules, classes and dictionaries that have another value until :meth:`undo`."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name``; if it was not in ``owner`` itself, it will be deleted again."""
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back, last first. Idempotent."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
