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
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kernbench.scheduler.carrier import current_carrier
from kernbench.scheduler.crew import acting_crew, current_member, current_thread_is_side, is_in_rank, is_outside
from kernbench.simulation.active_simulation import current_simulation
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.notices import LOOKED_AT
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

SOCKETS, POLLERS = "zmq.sugar.socket", "zmq.sugar.poll"
"""Modules of pyzmq whose classes wait."""

RELIES_ON = (Reliance("os.sched_yield", "a loop that looks at shared memory calls it between two looks"),)

_READS = ("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into")
"""Methods of a socket that wait until there is something to read."""

_NOT_BUFFERED = 1 << 16
"""Bytes from which on sending them may wait for a reader: a socket's buffers may have no room for them."""

_Socket: Any = socket.socket

_DONT_WAIT = 1
"""``zmq.DONTWAIT``, of the wire protocol's library."""

_NOTHING = 1e-8
"""Seconds, without looks at clocks, between two looks at others in which a rank has done nothing."""

_LOOKS = 2
"""Looks in a row that find nothing, after which a rank is taken to wait."""


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


def _waiting(
    stock: Callable[..., Any],
    made: weakref.WeakSet[socket.socket],
    lasts: Callable[..., bool] = lambda *_: True,
    far: Callable[[socket.socket], bool] = _is_far,
) -> Callable[..., Any]:
    """A method by which a socket that a rank has ``made`` waits for its other end, if that ``lasts`` with these arguments."""

    @functools.wraps(stock)
    def method(self: socket.socket, *args: object, **kwargs: Any) -> Any:
        simulation = _of_a_rank() if self in made else None
        never = simulation is None or self.gettimeout() == 0 or _asks_not_to_wait(args, kwargs)
        if never or not lasts(*args) or far(self):
            return stock(self, *args, **kwargs)
        assert simulation is not None
        return simulation.threads.outside("a message", functools.partial(stock, self, *args, **kwargs))

    return method


def _may_fill_buffers(data: Any, *_: object) -> bool:
    return memoryview(data).nbytes > _NOT_BUFFERED


def _asks_not_to_wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = [*args[1:], *kwargs.values()]
    return any(type(each) in (int, socket.MsgFlag) and each & socket.MSG_DONTWAIT for each in given)


def install_sockets(patches: Patches, module: ModuleType) -> None:
    """``recv`` of a socket, by which its other receiving methods receive, and ``send``."""
    socket: Any = module.Socket
    patches.set(socket, "recv", _looking(socket.recv, lambda flags=0, *_, **__: bool(flags & _DONT_WAIT)))
    if hasattr(socket, "send"):
        patches.set(socket, "send", _in_time(socket.send))


def install_pollers(patches: Patches, module: ModuleType) -> None:
    """``poll`` of a poller, by which a socket's own polls."""
    poller: Any = module.Poller
    patches.set(poller, "poll", _looking(poller.poll, lambda timeout=None: timeout == 0, found=bool))


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


def _looking(
    stock: Callable[..., Any], over: Callable[..., bool], found: Callable[[Any], bool] = lambda _: True
) -> Callable[..., Any]:
    """A method that waits for what others do, or only looks (``over``) whether they have done it, which ``found`` says."""
    in_vain: dict[int, tuple[int, float]] = {}

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
            looks, worked = in_vain.get(host.rank or 0, (0, host.clock - host.asked))
            looks = 0 if came or host.clock - host.asked - worked > _NOTHING else looks + 1
            if looks > _LOOKS:
                looks = 0
                _look_later(simulation)
            in_vain[host.rank or 0] = looks, host.clock - host.asked

    return method


def _in_time(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method by which a rank tells others something, no earlier than its own time."""

    @functools.wraps(stock)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        simulation = _of_a_rank()
        if simulation is not None:
            simulation.waits.sleep(0.0)
        return stock(self, *args, **kwargs)

    return method
