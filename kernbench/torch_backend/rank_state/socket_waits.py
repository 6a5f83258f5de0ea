"""Where a rank waits on ZeroMQ's sockets for another rank: the others go on meanwhile.

Serving engines set up their queues over such sockets (``pyzmq``), within one node. Who is at the other end a socket does not
say, so every wait that could last gives the turn away: the rank is back when the others cannot go on without it, no earlier in
virtual time than they have got to. A limit of such a wait is the machine's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kernbench.scheduler.crew import is_in_rank, is_outside
from kernbench.simulation.active_simulation import current_simulation
from kernbench.torch_backend.patches import Patches

SOCKETS, POLLERS = "zmq.sugar.socket", "zmq.sugar.poll"
"""Modules of pyzmq whose classes wait."""

_DONT_WAIT = 1
"""``zmq.DONTWAIT``, of the wire protocol's library."""


def install_sockets(patches: Patches, module: Any) -> None:
    """``recv`` of a socket, by which its other receiving methods receive."""
    socket: Any = module.Socket
    patches.set(
        socket, "recv", _given_away(socket.recv, "a message", lambda flags=0, *_, **__: bool(flags & _DONT_WAIT))
    )


def install_pollers(patches: Patches, module: Any) -> None:
    """``poll`` of a poller, by which a socket's own polls."""
    poller: Any = module.Poller
    patches.set(poller, "poll", _given_away(poller.poll, "a message", lambda timeout=None: timeout == 0))


def _given_away(stock: Callable[..., Any], awaits: str, over: Callable[..., bool]) -> Callable[..., Any]:
    """A method that waits for what other ranks do, unless it is ``over`` at once."""

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        simulation = current_simulation()
        if simulation is None or not is_in_rank() or is_outside() or over(*args, **kwargs):
            return stock(self, *args, **kwargs)
        return simulation.threads.outside(awaits, functools.partial(stock, self, *args, **kwargs))

    return method
