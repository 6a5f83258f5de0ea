"""Keeps the virtual time of a command's processes: of its ranks, and of those that are none but live in it (:mod:`.companion`).

Who waits for whom it does not ask. It lets time move when all processes of the command stand still (:mod:`.stillness`): then
nothing that they have sent each other is on its way, by whatever means it was sent, and what still waits does so for time.
What is due first happens next: an event of the simulation, or a limit of a companion's wait.

A loop that looks at shared memory or asks a socket again and again never stands still. Where it gives the core away
(``sched_yield``, ``sleep(0)``), or asks a ZeroMQ socket in vain, it is held, and may look again when others have done
something.
"""

from __future__ import annotations

import contextlib
import heapq
import hmac
import json
import math
import mmap
import os
import select
import socket
import struct
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from time import perf_counter  # the machine's own clock

import kernbench.processes.companion as protocol
from kernbench.processes.rank_process import Away, RankProcesses
from kernbench.processes.seat import Address
from kernbench.processes.stillness import Stillness
from kernbench.sim_engine import Condition, GraphEngine
from kernbench.simulation.ranks.serving_requests import Requests

LOOKS = ((2e-4, 3), (5e-6, 1))
"""Looks that a loop over shared memory has after something has happened, before so much time (s) passes: as many loops may wait
for each other. Before less time passes it has none."""

SHORTEST, LONGEST = 5e-4, 0.05
"""Seconds of the machine's time between two looks at whether all stand still."""

NOTICE = 60.0
"""Seconds of the machine's time for which something runs until that is said."""

_LONGEST_SAID = 1 << 16

_CREDENTIALS = struct.Struct("3i")


class _Companion:
    """A process that is no rank and lives in virtual time.

    Args:
        place: its number, in the order in which they have come.

    Attributes:
        pid: of the process.
        limits: numbers of its waits that have a limit, which has not passed.
        known: whether it has shown the key.
    """

    def __init__(self, end: socket.socket, place: int) -> None:
        self.socket = end
        self.place = place
        self.pid = int(_CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0])
        self.limits: set[int] = set()
        self.known = False

    def tell(self, number: int) -> None:
        """What it has asked for by this number has come."""
        with contextlib.suppress(OSError):
            self.socket.send(protocol.TOLD.pack(number))


class Timekeeper:
    """Of one command.

    Args:
        engine: has the time.
        requests: of serving engines, which companions report.
        remark: takes what the summary is to say.
        tell: prints a line for the user.

    Attributes:
        launcher: the command's process, 0 before it has begun.
    """

    def __init__(
        self, engine: GraphEngine, requests: Requests, remark: Callable[[str], object], tell: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._heard: dict[str, Callable[..., object]] = {
            "event": partial(requests.event, 0), "step": partial(requests.step, 0), "remark": remark,
        }  # fmt: skip
        self._tell = tell
        self._address = Address.new()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind("\0" + self._address.name)
        self._listener.listen(1024)
        self._file = os.memfd_create("kernbench-time")
        os.ftruncate(self._file, protocol.SHOWN.size)
        self._shown = mmap.mmap(self._file, protocol.SHOWN.size)
        self._companions: dict[int, _Companion] = {}
        self._limits: list[tuple[float, int, int, _Companion]] = []
        self._held: list[tuple[_Companion, int]] = []
        self._turns: list[tuple[_Companion, int, int]] = []
        self._due: tuple[float, int, int, _Companion] | None = None
        self._places = count()
        self._looked = 0
        self._stirred = True
        self._asked = False
        self._pause = SHORTEST
        self._stillness = Stillness(self._processes)
        self._members: RankProcesses | None = None
        self.launcher = 0

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables by which processes find it."""
        shows = f"/proc/{os.getpid()}/fd/{self._file}"
        computes = protocol.COMPUTES if self._engine.enable_data else protocol.HOLLOW
        return {protocol.ADDRESS: f"{self._address.name} {self._address.key} {computes} {shows}"}

    @property
    def active(self) -> bool:
        """Whether any process but ranks lives in virtual time."""
        return bool(self._companions)

    @property
    def descriptors(self) -> list[int]:
        """Sockets at which something may come."""
        return [self._listener.fileno(), *self._companions]

    def close(self) -> None:
        """Time is kept no more: companions have the machine's. Idempotent."""
        self._listener.close()
        for each in self._companions.values():
            each.socket.close()
        self._companions.clear()
        self._stillness.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def serve(self, members: RankProcesses | None) -> None:
        """The ranks that there are from now on; None: none."""
        self._members = members

    def _processes(self) -> Iterable[int]:
        yield self.launcher
        for each in self._companions.values():
            yield each.pid
        if self._members is not None:
            for member in self._members.by_rank.values():
                yield member.pid

    # -- what companions say -------------------------------------------------------------------------------------------

    def take(self) -> bool:
        """Hear what has been said; whether anything has."""
        heard = False
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                end.setblocking(False)
                self._companions[end.fileno()] = _Companion(end, next(self._places))
                heard = True
        for descriptor, each in [*self._companions.items()]:
            heard = self._hear(descriptor, each) or heard
        return heard

    def _hear(self, descriptor: int, each: _Companion) -> bool:
        heard = False
        while True:
            try:
                said = each.socket.recv(_LONGEST_SAID)
            except BlockingIOError:
                return heard
            except OSError:
                said = b""
            heard = True
            if not said or not (each.known or self._admits(each, said)):
                del self._companions[descriptor]
                each.socket.close()
                each.limits.clear()
                self._held = [item for item in self._held if item[0] is not each]
                self._turns = [item for item in self._turns if item[0] is not each]
                return heard
            if said[:1] == protocol.REPORT:
                name, *args = json.loads(said[1:])
                self._heard[name](*args)
            elif len(said) == protocol.CALL.size:
                self._call(each, *protocol.CALL.unpack(said))

    def _admits(self, each: _Companion, said: bytes) -> bool:
        user = _CREDENTIALS.unpack(each.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
        each.known = user == os.geteuid() and hmac.compare_digest(said, self._address.key.encode())
        return each.known

    def _call(self, each: _Companion, what: bytes, number: int, until: float) -> None:
        if what == protocol.TIMER:
            each.limits.add(number)
            heapq.heappush(self._limits, (until, each.place, number, each))
        elif what == protocol.CANCEL:
            each.limits.discard(number)
            self._held = [item for item in self._held if item != (each, number)]
            self._turns = [item for item in self._turns if item[:2] != (each, number)]
        elif what == protocol.SPIN:
            self._held.append((each, number))
        elif what == protocol.TURN:
            self._turns.append((each, number, int(until)))

    # -- while a world runs, in main -----------------------------------------------------------------------------------

    def stir(self, look: bool = False) -> None:
        """A process is about to go on; ``look``: to look at memory once more."""
        self.show()
        self._stirred = True
        if not look:
            self._looked, self._asked = 0, False

    def release(self) -> None:
        """What the simulation does next does not depend on companions: no limit of theirs passes by it. Idempotent."""
        if self._due is not None:
            heapq.heappush(self._limits, self._due)
            self._due = None
            self._engine.withdraw(self._pass)

    def hold(self) -> bool:
        """Before time moves: let processes do what they can at this time; whether a rank can go on."""
        self.release()
        self.take()
        if not self.active:
            return False
        self.show()
        while True:
            self._await_stillness()
            if self.give_turn():
                continue
            if self._let_back():
                return True
            if not self._let_look():
                break
            if spinning := self._absent(spinning=True):
                for back, _ in spinning:
                    back.fulfil()
                return True
        self._schedule()
        return False

    def has_changed(self) -> bool:
        """Whether any process has gone on since this was asked."""
        asked, self._asked = self._asked, True
        return not asked

    def await_any(self, looks: bool) -> bool:
        """Nothing is to come but from outside of the simulation: wait for that; False if nothing can come.

        ``looks``: a rank looks at what processes share.
        """
        if self._members is None or not (looks or any(each.counts() for each in self._members.away.values())):
            return False
        self._looked, self._stirred = 0, True
        self._await_input(LONGEST)
        return True

    def show(self) -> None:
        """Show companions what time it is."""
        protocol.SHOWN.pack_into(self._shown, 0, max(self._engine.now, protocol.SHOWN.unpack_from(self._shown)[0]))

    def stands_still(self) -> bool:
        """Whether none of the processes does anything, at one moment, and all that they have said has been heard."""
        return not self.take() and not self._stillness.at_work() and not self.take()

    def give_turn(self) -> bool:
        """All stand still: let the first go on of the companions' threads for which something has come; False if there is none.

        Companions are in the order in which they have come, threads of one in that in which it has started them.
        """
        if not self._turns:
            return False
        turn = min(self._turns, key=lambda item: (item[0].place, item[2], item[1]))
        self._turns.remove(turn)
        self.stir()
        turn[0].tell(turn[1])
        return True

    def _await_stillness(self) -> None:
        pause, since, noticed = SHORTEST, perf_counter(), NOTICE
        if not self._stirred and not self.take():
            return
        while self.take() or (at_work := self._stillness.at_work()) or self.take():
            self._await_input(pause)
            pause = min(2 * pause, LONGEST)
            if perf_counter() - since > noticed:
                noticed *= 2
                self._say_who_works(at_work, perf_counter() - since)
        self._stirred = False

    def _say_who_works(self, pid: int, seconds: float) -> None:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
            self._tell(
                f"virtual time has been standing still for {seconds:.0f} s of wall-clock time: process {pid} is at work "
                f"({command}). A loop that asks for something again and again without time.sleep or os.sched_yield would be"
            )
        for each in self._companions.values():
            if each.pid == pid:
                each.tell(protocol.WHERE)

    def _await_input(self, seconds: float) -> None:
        """Until something is said, or so much of the machine's time has passed."""
        if self._members is None:
            select.select(self.descriptors, [], [], seconds)
        else:
            self._members.await_one([*self.descriptors, *self._members.sockets_of_absent()], seconds)

    def _let_back(self) -> bool:
        """Let the first rank go on that was away and is back."""
        for back, each in self._absent(spinning=False):
            if each.has_come():
                back.fulfil()
                return True
        return False

    def _absent(self, *, spinning: bool) -> list[tuple[Condition, Away]]:
        """Threads of ranks that are away; ``spinning``: those that look at shared memory."""
        away = {} if self._members is None else self._members.away
        return [(back, each) for back, each in away.items() if each.spins == spinning and not back.done]

    def _let_look(self) -> bool:
        """Let loops look at shared memory; False if they have, since anything has happened."""
        if not (self._held or self._absent(spinning=True)):
            return False
        upcoming = self._upcoming()
        gap = math.inf if upcoming is None else upcoming - self._engine.now
        if self._looked >= next((looks for least, looks in LOOKS if gap >= least), 0):
            return False
        self._looked += 1
        held, self._held = sorted(self._held, key=lambda item: (item[0].place, item[1])), []
        self.stir(look=True)
        for each, number in held:  # one after the other: what one writes others may look at
            each.tell(number)
            self._stirred = True
            self._await_stillness()
        return True

    def _upcoming(self) -> float | None:
        """When the next event is, or the first limit of a companion's passes."""
        while self._limits and self._limits[0][2] not in self._limits[0][3].limits:
            heapq.heappop(self._limits)
        known = [
            each for each in (self._engine.next_event, self._limits[0][0] if self._limits else None) if each is not None
        ]
        return min(known, default=None)

    def _schedule(self) -> None:
        """Have the first limit of a companion's pass when it is due, if that is before all else."""
        if (upcoming := self._upcoming()) is not None and self._limits and self._limits[0][0] == upcoming:
            self._due = heapq.heappop(self._limits)
            self._engine.at(self._due[0], self._pass)

    def _pass(self) -> None:
        assert self._due is not None
        (_, _, number, each), self._due = self._due, None
        self._engine.resolved_count += 1
        self.stir()
        if number in each.limits:
            each.limits.discard(number)
            each.tell(number)

    # -- while none does -----------------------------------------------------------------------------------------------

    def let_pass(self, listener: socket.socket) -> float | None:
        """Let time pass for companions, once, unless a process wants to join at ``listener``; the most seconds of the machine's
        time to the next call, None: any."""
        self.release()
        self.take()
        if not self.active:
            return None
        self.show()
        if not self.stands_still():
            self._pause = min(2 * self._pause, LONGEST)
            return self._pause
        self._pause = SHORTEST
        if select.select([listener], [], [], 0)[0] or self.give_turn() or self._let_look():
            return 0.0
        self._schedule()
        if self._engine.step():
            return 0.0
        self._looked = 0
        return 2 * LONGEST
