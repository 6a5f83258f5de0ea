"""``torch.distributed.rpc``: ranks set it up, know each other's names and shut it down; calls are refused in words.

What runs a call on hardware are threads of agents in C++, which wait for each other outside a simulation. Programs and test
suites that call ``init_rpc`` beside ``init_process_group``, and then send messages, find what they look for. Workers meet by
the store of the rendezvous that they name, as agents do.
"""

from __future__ import annotations

import itertools
import pickle
import weakref
from collections.abc import Collection
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch.distributed as dist

from kernbench.errors import KernbenchError
from kernbench.simulation.ranks.hosts import Host
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.rpc"

RELIES_ON = (
    Reliance(f"{MODULE}.init_rpc", "every use of it begins with this", parameters=(
        "name", "backend", "rank", "world_size", "rpc_backend_options",
    )),
    Reliance(f"{MODULE}.backend_registry", "options are made, and those of the caller checked", has=(
        "BackendType", "construct_rpc_backend_options",
    )),
    Reliance(f"{MODULE}.api", "its functions ask these for the agent, and call them when it is shut down", has=(
        "_is_current_rpc_agent_set", "_get_current_rpc_agent", "_reset_current_rpc_agent", "_destroy_rref_context",
        "_cleanup_python_rpc_handler", "_delete_all_user_and_unforked_owner_rrefs",
    )),
    Reliance(f"{MODULE}.api._all_gather", "workers meet by this", parameters=("obj", "worker_names", "timeout"), looked_up_by=(
        f"{MODULE}.api._wait_all_workers", f"{MODULE}.api._barrier",
    )),
    Reliance(f"{MODULE}.api._invoke_rpc", "calls that give a result go by this", parameters=("to", "func", "rpc_type")),
    Reliance(f"{MODULE}.api.remote", "this gives a reference to one", parameters=("to", "func")),
    Reliance(f"{MODULE}.api.RRef", "which a program may make, too", has=("__init__",)),
    Reliance(f"{MODULE}.WorkerInfo", "what it receives about a worker", has=("id", "name")),
)  # fmt: skip


class Agent:
    """What a rank's ``init_rpc`` has set up, with the methods of ``RpcAgent``.

    Args:
        store: what the workers meet by.
        workers: all of them, by id.
        id: this one's.
        timeout: of a call, s.
    """

    is_static_group = True

    def __init__(self, store: Any, workers: dict[int, Any], id: int, timeout: float) -> None:
        self.store = store
        self._workers = workers
        self._id = id
        self._timeout = timeout
        self._meetings: dict[tuple[str, ...], Any] = {}

    def get_worker_info(self, worker: str | int | None = None) -> Any:
        """Raises RuntimeError for a worker that there is not."""
        if worker is None:
            return self._workers[self._id]
        for info in self._workers.values():
            if worker in (info.name, info.id):
                return info
        raise RuntimeError(f"Unknown destination worker {worker}")

    def get_worker_infos(self) -> list[object]:
        """Of all workers, this one among them."""
        return list(self._workers.values())

    def all_gather(self, obj: Any, names: Collection[str] | None = None) -> dict[str, Any]:
        """What each of these workers gives, by its name, when all have."""
        group = tuple(sorted(names or [info.name for info in self._workers.values()]))
        meeting = next(self._meetings.setdefault(group, itertools.count()))
        prefix = f"{'/'.join(group)}/{meeting}"
        self.store.set(f"{prefix}/{self.get_worker_info().name}", pickle.dumps(obj))
        return {name: pickle.loads(self.store.get(f"{prefix}/{name}")) for name in group}

    def join(self, shutdown: bool = False, timeout: float = 0.0) -> None:
        """No call is under way."""

    def sync(self) -> None:
        """No call is under way."""

    def shutdown(self) -> None:
        """No thread is to be stopped."""

    def get_debug_info(self) -> dict[str, str]:
        """Nothing is counted."""
        return {}


def _refuse(what: str) -> None:
    raise KernbenchError(
        f"torch.distributed.rpc.{what}: remote procedure calls are not simulated. Use messages and collectives of "
        "torch.distributed (send, recv, all_gather_object), or its stores, between ranks"
    )


class RemoteCalls:
    """``torch.distributed.rpc`` of the ranks that run."""

    def __init__(self, rpc: Any) -> None:
        self._rpc = rpc
        self._agents: weakref.WeakKeyDictionary[Host, Agent] = weakref.WeakKeyDictionary()
        self._begun: weakref.WeakKeyDictionary[Host, Any] = weakref.WeakKeyDictionary()

    @staticmethod
    def _host() -> Host:
        return bound_devices().mine().host

    def init_rpc(
        self,
        name: str,
        backend: object = None,
        rank: int = -1,
        world_size: int | None = None,
        rpc_backend_options: Any = None,
    ) -> None:
        """As torch's, of a group of workers all of which are there from the start."""
        rpc, host = self._rpc, self._host()
        if not isinstance(name, str):
            raise RuntimeError(f"Argument {name} must be of type <class 'str'> but got type {type(name)}")
        if backend is not None and not isinstance(backend, rpc.BackendType):
            raise TypeError("Argument backend must be a member of BackendType")
        if host in self._agents:
            raise RuntimeError("RPC is already initialized")
        options = rpc_backend_options or rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType.TENSORPIPE)
        store, rank, size = next(dist.rendezvous(options.init_method, rank, -1 if world_size is None else world_size))
        store.set_timeout(timedelta(seconds=options.rpc_timeout))
        count = self._begun.setdefault(host, itertools.count())
        store = dist.PrefixStore(f"rpc_prefix_{next(count)}", store)
        store.set(f"name/{rank}", name)
        names = [store.get(f"name/{each}").decode() for each in range(size)]
        if len({*names}) < size:
            twice = next(each for each in names if names.count(each) > 1)
            raise RuntimeError(f"RPC worker name {twice} is not unique. Workers have the names {', '.join(names)}")
        workers = {each: rpc.WorkerInfo(name, each) for each, name in enumerate(names)}
        self._agents[host] = Agent(store, workers, rank, options.rpc_timeout)

    def is_set(self) -> bool:
        """Whether the rank that runs has an agent."""
        return self._host() in self._agents

    def current(self) -> Agent:
        """Raises RuntimeError, as torch does, if there is none."""
        agent = self._agents.get(self._host())
        if agent is None:
            raise RuntimeError("Current RPC agent is not set!")
        return agent

    def reset(self) -> None:
        """Let it have none."""
        self._agents.pop(self._host(), None)

    def all_gather(self, obj: Any, worker_names: Collection[str] | None = None, timeout: float = 0.0) -> dict[str, Any]:
        """Of its agent."""
        return self.current().all_gather(obj, worker_names)

    def install(self, patches: Patches) -> None:
        """Put it in the place of torch's."""
        rpc = self._rpc
        api = rpc.api

        def invoke(to: object, func: OpOverload, rpc_type: Any, *args: object, **kwargs: object) -> Any:
            _refuse(f"{'rpc_async' if 'async' in str(rpc_type).lower() else 'rpc_sync'}({to!r}, {_name(func)})")

        def remote(to: Any, func: OpOverload, *args: object, **kwargs: object) -> Any:
            _refuse(f"remote({to!r}, {_name(func)})")

        def refer(reference: object, value: Any, *args: object, **kwargs: object) -> None:
            _refuse(f"RRef({type(value).__name__})")

        patches.set(rpc, "init_rpc", self.init_rpc)
        patches.set(api.RRef, "__init__", refer)
        for owner in (rpc, api):
            patches.set(owner, "remote", remote)
        for name, value in {
            "_is_current_rpc_agent_set": self.is_set,
            "_get_current_rpc_agent": self.current,
            "_reset_current_rpc_agent": self.reset,
            "_destroy_rref_context": _nothing,
            "_cleanup_python_rpc_handler": _nothing,
            "_delete_all_user_and_unforked_owner_rrefs": _nothing,
            "_all_gather": self.all_gather,
            "_invoke_rpc": invoke,
        }.items():
            patches.set(api, name, value)


def _name(func: OpOverload) -> str:
    return str(getattr(func, "__qualname__", None) or getattr(func, "__name__", func))


def _nothing(*args: object) -> None:
    """There are no references to what others have."""


def install(patches: Patches, module: ModuleType) -> None:
    """What the module has where torch was built with it."""
    if hasattr(module, "init_rpc"):
        RemoteCalls(module).install(patches)
