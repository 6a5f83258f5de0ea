"""What a thread of a rank waits for of another one: a condition, which that one fulfils as it would release a lock."""

from __future__ import annotations

from typing import Protocol

from kernbench.sim_engine import Condition

SLEEP = "the end of its sleep"
"""What a daemon that sleeps waits for."""

LOOKED_AT = "memory that it looks at"
"""What a thread waits for that looks again and again at what another process may write."""

THREAD_LOOKED_AT = "another thread, at which it looks again and again"
"""What a thread waits for that looks, without waiting, at what another one of its rank is to do."""


class Teller(Protocol):
    """Hears of what is released."""

    def tell(self, notice: Notice) -> None:
        """In any thread: ``notice`` has been released."""


class Notice:
    """What a thread waits for: that another one releases it, as it would the lock in whose place this stands.

    Attributes:
        told: whether it has been released.
        condition: what the thread waits for: that, or the end of its patience.
    """

    __slots__ = ("__weakref__", "_threads", "condition", "told")

    def __init__(self, threads: Teller, condition: Condition) -> None:
        self.told = False
        self.condition = condition
        self._threads = threads

    def release(self) -> None:
        """In any thread."""
        if not self.told:
            self.told = True
            self._threads.tell(self)
