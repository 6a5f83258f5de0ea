"""Where a rank waits on sockets for another rank, thread or process, or looks again and again at what that may write.

Serving engines set up their queues over ZeroMQ's sockets (``pyzmq``), within one node; programs find each other, and fetch
checkpoints, over Python's. Who is at the other end a socket does not say, so every wait that could last gives the turn away:
the rank is back when the others cannot go on without it, no earlier in virtual time than they have got to. A limit of such a
wait is the machine's time. A loop that asks a socket in vain, or gives the core away (``os.sched_yield``) between looks at
shared memory, gives its turn away, too. Of another host a rank waits as Python does: that is no rank.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from kernbench.scheduler.carrier import current_carrier
from kernbench.scheduler.crew import acting_crew, current_member, current_thread_is_side, is_in_rank, is_outside
from kernbench.sim_engine.log_rows import as_operation
from kernbench.simulation.active_simulation import current_simulation
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.notices import LOOKED_AT
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

SOCKETS, POLLERS = "zmq.sugar.socket", "zmq.sugar.poll"
"""Modules of pyzmq whose classes wait."""

RELIES_ON = (Reliance("os.sched_yield", "a loop that looks at shared memory calls it between two looks"),)

_READS = ("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg_into")
"""Methods of a socket that wait until there is something to read."""

_NOT_BUFFERED = 1 << 16
"""Bytes from which on sending them may wait for a reader: a socket's buffers may have no room for them."""

_Socket: Any = socket.socket

_DONT_WAIT, _EVENTS, _READABLE = 1, 15, 1
"""``zmq.DONTWAIT``, ``zmq.EVENTS`` and ``zmq.POLLIN``, of the wire protocol's library."""

_NOTHING = 1e-8
"""Seconds, without looks at clocks, between two looks at others in which a rank has done nothing."""

_LOOKS = 2
"""Looks in a row that find nothing, after which a rank is taken to wait."""

_ROUNDS = 100
"""The same, of looks between which it has only told others a few bytes: that there is nothing."""

_FEW_BYTES = 64


def install(patches: Patches) -> None:
    """``os.sched_yield``, and sockets of Python that ranks make."""
    made: weakref.WeakSet[socket.socket] = weakref.WeakSet()
    stock_init = _Socket.__init__

    @functools.wraps(stock_init)
    def init(self: socket.socket, *args: object, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        if current_simulation() is not None and (is_in_rank() or current_thread_is_side()):
            made.add(self)

    patches.set(_Socket, "__init__", init)
    for name in _READS:
        patches.set(_Socket, name, _waiting(getattr(_Socket, name), made))
    patches.set(_Socket, "recvmsg", _waiting(_Socket.recvmsg, made, own=_brings_descriptors))
    patches.set(_Socket, "accept", _waiting(_Socket.accept, made, far=lambda _: False))
    for name in ("send", "sendall"):
        patches.set(_Socket, name, _waiting(getattr(_Socket, name), made, _may_fill_buffers))
    stock = os.sched_yield

    @functools.wraps(stock)
    def sched_yield() -> None:
        simulation = _of_a_rank()
        if simulation is None:
            stock()
        else:
            _look_later(simulation)

    patches.set(os, "sched_yield", sched_yield)


def _is_far(end: socket.socket) -> bool:
    """Whether the other end is on another host."""
    if end.family == socket.AF_UNIX:
        return False
    try:
        mine, other = end.getsockname()[0], end.getpeername()[0]
    except OSError:  # of datagrams, from anywhere
        return False
    return bool(mine != other and not other.removeprefix("::ffff:").startswith("127."))


def _brings_descriptors(end: socket.socket) -> bool:
    """Whether it may bring descriptors, as those of a tensor's memory: of what a message has told of, which came before."""
    return end.family == socket.AF_UNIX


def _waiting(
    stock: Callable[..., Any],
    made: weakref.WeakSet[socket.socket],
    lasts: Callable[..., bool] = lambda *_: True,
    far: Callable[[socket.socket], bool] = _is_far,
    own: Callable[[socket.socket], bool] = lambda _: False,
) -> Callable[..., Any]:
    """A method by which a socket that a rank has ``made`` waits for its other end, if that ``lasts`` with these arguments;
    ``own``: see :meth:`.RankThreads.outside`."""

    @functools.wraps(stock)
    def method(self: socket.socket, *args: object, **kwargs: Any) -> Any:
        simulation = _of_a_rank() if self in made else None
        never = simulation is None or self.gettimeout() == 0 or _asks_not_to_wait(args, kwargs)
        if never or not lasts(*args) or far(self):
            return stock(self, *args, **kwargs)
        assert simulation is not None
        return simulation.threads.outside("a message", functools.partial(stock, self, *args, **kwargs), own=own(self))

    return method


def _may_fill_buffers(data: Any, *_: object) -> bool:
    return memoryview(data).nbytes > _NOT_BUFFERED


def _asks_not_to_wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = [*args[1:], *kwargs.values()]
    return any(type(each) in (int, socket.MsgFlag) and each & socket.MSG_DONTWAIT for each in given)


def install_sockets(patches: Patches, module: ModuleType) -> None:
    """``recv`` of a socket, by which its other receiving methods receive, and ``send``."""
    socket: Any = module.Socket

    def over(flags: int = 0, *_: object, **__: object) -> bool:
        return bool(flags & _DONT_WAIT)

    def peek(each: Any) -> bool:
        return not each.closed and bool(each.getsockopt(_EVENTS) & _READABLE)

    patches.set(socket, "recv", _looking(socket.recv, over, peek))
    if hasattr(socket, "send"):
        patches.set(socket, "send", _in_time(socket.send))


def install_pollers(patches: Patches, module: ModuleType) -> None:
    """``poll`` of a poller, by which a socket's own polls."""
    poller: Any = module.Poller
    stock = poller.poll
    patches.set(poller, "poll", _looking(stock, lambda timeout=None: timeout == 0, lambda each: stock(each, 0), bool))


def _of_a_rank() -> Simulation | None:
    """The simulation of the rank that asks; None if it is none, or cannot wait, as a thread that takes no turns."""
    simulation = current_simulation()
    if simulation is None or not is_in_rank() or is_outside():
        return None
    if acting_crew() is None and current_member() is not None:
        return None
    return simulation if simulation.world.apart or current_carrier() is not None else None


def _look_later(simulation: Simulation) -> None:
    """Look again when others have done something. That it has looked at a clock since it looked last takes no time."""
    host = simulation.hosts.current()
    if host.clock - host.looked_at - host.asked < _NOTHING:
        host.clock = host.looked_at
    simulation.threads.outside(LOOKED_AT, lambda: None)
    host.looked_at, host.asked = host.clock, 0.0


class _InVain:
    """Looks of a rank that have found nothing.

    Attributes:
        looks: in a row, while it has done nothing else.
        rounds: in a row, while it has told others a few bytes at most.
        worked: its clock at the last one, without looks at clocks.
        tails: what it had put last on its streams then.
        peeks: by what it has looked at in these rounds: whether there is something now.
    """

    def __init__(self) -> None:
        self.looks = self.rounds = 0
        self.worked = -1.0
        self.tails: Mapping[str, object] = {}
        self.peeks: dict[int, Callable[[], object]] = {}

    def count(self, host: Host, came: bool) -> None:
        """A look has found something (``came``), or not."""
        worked, tails = host.clock - host.asked, {**host.tails}
        idle = not came and worked - self.worked <= _NOTHING
        agreed = not came and all(self.tails.get(name) is last or _is_short(last) for name, last in tails.items())
        self.looks = self.looks + 1 if idle else 0
        self.rounds = self.rounds + 1 if agreed else 0
        self.worked, self.tails = worked, tails
        if not agreed:
            self.peeks.clear()


def _is_short(last: object) -> bool:
    """Whether that is a collective of a few bytes."""
    operation = as_operation(last)
    return operation.kind == "collective" and operation.nbytes <= _FEW_BYTES


class _OfAThread(threading.local):
    """What one thread has looked at, which greenlets may share, by their ranks' hosts."""

    def __init__(self) -> None:
        self.in_vain: weakref.WeakKeyDictionary[Host, _InVain] = weakref.WeakKeyDictionary()


_here = _OfAThread()


def _looking(
    stock: Callable[..., Any],
    over: Callable[..., bool],
    peek: Callable[[Any], object],
    found: Callable[[Any], bool] = lambda _: True,
) -> Callable[..., Any]:
    """A method that waits for what others do, or only looks (``over``) whether they have done it, which ``found`` says of what
    it gives, and ``peek`` without taking it."""

    @functools.wraps(stock)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        simulation = _of_a_rank()
        if simulation is None:
            return stock(self, *args, **kwargs)
        if not over(*args, **kwargs):
            return simulation.threads.outside("a message", functools.partial(stock, self, *args, **kwargs))
        host, came = simulation.hosts.current(), False
        try:
            given = stock(self, *args, **kwargs)
            came = found(given)
            return given
        finally:
            looks = _here.in_vain.get(host) or _here.in_vain.setdefault(host, _InVain())
            looks.count(host, came)
            if not came:
                looks.peeks[id(self)] = functools.partial(peek, self)
                _wait_if_in_vain(simulation, host, looks)

    return method


def _wait_if_in_vain(simulation: Simulation, host: Host, looks: _InVain) -> None:
    """Look later, if the rank has looked so often that it is taken to wait.

    One that tells others in each round that there is nothing does so once for each time at which anything happens: until then
    it looks alone.
    """
    if looks.looks > _LOOKS:
        looks.looks = 0
        _look_later(simulation)
    elif looks.rounds > _ROUNDS:
        began = host.clock
        while host.clock == began and not any(there() for there in looks.peeks.values()):
            _look_later(simulation)
    looks.worked = host.clock - host.asked


def _in_time(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method by which a rank tells others something, no earlier than its own time."""

    @functools.wraps(stock)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        simulation = _of_a_rank()
        if simulation is not None:
            simulation.waits.sleep(0.0)
        return stock(self, *args, **kwargs)

    return method
