"""Attributes that are replaced for a while."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from kernbench.errors import KernbenchError

_MISSING: object = object()


class Patches:
    """Attributes of modules, classes and dictionaries that have another value until :meth:`undo`.

    What was set can be put in place again with :meth:`redo`, which costs a tenth of making the values anew.
    """

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []
        self._lifted = False
        self._in_place = True

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name``, which ``owner`` may have inherited.

        Raises:
            KernbenchError: there is no such name, so what was to replace it would have no user.
        """
        if not hasattr(owner, name):
            wanted_by = inspect.stack(0)[1].frame.f_globals["__name__"]
            raise KernbenchError(
                f"{wanted_by} replaces {name!r} of {getattr(owner, '__name__', type(owner).__name__)}, which torch "
                f"{version('torch')} does not have: `python -m kernbench.torch_backend.relies_on` lists what else it lacks"
            )
        self.add(owner, name, value)

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Give ``owner`` a name, which it may have already; if it was not in ``owner`` itself, it will be deleted again."""
        self._made.append((owner, name, vars(owner).get(name, _MISSING), value))
        setattr(owner, name, value)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Everything as it was, for the length of a block. May be nested."""
        if self._lifted:
            yield
            return
        self._lifted = True
        values = [(owner, name, vars(owner)[name]) for owner, name, _, _ in self._made]
        _put_back(self._made)
        try:
            yield
        finally:
            for owner, name, value in values:
                setattr(owner, name, value)
            self._lifted = False

    def undo(self) -> None:
        """Put everything back, last first. Idempotent."""
        if self._in_place:
            self._in_place = False
            _put_back(self._made)

    def redo(self) -> bool:
        """After :meth:`undo`: set everything again, in the same order.

        False, with nothing set, if one of the attributes has been changed since: the values were made from what it was.
        """
        for index, (owner, name, stock, value) in enumerate(self._made):
            if vars(owner).get(name, _MISSING) is not stock:
                _put_back(self._made[:index])
                return False
            setattr(owner, name, value)
        self._in_place = True
        return True


def _put_back(made: Sequence[tuple[Any, str, Any, Any]]) -> None:
    for owner, name, stock, _ in reversed(made):
        if stock is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, stock)
