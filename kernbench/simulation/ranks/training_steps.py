"""Steps of a training program: where each rank has got to, and stopping it after some of them.

A step ends where an optimizer's step has been enqueued. The host runs ahead of its device, so what is noted there is what the
rank has enqueued last on each of its streams: the step has ended when the last of these has (ADR 0104).

Of several optimizers, those that step most rarely say what a step is: it ends when each of them has stepped once more. So
five steps of one for each of another are one step, and hundreds that step during a backward pass, one per parameter, are too.
A program that reports its steps itself (``kernbench.report_step``) is believed, and its optimizers are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from kernbench.errors import ConfigError
from kernbench.sim_engine.clocks import Clocks
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.ranks.work_counts import Account

TOLD = -1
"""In place of an optimizer's number: the program has reported the step itself."""

_MOST_RELEASES = 100
"""Times that ranks which wait are stopped: a program may wait again in its ``finally`` blocks, and not for ever."""


class StoppedAfterSteps(SystemExit):
    """Ends a rank's program after the steps that were asked for, as ``sys.exit()`` would: ``finally`` blocks run."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a step of one rank, as its host saw it.

    Attributes:
        clock: of the host, virtual seconds.
        tails: what it had enqueued last, on each of its streams.
        account: what the rank had done by then.
    """

    clock: float
    tails: tuple[Operation, ...]
    account: Account

    @property
    def time(self) -> float:
        """When the device has done all that was enqueued, virtual seconds; on a rank without device work, the host's clock."""
        return max((op.end for op in self.tails if op.end is not None), default=self.clock)


@dataclass(slots=True)
class RankSteps:
    """What one rank's optimizers have done.

    Attributes:
        begin: the rank's start, virtual seconds.
        ends: ends of optimizer steps, by the optimizer's number, in the order of their first steps.
        running: optimizers that are inside ``step``, outermost first: one may call another's.
        idle: optimizers that were made and have not stepped yet.
        stopped: whether it was stopped: after all steps, or (``released``) while it waited for ranks that had been.
    """

    begin: float
    ends: dict[int, list[StepEnd]] = field(default_factory=dict)
    numbers: WeakKeyDictionary[object, int] = field(default_factory=WeakKeyDictionary)
    running: list[Any] = field(default_factory=list)
    idle: WeakKeyDictionary[object, None] = field(default_factory=WeakKeyDictionary)
    stopped: bool = False
    released: bool = False

    @property
    def count(self) -> int:
        """Steps that have ended."""
        if TOLD in self.ends:
            return len(self.ends[TOLD])
        return min(map(len, list(self.ends.values())), default=0)  # a list: another thread may look (progress)

    def steps(self) -> list[StepEnd]:
        """The ends of the rank's steps, in order."""
        if TOLD in self.ends:
            return self.ends[TOLD]
        count = self.count
        rarest = [ends for ends in self.ends.values() if len(ends) == count]
        return [max(each, key=lambda end: end.clock) for each in zip(*rarest, strict=True)]


class Steps:
    """The steps of the ranks of the last spawn.

    Args:
        hosts: who runs.
        clocks: of the devices.

    Attributes:
        limit: steps after which each rank is stopped, as if they came from the midst of many: when one ends, its device's clock
            settles. None: none is stopped, and clocks fall as time passes.
        noted: receives each end of an optimizer's step, with its number; None: no listener.
    """

    def __init__(self, hosts: Hosts, clocks: Clocks) -> None:
        self._hosts = hosts
        self._clocks = clocks
        self._releases = 0
        self.limit: int | None = None
        self.noted: Callable[[int, StepEnd], None] | None = None
        self.of_rank: dict[int, RankSteps] = {}

    def stop_after(self, count: int | None) -> None:
        """Stop the program after ``count`` steps. Raises ConfigError if that is less than one."""
        if count is not None and count < 1:
            raise ConfigError(f"steps {count}: a program is stopped after one step at least")
        self.limit = count

    def open(self, ranks: Iterable[int], clock: float) -> None:
        """``ranks`` begin at ``clock`` s."""
        self._releases = 0
        self.of_rank = {rank: RankSteps(clock) for rank in ranks}

    def made(self, optimizer: Any) -> None:
        """The rank that runs has made an optimizer."""
        mine = self._mine(self._hosts.current())
        if mine is not None and optimizer not in mine.numbers:
            mine.idle[optimizer] = None

    def begin(self, optimizer: object) -> None:
        """``optimizer.step`` of the rank that runs begins. Raises :class:`StoppedAfterSteps` if there are to be no more."""
        mine = self._mine(self._hosts.current())
        if mine is None:
            return
        if mine.stopped:  # and has swallowed that
            raise StoppedAfterSteps
        if optimizer in mine.running:  # its last step raised
            del mine.running[mine.running.index(optimizer) :]
        if not mine.running and TOLD not in mine.ends and optimizer not in mine.idle and self._enough(mine):
            self._stop(mine)  # one begins its next step: the others that the rank made are not used
        mine.running.append(optimizer)
        mine.idle.pop(optimizer, None)

    def end(self, optimizer: object) -> None:
        """It has ended. Raises :class:`StoppedAfterSteps` if it was the last one."""
        host = self._hosts.current()
        mine = self._mine(host)
        if mine is None or mine.stopped:
            return
        if optimizer in mine.running:
            del mine.running[mine.running.index(optimizer) :]
        if mine.running:
            return  # a part of another optimizer's step
        number = mine.numbers.setdefault(optimizer, len(mine.ends))
        self._note(host, mine, number)
        if TOLD not in mine.ends and self._enough(mine) and not mine.idle:
            self._stop(mine)

    def tell(self) -> None:
        """The program of the rank that runs says that a step ends here. Raises as :meth:`end`."""
        host = self._hosts.current()
        mine = self._mine(host)
        if mine is not None:
            if mine.stopped:
                raise StoppedAfterSteps
            self._note(host, mine, TOLD)
            if self._enough(mine):
                self._stop(mine)

    def _mine(self, host: Host) -> RankSteps | None:
        """The steps of a host's rank; main has none."""
        return None if host.rank is None else self.of_rank.get(host.rank)

    def _note(self, host: Host, mine: RankSteps, number: int) -> None:
        end = StepEnd(host.clock, tuple(host.tails.values()), host.account.copy())
        mine.ends.setdefault(number, []).append(end)
        if self.limit is not None and mine.count > host.step:
            self._clocks.end_step(host.sip, host.tails.get(host.stream))
        host.step = mine.count
        if self.noted is not None:
            self.noted(number, end)

    def _enough(self, mine: RankSteps) -> bool:
        return self.limit is not None and mine.count >= self.limit

    def _stop(self, mine: RankSteps) -> None:
        mine.stopped = True
        raise StoppedAfterSteps

    # -- for who drives the ranks --------------------------------------------------------------------------------------

    @property
    def counts(self) -> Iterator[int]:
        """Steps that each rank has ended."""
        return (mine.count for mine in list(self.of_rank.values()))

    @property
    def stopping(self) -> bool:
        """Whether a rank has been stopped: its waiters will wait in vain, and that is no deadlock."""
        return any(mine.stopped for mine in self.of_rank.values())

    def release(self, ranks: Iterable[int]) -> bool:
        """Ranks that wait for others that have been stopped are stopped too; False if they have been too often, and wait on."""
        self._releases += 1
        for rank in ranks:
            mine = self.of_rank[rank]
            if not mine.stopped:
                mine.stopped = mine.released = True
        return self._releases <= _MOST_RELEASES
