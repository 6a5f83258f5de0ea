"""Module-level state that every rank has of its own.

Megatron-Core keeps its process groups and random states in module globals: one process, one rank. Simulated ranks share a
process, so such a global becomes a :class:`PerRank` (ADR 0050): keyed by the rank that is running, process-wide where no
rank is simulated. The state of a rank is dropped with the rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from kernbench.runtime_api.running_rank import running_rank

T = TypeVar("T")


class PerRank(Generic[T]):
    """One value per rank, made by ``factory`` when the rank first asks."""

    def __init__(self, factory: Callable[[], T]) -> None:
        self._factory = factory
        self._by_rank: weakref.WeakKeyDictionary[object, T] = weakref.WeakKeyDictionary()
        self._process: list[T] = []

    def get(self) -> T:
        """The running rank's value, or the process's."""
        rank = running_rank()
        if rank is None:
            if not self._process:
                self._process.append(self._factory())
            return self._process[0]
        value = self._by_rank.get(rank)
        if value is None:
            value = self._by_rank[rank] = self._factory()
        return value

    def reset(self) -> None:
        """Forget the running rank's value: the next :meth:`get` makes a fresh one."""
        rank = running_rank()
        if rank is None:
            self._process.clear()
        else:
            self._by_rank.pop(rank, None)
