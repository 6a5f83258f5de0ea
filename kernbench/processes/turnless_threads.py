"""Threads of a rank's process that take no turns: when they are waited for, and when what they have said happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from kernbench.processes.lanes import ThreadLanes
from kernbench.processes.rank_process import RankProcess, RankProcesses
from kernbench.processes.timekeeper import Timekeeper
from kernbench.processes.uplink import LOOK, SETTLE, Settle
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.simulation import Simulation


class TurnlessThreads:
    """Those of one rank.

    Args:
        simulation: that it is a rank of.
        me: the rank's host.
        child: its process.
        family: the processes of all ranks.
        lanes: of the process.
        keeper: keeps the time of processes that are no ranks.
        handlers: of what they say, by name.
    """

    def __init__(
        self,
        simulation: Simulation,
        me: Host,
        child: RankProcess,
        family: RankProcesses,
        lanes: ThreadLanes,
        keeper: Timekeeper | None,
        handlers: Mapping[str, Callable[..., object]],
    ) -> None:
        self._simulation = simulation
        self._me = me
        self._child = child
        self._family = family
        self._lanes = lanes
        self._keeper = keeper
        self._handlers = handlers

    def watch(self) -> None:
        """One has begun, or goes on."""
        threads, listeners = self._simulation.threads, self._family.listeners
        if self._child not in listeners:
            listeners[self._child] = self._hear
            threads.settlers.append(self._settle)
        if not self._kept and self._stir not in threads.stirrers:
            threads.stirrers.append(self._stir)

    def meet(self, key: int, awaits: str, seconds: float | None) -> bool:
        """A thread waits for what its process can look at."""
        return self._simulation.threads.meet(awaits, lambda: self._is_ready(key), seconds)

    def _is_ready(self, key: int) -> bool:
        """In main: whether that is ready; it is if the process has died, so that the thread hears of it."""
        if self._child.rank in self._family.died:
            return True
        try:
            return bool(self._lanes.ask(LOOK, key))
        except (EOFError, OSError):
            return True

    @property
    def _kept(self) -> bool:
        """Whether a keeper of time says when the process rests."""
        return self._keeper is not None and self._keeper.active

    def _stir(self) -> bool:
        """In main, before time moves: whether threads that have begun, or gone on, without a turn have something to say."""
        self._settled(Settle.BEFORE_TIME)
        return self._hear(prompt=True)

    def _settle(self) -> bool:
        """In main, when nothing else can happen: whether they have something to say."""
        if self._settled(Settle.STILL if self._kept else Settle.IDLE):
            self._simulation.threads.free.rested()
        return self._hear()

    def _settled(self, how: Settle) -> bool:
        """Wait for them, if a thread is there that hears the question; whether one did something."""
        if self._child.rank not in self._family.died and not all(lane.away for lane in self._lanes.of.values()):
            with suppress(EOFError, OSError):
                return bool(self._lanes.ask(SETTLE, how))
        return False

    def _hear(self, *, prompt: bool = False) -> bool:
        """In main: have happen what they have said, or only what is ``prompt``; whether there is any."""
        try:
            self._lanes.read_what_is_there(lambda: False)
        except (EOFError, OSError):
            self._family.listeners.pop(self._child, None)
        said = self._lanes.said
        kept = [each for each in said if prompt and not each[1]]
        come = [item for item, is_prompt in said if is_prompt or not prompt]
        said.clear()
        said.extend(kept)
        if come and self._kept:  # it comes from others, and they have got to now
            self._me.clock = max(self._me.clock, self._simulation.engine.now)
        for item in come:
            self._handlers[item[0]](*item[1:])
        return bool(come)
