"""Servers of ``TCPStore``: who has begun one at an address, and what a store waits for as it is made.

A store that is a master listens at its port, which another server of the same node must not have; any other one connects, and
waits for a server. With a world's size all of them count themselves, and the master waits until so many are there. The address
that a launcher names (``MASTER_ADDR``, ``MASTER_PORT``) is the launcher's own, as torchrun's agent has it: it is served from
the start.
"""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass

import torch.distributed as dist

_OWN_NAMES = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})

CLIENTS = "init/"
"""The key by which the stores of an address count themselves: libuv's and torch's own servers have it, too."""


@dataclass(frozen=True)
class Server:
    """What listens at an address.

    Attributes:
        node, rank: where, and whose; rank None: main's.
        shared: whether another one may begin there that is, too (``multi_tenant``): a process has one of them, and groups that
            are made again at an address, maybe by another rank, find it free, as their stores are gone by then.
    """

    node: int
    rank: int | None
    shared: bool


@functools.cache
def _own_addresses() -> frozenset[str]:
    name = socket.gethostname()
    try:
        return frozenset({name, socket.gethostbyname(name)})
    except OSError:  # it has no address
        return frozenset({name})


def host_of(name: str) -> str:
    """One name for all names of this machine, which every node of a simulation is."""
    return "localhost" if name in _OWN_NAMES or name in _own_addresses() else name


def is_launchers(name: str, port: int) -> bool:
    """Whether the environment names this address as the one where ranks meet."""
    environ = os.environ
    return environ.get("MASTER_PORT") == str(port) and host_of(environ.get("MASTER_ADDR", "")) == host_of(name)


def in_use(port: int, first: Server) -> Exception:
    """What torch raises of a second server at a port."""
    whose = "main's" if first.rank is None else f"rank {first.rank}'s"
    return dist.DistNetworkError(
        f"The server socket has failed to listen on any local network address. port: {port}, useIpv6: false, code: -98, "
        f"name: EADDRINUSE, message: address already in use ({whose} TCPStore is the server there: one is made with "
        "is_master=True, and the others connect)"
    )


def not_reached(name: str, port: int, seconds: float) -> dist.DistNetworkError:
    """What torch raises of a client that no server has answered."""
    return dist.DistNetworkError(
        f"The client socket has timed out after {round(seconds * 1000)}ms while trying to connect to ({name}, {port}).\n"
        "A store that a process has made before init_process_group makes it a rank is another one, which ranks do not find: "
        "make it after that."
    )


def not_joined(there: int, size: int, seconds: float) -> dist.DistStoreError:
    """What torch raises of a server that waits for more clients than come."""
    return dist.DistStoreError(
        f"Timed out after {round(seconds)} seconds waiting for clients. {there}/{size} clients joined."
    )
