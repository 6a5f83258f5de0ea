"""A thread that looks, without waiting, at what another one is to do: ``while not future.done(): ...``.

One thread of a rank runs at a time, so that such a loop would go round for ever. A look that finds nothing new lets the others
go on: at once where virtual time has passed since the last one at the same thing, and else after so many that it can only be a
loop: then until something happens. It takes no virtual time itself.
"""

from __future__ import annotations

import threading

from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.time.rank_threads import RankThreads
from kernbench.simulation.time.wait_queue import Waits

PATIENCE = 1000
"""Looks at one thing that find nothing new, while no virtual time passes, after which a thread is taken to wait for it so.
Where nothing happens meanwhile it waits again after twice as many: it may be about work of its own."""

_HOPELESS = 2**11 * PATIENCE
"""Of those, as many as are a deadlock where nothing else can happen."""


class _Streak:
    """The looks of one thread that have found nothing new.

    Attributes:
        at: virtual time of the last one.
        counts: how many there were at that time, by what was looked at and how it was.
        before: the same at the time before that.
        patience: after how many the thread waits.
        anchor: at which look it does: of several in a loop at one, so that a round sees all of them at one time.
        did: whether it has done something since it waited last.
    """

    def __init__(self) -> None:
        self.at = -1.0
        self.counts: dict[tuple[int, bool], int] = {}
        self.before: dict[tuple[int, bool], int] = {}
        self.patience = PATIENCE
        self.anchor = 0, False
        self.did = True


class _Streaks(threading.local):
    """Those of one thread, which greenlets may share, by their ranks."""

    def __init__(self) -> None:
        self.of: dict[int | None, _Streak] = {}


class ThreadLooks:
    """The looks of the threads of one simulation's ranks."""

    def __init__(self, hosts: Hosts, waits: Waits, threads: RankThreads) -> None:
        self._hosts = hosts
        self._waits = waits
        self._threads = threads
        self._streaks = _Streaks()

    def did(self) -> None:
        """The running thread has done what another one may look at."""
        streak = self._streaks.of.get(self._hosts.current().rank)
        if streak is not None:
            streak.did = True

    def saw(self, what: int, *, ready: bool) -> None:
        """In a turn: the thread has looked at ``what``, which is as one waits for it to be (``ready``), or not."""
        hosts, streaks = self._hosts, self._streaks.of
        host = hosts.current()
        if host.unrecorded or host.untimed or hosts.observing or hosts.inside_kernel:
            return
        streak = streaks.get(host.rank) or streaks.setdefault(host.rank, _Streak())
        look = what, ready
        if host.clock != streak.at:
            streak.at, streak.before, streak.counts, streak.patience = host.clock, streak.counts, {look: 1}, PATIENCE
            if look in streak.before:  # it works between its looks
                self._waits.sleep(0)
            return
        if (what, not ready) in streak.counts:
            streak.did = True
        count = streak.counts[look] = streak.counts.get(look, 0) + 1
        if count > streak.patience and count > streak.counts.get(streak.anchor, 0) + PATIENCE:
            streak.anchor = look
        if count > streak.patience and look == streak.anchor:
            self._wait(streak, count, ready)

    def _wait(self, streak: _Streak, count: int, ready: bool) -> None:
        again = not streak.did or count > 2 * PATIENCE  # one that does something at each look lets time go on, too
        streak.did = False
        # one that finds it ready, and looks once more, may have nothing to wait for
        if not self._threads.look_again(again=again, hopeless=not ready and count > _HOPELESS):
            streak.patience = min(2 * count, _HOPELESS)

    def yielded(self) -> None:
        """In a turn: the thread has given it away, and nothing else (``time.sleep(0)``)."""
        self.saw(0, ready=True)
