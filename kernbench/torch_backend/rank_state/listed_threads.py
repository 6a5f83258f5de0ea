"""The threads that a program finds: those of its rank, as in a process of its own, and those that were there before.

A suite that looks for threads which a test has left behind finds neither those of other ranks nor the simulation's. The main
thread is the one in which the rank's program runs, as programs and event loops expect that look before they handle signals.
"""

from __future__ import annotations

import threading
import weakref

from kernbench.scheduler.carrier import current_carrier
from kernbench.scheduler.crew import current_member
from kernbench.torch_backend.patches import Patches

OURS = "kernbench-"
"""What names of the simulation's threads begin with, and of those that run ranks."""

all_threads = threading.enumerate
"""Python's own: every thread of the process."""

process_main_thread = threading.main_thread
"""Python's own: the one in which the process began."""


class ListedThreads:
    """Of one spawn: threads that are left of an earlier one were there before."""

    def __init__(self) -> None:
        self._rank_of: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()

    def belongs_to(self, thread: threading.Thread, rank: int) -> None:
        """A rank's program starts a thread."""
        self._rank_of[thread] = rank

    def install(self, patches: Patches) -> None:
        """Show each rank its own."""
        patches.set(threading, "enumerate", self._listed)
        patches.set(threading, "active_count", lambda: len(self._listed()))
        patches.set(threading, "main_thread", _main_thread)

    def _listed(self) -> list[threading.Thread]:
        """``threading.enumerate``."""
        member, carrier = current_member(), current_carrier()
        found = all_threads()
        if member is not None:
            mine = member.crew.rank
        elif carrier is not None:
            mine = carrier.index
        else:
            return found
        own, rank_of = f"{OURS}rank-{mine}", self._rank_of
        return [
            each
            for each in found
            if each.name == own or not (each.name.startswith(OURS) or rank_of.get(each, mine) != mine)
        ]


def _main_thread() -> threading.Thread:
    """``threading.main_thread``."""
    member, carrier = current_member(), current_carrier()
    if member is not None:
        carrier = member.crew.carrier
    return process_main_thread() if carrier is None else carrier.thread
