"""What threads of a rank wait for may be released at any moment: by threads without a turn, and by the garbage collector."""

from __future__ import annotations

import functools
import gc
import queue
import threading
import weakref
from _thread import allocate_lock, start_new_thread
from typing import Any

import pytest

import kernbench
from kernbench.simulation.time.notices import Notice

ISOLATIONS = pytest.mark.parametrize("isolation", ["carrier", "process"])


class _Moment(Notice):
    """Another thread releases it at a moment of its own choice."""

    __slots__ = ("_due", "_own")

    def _release_elsewhere(self) -> None:
        over = allocate_lock()
        over.acquire()

        def work() -> None:
            self.release()
            over.release()

        start_new_thread(work, ())
        over.acquire()


class _BeforeItIsKnown(_Moment):
    """Released while it is entered among what is waited for."""

    __slots__ = ()

    def __hash__(self) -> int:
        if getattr(self, "_due", True):
            self._due = False
            self._release_elsewhere()
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _BeforeItIsSaid(_Moment):
    """Released when it has been entered, and the simulation has not been asked yet."""

    __slots__ = ()

    @property
    def condition(self) -> Any:
        if getattr(self, "_due", True):
            self._due = False
            self._release_elsewhere()
        return self._own

    @condition.setter
    def condition(self, condition: Any) -> None:
        self._own = condition


@pytest.mark.parametrize(
    ("isolation", "kind"), [("carrier", _BeforeItIsSaid), ("process", _BeforeItIsSaid), ("process", _BeforeItIsKnown)]
)
def test_what_is_released_while_a_thread_begins_to_wait_is_not_lost(isolation: str, kind: type[_Moment]) -> None:
    def worker(rank: int) -> None:
        thread = threading.Thread(target=int)
        thread.start()  # from here on the rank has several
        thread.join()
        threads = threading.Lock()._threads  # type: ignore[attr-defined]
        assert threads.wait(kind(threads, threads.notice("another thread", rank).condition))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)


class _Circle:
    def __init__(self) -> None:
        self.itself = self


def _put(work: queue.SimpleQueue[int], number: int, _: object) -> None:
    work.put(number)


@ISOLATIONS
def test_the_garbage_collector_may_put_what_a_queue_is_about_to_take(isolation: str) -> None:
    def worker(rank: int) -> None:
        thread = threading.Thread(target=int)
        thread.start()  # from here on the rank has several
        thread.join()
        work: queue.SimpleQueue[int] = queue.SimpleQueue()
        kept, taken, before = [], [], gc.get_threshold()
        try:
            for number in range(60):
                gc.disable()
                kept.append(weakref.ref(_Circle(), functools.partial(_put, work, number)))
                gc.set_threshold(number + 1)  # collects when as many things have been made
                gc.enable()
                try:
                    taken.append(work.get(timeout=1.0))
                except queue.Empty:
                    gc.collect()
                    taken.append(work.get())
        finally:
            gc.enable()
            gc.set_threshold(*before)
        assert sorted(taken) == [*range(60)]

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
