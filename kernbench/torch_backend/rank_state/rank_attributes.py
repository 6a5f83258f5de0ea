"""An attribute of objects that ranks share, of which each rank has a value of its own.

It is read and written by rank while ranks run, so a switch of ranks costs nothing. Main's value is in the object, where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary


class RankAttribute:
    """A descriptor of the objects' class. A rank begins with what main has, containers copied.

    Args:
        name: what it is called.
        make: gives what a new object has.
        whose: the rank that runs; None: main.
    """

    def __init__(self, name: str, make: Callable[[], Any], whose: Callable[[], int | None]) -> None:
        self._name = name
        self._make = make
        self._whose = whose
        self._values: dict[int, WeakKeyDictionary[Any, Any]] = {}

    def __get__(self, owner: object, cls: Any = None) -> Any:
        if owner is None:
            return self
        rank = self._whose()
        if rank is None:
            return vars(owner)[self._name]
        mine = self._values.get(rank)
        if mine is None:
            mine = self._values[rank] = WeakKeyDictionary()
        try:
            return mine[owner]
        except KeyError:
            value = self._of_main(owner)
            value = mine[owner] = value.copy() if isinstance(value, (list, dict)) else value
            return value

    def __set__(self, owner: object, value: Any) -> None:
        rank = self._whose()
        if rank is None:
            vars(owner)[self._name] = value
            return
        self._of_main(owner)
        self._values.setdefault(rank, WeakKeyDictionary())[owner] = value

    def _of_main(self, owner: Any) -> Any:
        """Main's value; an object that a rank has made is new to main."""
        return vars(owner).setdefault(self._name, self._make())
