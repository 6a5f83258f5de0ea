"""Timeouts, in virtual time.

A timeout never keeps a simulation alive by itself. When virtual time would pass a deadline, the operation fails with its
timeout error. When no rank can run and nothing is in flight, a deadline that the program *asked for* is jumped to, because
its error is what the program waits to see; one that it merely got by default is not: then the deadlock report says more. So it
is where daemons go on by themselves, and nothing else happens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

from kernbench.simulation.time.wait_queue import Awaited

Expire = Callable[..., None]


class Deadlines:
    """The timeouts of one simulation."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Awaited, bool, Expire, tuple[object, ...]]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, op: Awaited, at: float, asked_for: bool, expire: Expire, *args: object) -> None:
        """Call ``expire(op, at, *args)``, which must fail ``op``, if it has not started when the clock would pass ``at`` s."""
        heapq.heappush(self._heap, (at, next(self._serial), op, asked_for, expire, args))

    def clear(self) -> None:
        """Forget every deadline."""
        self._heap.clear()

    @property
    def first(self) -> float:
        """When the first one is that can still expire, s."""
        heap = self._heap
        while heap and (heap[0][2].start is not None or heap[0][2].done):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def expire_first(self) -> bool:
        """Expire the first deadline, if there is one, and those at the same time as it."""
        heap, at = self._heap, self.first
        if not heap:
            return False
        while heap and heap[0][0] == at:
            _, _, op, _, expire, args = heapq.heappop(heap)
            if not op.done and op.start is None:
                expire(op, at, *args)
        return True

    def expire_asked_for(self) -> bool:
        """Nothing else can happen: expire the first deadline that the program asked for, if there is one."""
        waiting = [entry for entry in self._heap if entry[3] and not entry[2].done and entry[2].start is None]
        if not waiting:
            return False
        at, _, op, _, expire, args = first = min(waiting, key=lambda entry: entry[:2])
        self._heap.remove(first)
        heapq.heapify(self._heap)
        expire(op, at, *args)
        return True
