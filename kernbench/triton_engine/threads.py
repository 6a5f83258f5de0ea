"""Threads for large matrix products, while everything else has one.

While ranks run, torch has one thread (ADR 0040): its threads divide an operation by their number, and where a sum or a
vector loop is cut can move the last bit of a result, so that values would depend on the machine. But matrix products are
most of the time of a tensor-parallel step, and the other cores stand idle. A large product is therefore the exception: from
2^23 floating-point operations on it is cut into parts of at least 256 rows, each a multiple of 64, by its shape alone
(:mod:`.ops.dot`); the parts are one batched product, and what is left over is computed by itself. Batches that come from
lanes or from the tile are parts as they are. Around this one call torch gets as many threads as the process had before the
ranks, never more than there are parts, each part by one thread; where the process has one, the same cuts are made. Sums
over K are never cut. Outside of ranks a product is torch's own, in one piece.

Python threads that take parts over were measured: waking one takes 50-100 us on a virtual machine, as long as a part;
OpenMP's threads are awake already. The library does not promise to give each matrix of a batch to one thread: that 1, 2 and
3 threads give the same bits is a contract that ``tests/triton_engine/test_threads.py`` holds. Rows in groups of 64 also give
the bits of the product in one piece (1,500 shapes).

Because values do not depend on the number of threads, the number may depend on the clock: on a busy machine a product waits
for the thread that has no core (measured: 5 times as long as with one), so threads that do not pay off rest for some
products and are tried again ever more rarely. ``OMP_NUM_THREADS=1`` switches them off.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter  # the machine's own clock: inside ranks the time module shows virtual time
from typing import TypeVar

import torch

_T = TypeVar("_T")

#: Several threads pay off if a product takes at most this share of the time with one.
_GAIN = 0.9
#: Products with one thread after several did not pay off: at first, and at most (the pause doubles each time).
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 1024
#: Every so many products one is computed by one thread, to know what that takes now.
_LOOK_AGAIN = 256


class Pace:
    """Decides whether the next product gets several threads, from how long the last ones took."""

    def __init__(self) -> None:
        #: Seconds per floating-point operation with one thread, lately.
        self.alone: float | None = None
        self._left = 0
        self._pause = _FIRST_PAUSE
        self._slow = 0
        self._since = 0

    def several(self) -> bool:
        """Whether the next product is to have several threads."""
        self._since += 1
        if self._left > 0:
            self._left -= 1
            return False
        return self.alone is not None and self._since < _LOOK_AGAIN

    def took(self, several: bool, seconds: float, flops: int) -> None:
        """Note how long a product took."""
        cost = seconds / flops
        if not several:
            self._since = 0
            self.alone = cost if self.alone is None else min(cost, 0.8 * self.alone + 0.2 * cost)
        elif self.alone is not None and cost > _GAIN * self.alone:
            self._slow += 1
            if self._slow > 2 or cost > 3 * self.alone:
                self._left, self._slow = self._pause, 0
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            self._slow, self._pause = 0, _FIRST_PAUSE


_count = 1
_pace = Pace()
_started = threading.local()
"""How many there are already: they stay, with the thread that they work for. Starting them costs more than 8 ranks."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: vars(_started).clear())  # a child has none of them


def set_product_threads(count: int) -> int:
    """Threads that large products may use where torch has one; returns what it was.

    Call it with the affinity that these threads should have: OpenMP starts them with that of the caller, and keeps them.
    """
    global _count, _pace
    before, _count = _count, count
    _pace = Pace()
    if count > getattr(_started, "count", 1):
        _started.count = count
        now = torch.get_num_threads()
        torch.set_num_threads(count)
        torch.mm(torch.zeros(256, 256), torch.zeros(256, 256))  # starts them
        torch.set_num_threads(now)
    return before


def with_threads(parts: int, flops: int, product: Callable[[], _T]) -> _T:
    """``product()``, which computes ``parts`` independent parts, with at most one thread for each of them."""
    count = min(_count, parts)
    if count == 1:
        return product()
    several = _pace.several()
    begin = perf_counter()
    if several:
        torch.set_num_threads(count)
    try:
        out = product()
    finally:
        if several:
            torch.set_num_threads(1)
    _pace.took(several, perf_counter() - begin, flops)
    return out
