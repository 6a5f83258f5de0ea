"""Attributes that are replaced for a while."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple

from kernbench.errors import KernbenchError

_MISSING: object = object()

_numbers = itertools.count()
_placed: weakref.WeakSet[Patches] = weakref.WeakSet()
"""Those whose attributes are in place."""


class _Replaced(NamedTuple):
    """An attribute that has another value.

    Attributes:
        stock: what it was, ``_MISSING`` if its owner itself did not have it.
        number: of all that were ever replaced.
    """

    owner: Any
    name: str
    stock: Any
    value: Any
    number: int

    @property
    def key(self) -> tuple[int, str]:
        """Which attribute it is."""
        return id(self.owner), self.name


def replaced() -> list[tuple[Any, Any]]:
    """What has another value now, and that value, oldest first."""
    made = sorted((each for patches in _placed for each in patches._made), key=lambda each: each.number)
    return [(each.stock, each.value) for each in made if each.stock is not _MISSING]


class Patches:
    """Attributes of modules, classes and dictionaries that have another value until :meth:`undo`.

    What was set can be put in place again with :meth:`redo`, which costs a tenth of making the values anew. Several may replace
    the same attribute, and be undone in any order: the attribute has the value of the last one that is left.
    """

    def __init__(self) -> None:
        self._made: list[_Replaced] = []
        self._again = -1
        """The number from which on it was redone."""
        self._lifted = False
        self._in_place = True
        _placed.add(self)

    def set(self, owner: object, name: str, value: Any) -> None:
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

    def add(self, owner: object, name: str, value: object) -> None:
        """Give ``owner`` a name, which it may have already; if it was not in ``owner`` itself, it will be deleted again."""
        self._made.append(_Replaced(owner, name, vars(owner).get(name, _MISSING), value, next(_numbers)))
        setattr(owner, name, value)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Everything as it was, for the length of a block. May be nested."""
        if self._lifted:
            yield
            return
        self._lifted = True
        values = [(each.owner, each.name, vars(each.owner)[each.name]) for each in self._made]
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
            _placed.discard(self)
            covered = self._hand_on()
            _put_back([each for each in self._made if each.key not in covered] if covered else self._made)

    def redo(self) -> bool:
        """After :meth:`undo`: set everything again, in the same order.

        False, with nothing set, if one of the attributes has been changed since: the values were made from what it was.
        """
        for index, (owner, name, stock, value, _) in enumerate(self._made):
            if vars(owner).get(name, _MISSING) is not stock:
                _put_back(self._made[:index])
                return False
            setattr(owner, name, value)
        self._in_place = True
        self._again = next(_numbers)
        _placed.add(self)
        return True

    def _since(self, index: int) -> int:
        """The number from which on one of the attributes has its value."""
        return max(self._made[index].number, self._again)

    def _hand_on(self) -> Collection[tuple[int, str]]:
        """Have those that replaced our values put back what we found; gives the attributes that have theirs."""
        covered: set[tuple[int, str]] = set()
        later = [other for other in _placed if other._made and other._since(-1) > self._since(0)] if self._made else []
        if not later:  # as it is where the last is undone first
            return covered
        found = {each.key: each.stock for each in reversed(self._made)}
        given = {each.key: each for each in self._made}
        for other in later:
            for index, theirs in enumerate(other._made):
                ours = given.get(theirs.key)
                if ours is None or theirs.stock is not ours.value:
                    continue
                if max(theirs.number, other._again) < max(ours.number, self._again):
                    continue  # it is ours that replaced theirs, with what they had found
                other._made[index] = theirs._replace(stock=found[theirs.key])
                if vars(theirs.owner).get(theirs.name, _MISSING) is not ours.value:  # it is, while theirs are lifted
                    covered.add(theirs.key)
        return covered


def _put_back(made: Sequence[_Replaced]) -> None:
    for owner, name, stock, _, _ in reversed(made):
        if stock is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, stock)
