"""Attributes that are replaced for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MISSING: Any = object()


class Patches:
    """Attributes of modules, classes and dictionaries that have another value until :meth:`undo`."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self._lifted = False

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name``; if it was not in ``owner`` itself, it will be deleted again."""
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Everything as it was, for the length of a block. May be nested."""
        if self._lifted:
            yield
            return
        self._lifted = True
        values = [(owner, name, vars(owner)[name]) for owner, name, _ in self._undo]
        for owner, name, value in reversed(self._undo):
            _put(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in values:
                setattr(owner, name, value)
            self._lifted = False

    def undo(self) -> None:
        """Put everything back, last first. Idempotent."""
        while self._undo:
            _put(*self._undo.pop())


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
