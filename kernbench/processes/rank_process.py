"""A rank's process, as the simulation sees it, regardless of its launcher."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import re
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import perf_counter, sleep  # the machine's own clock
from typing import NamedTuple, NoReturn

from kernbench import interruption
from kernbench.errors import HiddenBlockingError, KernbenchError, NoProgressError
from kernbench.processes import shared_memory
from kernbench.processes.channel import Wire
from kernbench.scheduler.standstill import shortened, tell
from kernbench.scheduler.tracebacks import is_programs
from kernbench.scheduler.watchdog import has_children, waits_for_lock
from kernbench.sim_engine import Condition
from kernbench.torch_backend import environment
from kernbench.torch_backend.rank_state.ends_of_all import ends_by_signal

PATIENCE = 1.0
"""Seconds of the machine's time for which a rank that is back waits for another that went before, and is not."""


TELL_WHERE = signal.SIGRTMAX - 3
"""The signal by which a rank's process is asked where it is: a real-time one, which programs rarely use."""

LONGEST_ANSWER, _PAUSE = 0.3, 0.01
"""Seconds of the machine's time to wait for that, and between two looks."""


class Away(NamedTuple):
    """A thread of a rank that waits for what the simulation does not see.

    Attributes:
        process: its rank's.
        has_come: whether it has said that it is back.
        counts: whether another one may be able to go on when it is.
        spins: whether it looks again and again at memory that another process may write.
    """

    process: RankProcess
    has_come: Callable[[], bool]
    counts: Callable[[], bool]
    spins: bool = False


class RankDiedError(KernbenchError):
    """A rank's process has ended in the middle of its program."""


_OF_ITS_END = (__file__, interruption.__file__)
"""Files whose functions end a process, and are no part of where it was."""


class RankProcess(ABC):
    """One rank's process.

    Attributes:
        rank: its number.
        shared: memory shared with it.
        stacks: a file without a name, in which it writes where it was when it crashes.
        wire: to it; in the process itself, to the simulation.
        pid: of the process, 0 before it has begun.
        descriptor: of the process, readable when it has ended.
        verdict: why it was ended from here; None: it was not.
    """

    wire: Wire

    def __init__(self, rank: int, shared: shared_memory.SharedMemory, stacks: int) -> None:
        self.rank = rank
        self.shared = shared
        self.stacks = stacks
        self.pid = 0
        self.descriptor = -1
        self.verdict: KernbenchError | None = None
        self._read = 0

    def where(self) -> list[WrittenStack]:
        """Where its threads are, which it is asked for by a signal; none if it does not answer, as one that is stopped."""
        try:
            before = os.fstat(self.stacks).st_size
            self.signal(TELL_WHERE)
        except (OSError, ValueError):
            return []
        size, until = before, perf_counter() + LONGEST_ANSWER
        while perf_counter() < until:
            sleep(_PAUSE)
            seen, size = size, os.fstat(self.stacks).st_size
            if size == seen > before:
                break
        self._read = size
        text = os.pread(self.stacks, min(size - before, 1 << 16), before).decode(errors="replace")
        return [WrittenStack.of(part) for part in _THREAD.split(text)[1:]]

    def told(self) -> str:
        """Where its threads were when it crashed; empty if not known."""
        size = os.fstat(self.stacks).st_size - self._read
        lines = os.pread(self.stacks, min(size, 1 << 16), self._read).decode(errors="replace").splitlines()
        end = next((at for at, line in enumerate(lines) if environment.__file__ in line), len(lines))
        return "\n".join(line for line in lines[:end] if not any(each in line for each in _OF_ITS_END)).strip()

    @abstractmethod
    def reap(self) -> None:
        """Its end of the wire is closed: have it ended."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send it a signal. Raises OSError if it has ended."""

    @abstractmethod
    def cause(self) -> str:
        """How it has ended, in words."""

    @property
    def waits_for_ever(self) -> bool:
        """Whether its program waits for a lock that only its own process could release, where no other thread of Python is."""
        process = Path(f"/proc/{self.pid}")
        return len(self.where()) == 1 and waits_for_lock(process / "task" / str(self.pid)) and not has_children(process)

    def close(self) -> None:
        """Forget it. Idempotent."""
        self.wire.close()
        for descriptor in (self.descriptor, self.stacks):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.descriptor = self.stacks = -1


_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):\n", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


class WrittenStack(NamedTuple):
    """Where a thread is, as :mod:`faulthandler` has written it.

    Attributes:
        frames: file, line and function, the outermost first.
    """

    frames: Sequence[tuple[str, int, str]]

    @classmethod
    def of(cls, text: str) -> WrittenStack:
        """From its lines."""
        return cls([(file, int(line), name) for file, line, name in _FRAME.findall(text)][::-1])

    def shown(self) -> str:
        """The program's lines, as Python shows them; all if none is its."""
        own = [each for each in self.frames if is_programs(each[0]) and each[0] != threading.__file__]
        summary = [traceback.FrameSummary(*each) for each in own or self.frames]
        return shortened([line for each in summary for line in traceback.StackSummary.from_list([each]).format()])


class RankProcesses(ABC):
    """The processes of one world's ranks.

    Attributes:
        by_rank: the processes.
        died: ranks whose processes have ended in the middle of their programs, as of the last check.
        away: those who wait for what the simulation does not see, by what ends that.
        awaited: the ranks of those for which the simulation waits, to go on.
        listeners: of processes with threads that take no turns: hears what these have to say.
        unwound: whether ranks that are to end are notified, and their programs unwind.
    """

    unwound = True

    def __init__(self, by_rank: Mapping[int, RankProcess]) -> None:
        self.by_rank = by_rank
        self.died: list[int] = []
        self.away: dict[Condition, Away] = {}
        self.awaited: list[int] = []
        self._slow: set[Condition] = set()
        self.listeners: dict[RankProcess, Callable[[], bool]] = {}

    # -- from the watchdog's thread (:class:`~kernbench.scheduler.standstill.Stoppable`) ----------------------------------

    def running(self) -> list[int]:
        """The ranks whose programs go on, and for which the others wait."""
        return [*self.awaited]

    def stack_of(self, rank: int) -> str:
        """The program's lines where a rank's own thread is, and those where its others are."""
        member = self.by_rank.get(rank)
        if member is None or rank in self.died:
            return ""
        return "".join(dict.fromkeys(each.shown() for each in reversed(member.where())))

    def stop(self, error: NoProgressError, attempt: int) -> None:
        """End the processes that are awaited: at once, as what they do cannot be asked to end."""
        for rank in self.running() or [*self.by_rank]:
            self.end(rank, error)

    def end(self, rank: int, verdict: KernbenchError) -> None:
        """End a rank's process, and have that be why."""
        member = self.by_rank[rank]
        if rank not in self.died and member.pid:
            member.verdict = member.verdict or verdict
            member.kill()

    def blocked(self, seconds: float) -> None:
        """Nothing has happened for so long: end a process that waits for a lock for ever."""
        for rank in self.running():
            member = self.by_rank[rank]
            if rank not in self.died and member.waits_for_ever:
                report = (
                    f"rank {rank} has been blocking its process for {seconds:.3g} s of wall-clock time: it waits for a lock, "
                    f"and no other thread or process is there that could release it.\n{self.stack_of(rank).rstrip()}"
                )
                tell(report)
                self.end(rank, HiddenBlockingError(report))

    @contextmanager
    def awaiting(self, ranks: Iterable[int]) -> Iterator[None]:
        """For the length of a block, the simulation waits for these."""
        before, self.awaited = self.awaited, [*ranks]
        try:
            yield
        finally:
            self.awaited = before

    # -- in main -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def await_input(self, member: RankProcess) -> bool | None:
        """Wait until there is something to read from ``member``; False if another one has died meanwhile; None if it waits for
        what is not seen here: it stands still, as all others do."""

    def sockets_of_absent(self) -> list[int]:
        """Those at which something comes when a thread that is away is back."""
        return sorted({each.process.wire.socket.fileno() for each in self.away.values()})

    def await_absent(self, seconds: float | None = None) -> bool:
        """Wait until a thread that is away comes back, without which none can go on; False if none is, or after ``seconds``.

        They come back one after the other, in the order in which they went, unless one is slow.
        """
        while True:
            if self.away and sum(hear() for hear in [*self.listeners.values()]):  # all of them
                return True
            come = [back for back, each in self.away.items() if each.has_come()]
            awaited = [back for back, each in self.away.items() if each.counts()] or come
            if not awaited:
                return False
            first = ([back for back in awaited if back not in self._slow] or come or awaited)[0]
            if first in come:
                self._slow.discard(first)
                first.fulfil()
                return True
            others = bool(come)
            heard = {each.wire.socket.fileno() for each in self.listeners}
            sockets = heard | {
                self.away[back].process.wire.socket.fileno() for back in ([first] if others else awaited)
            }
            with self.awaiting(sorted({self.away[back].process.rank for back in awaited})):
                found = self.await_one(sorted(sockets), PATIENCE if others else seconds)
            if not found:
                if not others:
                    return False
                self._slow = {back for back in awaited if back not in come}

    @abstractmethod
    def await_one(self, descriptors: Sequence[int], seconds: float | None = None) -> Sequence[int]:
        """Wait until there is something to read from one of ``descriptors``, sockets to members: those of which there is. All,
        if a process has died; none, if ``seconds`` of the machine's time have passed."""

    @abstractmethod
    def close(self) -> None:
        """End those that are left. Idempotent."""


_exit = os._exit


def leave(status: int) -> NoReturn:
    """End this process, and nothing is reported of where it was."""
    _exit(status)


def tell_where(stacks: int) -> None:
    """In a rank's process: if it crashes, or ends itself at once, it writes where it was."""

    def tell_and_exit(status: int) -> NoReturn:
        faulthandler.dump_traceback(file=stacks, all_threads=False)
        _exit(status)

    def telling(stock: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(stock)
        def send(*args: object) -> None:
            if ends_by_signal(args) is not None:
                faulthandler.dump_traceback(file=stacks, all_threads=False)
            stock(*args)

        return send

    faulthandler.enable(file=stacks)
    faulthandler.register(TELL_WHERE, file=stacks)
    os._exit, signal.pause = tell_and_exit, pause
    os.kill, signal.raise_signal = telling(_kill), telling(_raise_signal)


_stock_pause, _kill, _raise_signal = signal.pause, os.kill, signal.raise_signal


def pause() -> None:
    """``signal.pause`` of a rank's process: a signal of the program's ends it, and not the question where it is."""
    if threading.current_thread() is not threading.main_thread():  # which answers that
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [TELL_WHERE])
        try:
            _stock_pause()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    come, tells = os.pipe()
    os.set_blocking(tells, False)
    programs = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    try:
        select([come], [], [])  # goes on after a signal that no function of Python handles
    finally:
        signal.set_wakeup_fd(programs, warn_on_full_buffer=False)
        os.close(tells)
        numbers = os.read(come, 1 << 12)
        os.close(come)
        if programs >= 0:
            with contextlib.suppress(OSError):
                os.write(programs, numbers)


def tell_nothing() -> None:
    """In a process that a rank has forked, or at the end of its program: its end is its own."""
    faulthandler.disable()
    faulthandler.unregister(TELL_WHERE)
    os._exit, signal.pause = _exit, _stock_pause
    os.kill, signal.raise_signal = _kill, _raise_signal
