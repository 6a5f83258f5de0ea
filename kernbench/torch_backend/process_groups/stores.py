"""Stores: ``TCPStore``, ``FileStore`` and ``HashStore`` without sockets, files or blocking.

Inside a simulation the three names are these classes. Stores of one address share their content; a rank that waits for a
key lets the others run, and its timeout is in virtual time.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist

from kernbench.sim_engine import Condition
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.process_groups import prefix_stores, store_servers
from kernbench.torch_backend.process_groups.making import DEFAULT_TIMEOUTS
from kernbench.torch_backend.process_groups.store_servers import CLIENTS, Server
from kernbench.torch_backend.relies_on import Reliance

DEFAULT_TIMEOUT = timedelta(seconds=300)
"""Of a store that a program makes itself (``Store::kDefaultTimeout``)."""

_NOT_ASKED_FOR = frozenset({DEFAULT_TIMEOUT, *DEFAULT_TIMEOUTS})
"""Timeouts that a store has where the program has given none: a group passes its own on to it."""

PATIENCE = 100
"""Looks in a row, without a change, after which a rank is taken to poll."""


class Contents:
    """The keys and values behind one or more store objects, and the ranks that wait for a key.

    Attributes:
        key: by what the stores of one address find them.
        server: who listens at the address of a ``TCPStore``; None: no server is there.
    """

    def __init__(self, key: tuple[object, ...]) -> None:
        self.key = key
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}
        self.waiters: list[tuple[Callable[[], bool], Condition]] = []
        self.server: Server | None = None
        self.changes = 0
        self.looks: dict[int | None, tuple[int, int]] = {}  # of each rank: changes that it has seen, looks since
        self.known: Mapping[Any, int] = {}  # what those who wrote knew of the order of events, if it is watched


class StoreHost:
    """All stores of one spawn at a time.

    Attributes:
        simulation: the simulation whose ranks run, None when none do.
        kept: stores that have been made.
        forward: in a rank that is a process, calls a method of a store where the simulation is: with the key of the contents,
            the store's timeout, the method's name and its arguments. None: contents are here.
    """

    def __init__(self) -> None:
        self.simulation: Simulation | None = None
        self.forward: Callable[..., Any] | None = None
        self._shared: dict[tuple[Any, ...], Contents] = {}
        self._next_port = 29500
        self._stores_made = 0
        self.kept: list[CooperativeStore] = []

    def open(self, simulation: Simulation) -> None:
        """Begin anew, for the ranks of ``simulation``: what they make is of this host."""
        self.simulation = simulation
        _open.append(self)
        self._next_port = 29500

    def close(self) -> None:
        """Forget their contents; who still has a store keeps its own. Idempotent."""
        if self in _open:
            _open.remove(self)
        self.simulation = None
        self._shared.clear()
        self.kept.clear()

    def shared(self, *key: object) -> Contents:
        """The contents that every store of this address has."""
        return self._shared.setdefault(key, Contents(key))

    def private(self) -> Contents:
        """Contents of one store alone."""
        self._stores_made += 1
        return self.shared("own", None if self.forward is None else os.getpid(), self._stores_made)

    def keep(self, store: CooperativeStore) -> None:
        """C++ that has a store, such as a ``PrefixStore`` around it, does not keep its Python part, which has the methods."""
        self.kept.append(store)

    def free_port(self) -> int:
        """A port that no store has."""
        if self.forward is not None:
            return int(self.forward((), None, "free_port", (), {}))
        self._next_port += 1
        return self._next_port


_one = [object()]
_REFERENCES = sys.getrefcount(_one[0])
"""Of a store that is kept in a list and has no other reference, as ``sys.getrefcount`` counts."""

_open: list[StoreHost] = []
"""Those of the spawns whose ranks run; the innermost one is last."""


def innermost() -> StoreHost:
    """The stores of the spawn whose ranks run."""
    return _open[-1]


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _on_contents(method: _Method) -> _Method:
    """A method that works on a store's contents, which are where the simulation is."""
    name = method.__name__

    @functools.wraps(method)
    def call(store: CooperativeStore, *args: object, **kwargs: object) -> Any:
        return store.on_contents(name, method, args, kwargs)

    return cast("_Method", call)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


_WAITING = ("get", "wait", "multi_get")
_LOOKING = ("check", "num_keys", "list_keys", "queue_len")
"""Methods that wait until keys are there, and others that change nothing."""

_MEETING = ("listen", "unlisten", "reach", "gather")
"""Methods by which stores of one address find each other, whichever comes first."""


def _keys_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The keys that a method is given; ``""`` of one that looks at all."""
    given = args[0] if args else kwargs.get("key", kwargs.get("keys", ""))
    return [given] if isinstance(given, str) else [str(each) for each in given]


class CooperativeStore(dist.Store):
    """``torch.distributed.Store`` over :class:`Contents`."""

    timeout: timedelta
    """C++'s, of virtual time: a ``PrefixStore`` sets it without asking Python."""

    def __init__(self, host: StoreHost, contents: Contents, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__()
        assert host.simulation is not None
        host.keep(self)
        self._host = host
        self._simulation = host.simulation
        self._contents = contents
        self.set_timeout(timeout)

    def on_contents(self, name: str, method: Callable[..., object], args: Any, kwargs: Any) -> Any:
        """Call a method that works on the contents, where they are."""
        give_way = self._simulation.giving_way
        if give_way is not None:
            give_way()
        forward = self._host.forward
        if forward is not None:
            return forward(self._contents.key, self.timeout, name, args, kwargs)
        if give_way is None or give_way.conflicts is None or name in _MEETING:
            return method(self, *args, **kwargs)
        waits = name in _WAITING
        result = method(self, *args, **kwargs) if waits else None
        writes = name not in (*_WAITING, *_LOOKING)
        give_way.looks_into(self._contents.key, _keys_of(args, kwargs), name, writes=writes, waits=waits)
        return result if waits else method(self, *args, **kwargs)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait_until(self, ready: Callable[[], bool], what: str, timeout: timedelta | None) -> None:
        def error(seconds: float) -> Exception:
            return dist.DistStoreError(f"wait timeout after {round(seconds * 1000)}ms, keys: {what}")

        self._wait(ready, f"wait for {what}", timeout, error)
        self._learn()

    def _learn(self) -> None:
        """What a reader of an entry does next happens after what its writers did."""
        order = self._simulation.hosts.current().order
        if order is not None:
            order.host.acquire(self._contents.known)

    def _wait(
        self, ready: Callable[[], bool], what: str, timeout: timedelta | None, error: Callable[[float], Exception]
    ) -> None:
        """Wait until ``ready()``; ``what`` is waited for, and ``error(seconds)`` is raised when it takes too long."""
        if ready():
            return
        simulation = self._simulation
        me = simulation.hosts.current()
        limit = self.timeout if timeout is None else timeout
        there = Condition(f"store {what}", me.rank)
        seconds = limit.total_seconds()

        def expire(there: Condition, at: float) -> None:
            waited = error(seconds)
            there.fail(type(waited)("\n".join((str(waited), *simulation.drain.situation()))), at)

        self._contents.waiters.append((ready, there))
        asked_for = timeout is not None or limit not in _NOT_ASKED_FOR
        simulation.deadlines.add(there, me.clock + seconds, asked_for, expire)
        simulation.waits.wait(there)

    def _changed(self) -> None:
        """Resume those whose key is there now."""
        me = self._simulation.hosts.current()
        contents, clock = self._contents, me.clock
        contents.changes += 1
        if me.order is not None:
            me.order.host.acquire(contents.known)
            contents.known = me.order.host.everything()
        if not contents.waiters:
            return
        still = []
        for ready, there in contents.waiters:
            if there.done:
                continue
            if ready():
                there.fulfil(clock)
                self._simulation.engine.progress += 1
            else:
                still.append((ready, there))
        contents.waiters = still

    def _looked(self, what: str) -> None:
        """A rank that looks again and again while nothing changes lets the others go on."""
        self._learn()
        contents, me = self._contents, self._simulation.hosts.current()
        changes, looks = contents.looks.get(me.rank, (-1, 0))
        looks = looks + 1 if changes == contents.changes else 0
        contents.looks[me.rank] = (contents.changes, looks)
        if looks > PATIENCE:
            self._simulation.polls.look(f"store key {what}")

    # -- torch.distributed.Store -------------------------------------------------------------------------------------

    @_on_contents
    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._contents.values[key] = _bytes(value)
        self._changed()

    @_on_contents
    def get(self, key: str) -> bytes:
        """The value of ``key``; waits until there is one."""
        self._wait_until(lambda: key in self._contents.values, key, None)
        return self._contents.values[key]

    @_on_contents
    def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0; return the sum."""
        if not amount and key in self._contents.values:
            self._looked(key)
            return int(self._contents.values[key])
        total = int(self._contents.values.get(key, b"0")) + amount
        self._contents.values[key] = str(total).encode()
        self._changed()
        return total

    @_on_contents
    def append(self, key: str, value: object) -> None:
        """Append to a value."""
        self._contents.values[key] = self._contents.values.get(key, b"") + _bytes(value)
        self._changed()

    @_on_contents
    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        self._looked(", ".join(keys))
        return self._has(keys)

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._contents.values or self._contents.queues.get(key) for key in keys)

    @_on_contents
    def compare_set(self, key: str, expected: object, desired: object) -> bytes:
        """Write ``desired`` if the value is ``expected`` (or absent and ``expected`` empty); return the value."""
        values = self._contents.values
        if key not in values:
            if _bytes(expected):
                return _bytes(expected)
            values[key] = _bytes(desired)
        elif values[key] == _bytes(expected):
            values[key] = _bytes(desired)
        self._changed()
        return values[key]

    @_on_contents
    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return self._contents.values.pop(key, None) is not None

    @_on_contents
    def num_keys(self) -> int:
        """How many keys there are."""
        self._looked("count")
        return len(self._contents.values)

    deleteKey, getNumKeys = delete_key, num_keys  # by these names C++ calls them, for a PrefixStore

    @_on_contents
    def list_keys(self) -> list[str]:
        """The keys."""
        return sorted(key for key in self._contents.values if key != CLIENTS)

    @_on_contents
    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there."""
        self._wait_until(lambda: self._has(keys), ", ".join(keys), timeout)

    @_on_contents
    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys; waits until all are there."""
        return [self.get(key) for key in keys]

    @_on_contents
    def multi_set(self, keys: Sequence[str], values: Sequence[object]) -> None:
        """Write several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """True: append, multi_get and multi_set are there."""
        return True

    @_on_contents
    def queue_push(self, key: str, value: object) -> None:
        """Add to the end of a queue."""
        self._contents.queues.setdefault(key, deque()).append(_bytes(value))
        self._changed()

    @_on_contents
    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take from the front of a queue; wait until there is something, or raise if not ``block``."""
        queue = self._contents.queues.setdefault(key, deque())
        if not block and not queue:
            raise dist.QueueEmptyError("queue is empty")
        self._wait_until(lambda: bool(queue), key, None)
        return queue.popleft()

    @_on_contents
    def queue_len(self, key: str) -> int:
        """Length of a queue."""
        self._looked(key)
        return len(self._contents.queues.get(key, ()))

    def clone(self) -> CooperativeStore:
        """Another store over the same contents."""
        return CooperativeStore(self._host, self._contents, self.timeout)

    @_on_contents
    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until ``world_size`` callers are here."""
        self.add(key, 1)
        self._wait_until(lambda: int(self._contents.values.get(key, b"0")) >= world_size, key, timeout)

    # -- servers -----------------------------------------------------------------------------------------------------

    @_on_contents
    def listen(self, port: int, shared: bool) -> None:
        """Be the server of the address; raise DistNetworkError if another one of this node is."""
        me, topology = self._simulation.hosts.current(), self._simulation.topology
        mine, first = Server(topology.node_of(me.sip), me.rank, shared), self._contents.server
        if first is not None and first.node == mine.node and not (shared and first.shared):
            raise store_servers.in_use(port, first)
        self._contents.server = mine
        self._changed()

    @_on_contents
    def unlisten(self) -> None:
        """There is no server any more; the next one has what it had, as others may have met there already."""
        self._contents.server = None

    @_on_contents
    def reach(self, name: str, port: int) -> None:
        """Wait until the address has a server."""
        self._wait(
            lambda: self._contents.server is not None, f"server at {name}:{port} (a TCPStore with is_master=True)", None,
            lambda seconds: store_servers.not_reached(name, port, seconds),
        )  # fmt: skip

    @_on_contents
    def gather(self, size: int, waits: bool) -> None:
        """Count this store; wait, if it ``waits``, until ``size`` are there: all that run."""
        self.add(CLIENTS, 1)
        if not waits or self._simulation.world.communicators.folding is not None:
            return
        values = self._contents.values
        self._wait(
            lambda: int(values[CLIENTS]) >= size, f"wait for {size} clients", None,
            lambda seconds: store_servers.not_joined(int(values[CLIENTS]), size, seconds),
        )  # fmt: skip


class TCPStore(CooperativeStore):
    """Contents by address, of which one store is the server.

    As in torch a store that is no master waits for a server, and a master for as many stores as ``world_size``.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        host = _open[-1]
        self.host = host_name
        self.port = port or host.free_port()
        self.is_master = is_master
        self._serves = False
        self.libuvBackend = use_libuv
        super().__init__(host, host.shared("tcp", store_servers.host_of(host_name), self.port), timeout)
        if store_servers.is_launchers(host_name, self.port):
            return
        if is_master:
            self._end_dropped_server()
            self.listen(self.port, multi_tenant)
            self._serves = True
        else:
            self.reach(host_name, self.port)
        if wait_for_workers and world_size is not None and world_size > 0:
            self.gather(world_size, is_master)

    def _end_dropped_server(self) -> None:
        """End the server that this process has at the address if its program has dropped the store."""
        mine = [
            place for place, each in enumerate(self._host.kept)
            if isinstance(each, TCPStore) and each._serves and each._contents is self._contents
        ]  # fmt: skip
        kept = self._host.kept
        if mine and all(sys.getrefcount(kept[place]) <= _REFERENCES for place in mine):
            self.unlisten()


class FileStore(CooperativeStore):
    """Contents by path."""

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        self.path = file_name
        super().__init__(_open[-1], _open[-1].shared("file", file_name))


class HashStore(CooperativeStore):
    """Contents of its own."""

    def __init__(self) -> None:
        super().__init__(_open[-1], _open[-1].private())


def _prefixes(prefix_store: Any) -> bool:
    class Own(dist.Store):
        timeout: timedelta

        def set(self, key: str, value: Any) -> None:
            seen.append(key)

    seen: list[str] = []
    own, limit = Own(), timedelta(seconds=7)
    outer = prefix_store("a", own)
    outer.set("b", "1")
    outer.set_timeout(limit)
    return seen == ["a/b"] and own.timeout == limit


CLASSES: dict[str, Any] = {"TCPStore": TCPStore, "FileStore": FileStore, "HashStore": HashStore}

_OWNERS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (dist, ("TCPStore", "FileStore", "HashStore")),
    (
        sys.modules["torch.distributed.rendezvous"],
        ("TCPStore", "FileStore"),
    ),  # torch.distributed has a function of that name
)
"""Modules that have the names."""

RELIES_ON = (
    *(Reliance(owner.__name__, "what makes a store finds it there", has=names) for owner, names in _OWNERS),
    Reliance("torch.distributed.Store", "stores of C++ call the methods of one of Python", subclassed=True, has=(
        "set", "get", "add", "check", "wait", "compare_set", "delete_key", "num_keys", "append", "multi_get", "multi_set",
        "has_extended_api", "queue_push", "queue_pop", "queue_len", "list_keys", "clone",
        "timeout", "set_timeout",
    )),
    Reliance("torch.distributed.PrefixStore", "it calls the Python methods of the store that it is given, and sets its timeout",
             holds=_prefixes),
)  # fmt: skip


def install(patches: Patches, classes: Mapping[str, object] = CLASSES) -> None:
    """Put stores of these classes in the place of torch's."""
    prefix_stores.install(patches)
    for owner, names in _OWNERS:
        for name in names:
            patches.set(owner, name, classes[name])
