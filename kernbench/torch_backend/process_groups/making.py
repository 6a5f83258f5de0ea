"""How process groups come about: what replaces ``distributed_c10d._new_process_group_helper``.

``init_process_group`` and ``new_group`` are torch's own, with their checks, rendezvous and bookkeeping; only the object that
they make is ours, whatever backend name was asked for. Torch's helper would look for compiled-in backends.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d
from torch.distributed.constants import default_pg_timeout

from kernbench.errors import KernbenchError
from kernbench.simulation.matching.groups import Communicator
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.device.devices import HostDevices
from kernbench.torch_backend.process_groups import threads_as_ranks
from kernbench.torch_backend.process_groups.futures import Futures
from kernbench.torch_backend.process_groups.group import SimProcessGroup
from kernbench.torch_backend.relies_on import Reliance

c10d: Any = torch.distributed.distributed_c10d

RELIES_ON = (
    Reliance(
        "torch.distributed.distributed_c10d._new_process_group_helper", "what stands in its place is called with these",
        parameters=(
            "group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name", "backend_options", "timeout",
            "pg_tag", "device_id", "group_desc",
        ),
    ),
    Reliance("torch.distributed.distributed_c10d", "groups are noted with, and looked for in, what torch keeps", has=(
        "_world", "_get_default_group", "_check_valid_timeout",
    )),
    Reliance(
        "torch.distributed.distributed_c10d._register_pg_in_world", "it notes a group",
        parameters=("pg", "backend_name", "store", "group_name", "backend_config", "pg_tag", "add_to_default_tag"),
    ),
    Reliance(
        "torch.distributed.distributed_c10d._find_pg_by_ranks_and_tag", "it finds one", parameters=("tag", "ranks"),
    ),
    Reliance("torch.distributed.distributed_c10d.Backend._plugins", "backends that programs have registered",
             holds=lambda plugins: isinstance(plugins, dict)),
)  # fmt: skip

DEFAULT_TIMEOUTS = (default_pg_timeout, timedelta(minutes=10))
"""What torch fills in where a program gives no timeout (NCCL has its own)."""

MODELLED = frozenset({"gloo", "nccl", "mpi", "ucc", "xccl", "kernbench", "threaded", "undefined"})
"""Backends that are the simulated fabric; those that a program has registered, and "fake", are made as torch makes them."""


def _is_modelled(backend: str) -> bool:
    """Whether a backend, or what ``"cpu:gloo,cuda:nccl"`` names, is the simulated fabric."""
    own = {name.lower() for name in c10d.Backend._plugins} - MODELLED
    if backend.lower() in own:  # a name that is registered may have a colon itself
        return False
    parts = {part.rpartition(":")[2].lower() for part in backend.split(",")}
    if not parts & own:
        return True
    if parts & (MODELLED - own):
        raise KernbenchError(
            f"backend {backend!r}: {', '.join(sorted(parts & own))} is not of the simulation, the other is: a group of both "
            "cannot be made"
        )
    return False


def _require_known(backend: str) -> None:
    """Raise AssertionError, as torch does, of a name that is neither a backend of torch nor registered by the program."""
    for part in backend.split(","):
        _, colon, name = part.rpartition(":")
        if name.lower() in MODELLED or name.upper() in c10d.Backend._plugins:
            continue
        raise AssertionError(
            f"Unknown c10d backend type {name.upper()}" if colon else f"Unknown backend type {name.lower()}"
        )


class GroupMaker:
    """Makes the process groups of one world's ranks.

    Args:
        simulation: of the ranks.
        devices: theirs.
        futures: keeps what their works promise; None: for ranks that are greenlets, whose works have no futures.
    """

    def __init__(self, simulation: Simulation, devices: HostDevices, futures: Futures | None) -> None:
        self._simulation = simulation
        self._devices = devices
        self._futures = futures
        self._everybody = tuple(range(simulation.world.size))
        self._in_worlds: set[int] = set()  # ranks that have been in one

    def make(
        self,
        *,
        members: tuple[int, ...],
        rank: int,
        backend: str,
        timeout: timedelta,
        name: str,
        description: str = "undefined",
        store: object = None,
    ) -> SimProcessGroup:
        """This rank's object of the group of ``members`` (simulated ranks, in group order) that is called ``name``.

        Args:
            rank: its number in the group, -1 if it is none of them.
        """
        simulation = self._simulation
        mine = simulation.hosts.current_rank()
        is_world = members is self._everybody or members == self._everybody
        communicator = simulation.world.communicators.of(mine, name, members, is_world)
        made: SimProcessGroup = SimProcessGroup.made(
            simulation, self._devices.current(), self._futures, communicator, rank, backend, timeout,
            timeout not in DEFAULT_TIMEOUTS, name, description, store,
        )  # fmt: skip
        return made

    def say(self, sentence: str) -> None:
        """Have the summary name what is not modelled."""
        self._simulation.op_costs.unmodelled.say(sentence)

    def has_gpus(self) -> bool:
        """Whether the program of the rank that runs sees a GPU."""
        return bool(self._devices.current().visible)

    def ask_for(self, parent: Communicator, name: str, members: tuple[int, ...]) -> None:
        """This rank calls ``new_group``: see :meth:`.Communicators.ask_for`."""
        simulation = self._simulation
        rank = simulation.hosts.current_rank()
        simulation.world.communicators.ask_for(parent, name, rank, members, user_location())

    def has_been_in_a_world(self) -> bool:
        """Whether the rank that runs, which begins a default group, has had one before."""
        mine = self._simulation.hosts.current_rank()
        before = mine in self._in_worlds
        self._in_worlds.add(mine)
        return before

    def default_members(
        self, size: int, rank: int, store: Any, may_differ: bool = False
    ) -> tuple[tuple[int, ...], int]:
        """Which simulated ranks the default group has, in the order of the numbers that they gave themselves.

        ``may_differ``: others may have another number than their own, also where this one has not.
        """
        mine, world = self._simulation.hosts.current_rank(), len(self._everybody)
        if size == rank == -1:  # MPI assigns both
            return self._everybody, mine
        if not 0 <= rank < size:
            raise KernbenchError(f"init_process_group: rank {rank} is not one of a world of {size}")
        if size > world:
            raise KernbenchError(
                f"init_process_group(world_size={size}), but only {world} ranks are simulated: spawn as many as the world "
                "has; a program that starts processes for the others is run as kernbench run -- python PROGRAM"
            )
        all_run = self._simulation.world.communicators.folding is None
        if size == world and rank == mine and not (may_differ and all_run):
            return self._everybody, rank
        # Ranks number themselves in another way than spawn does, or may by now: they tell each other who is who. The store may
        # have been that of worlds before, whose entries are no answer.
        turn = store.add(f"kernbench/{size}/{rank}/worlds", 1)
        store.set(f"kernbench/{size}/{rank}/{turn}", str(mine))
        members = tuple(int(store.get(f"kernbench/{size}/{number}/{turn}")) for number in range(size))
        return (self._everybody if members == self._everybody else members), rank


def make_helper(current: Callable[[], GroupMaker], stock: Callable[..., Any]) -> Callable[..., Any]:
    """``_new_process_group_helper`` for the ranks of the ``current`` maker."""

    def new_process_group(
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: object,
        store: Any,
        group_name: str,
        backend_options: Any = None,
        timeout: Any = None,
        pg_tag: str | None = None,
        device_id: Any = None,
        group_desc: str | None = None,
        **later: object,
    ) -> tuple[Any, Any]:
        of_threads = threads_as_ranks.are_installed()
        if of_threads:
            current().say("threads that are ranks in a group of torch's own: their collectives take no time")
        if of_threads or not _is_modelled(str(backend)):
            return stock(
                group_size, group_rank, global_ranks_in_group, backend, store, group_name, backend_options, timeout,
                pg_tag, device_id, group_desc, **later,
            )  # fmt: skip
        wanted = [name for name, value in later.items() if value]
        if wanted:
            raise KernbenchError(f"init_process_group: {', '.join(wanted)} is not simulated: leave it out")
        maker, world = current(), c10d._world
        if "nccl" in str(backend).lower() and not maker.has_gpus():
            raise ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
        if group_name in world.pg_names.values():
            raise ValueError("The specified group name has already been created, please use a different group name")
        if device_id is not None and (device_id.index is None or device_id.type == "cpu"):
            raise ValueError("init_process_group device_id parameter must be an accelerator with an index")
        c10d._check_valid_timeout(timeout)
        if pg_tag not in (None, ""):
            existing = c10d._find_pg_by_ranks_and_tag(pg_tag, global_ranks_in_group)
            if existing:
                return existing, world.pg_map[existing][1]
        prefixed = (
            dist.PrefixStore(f"{group_name}/", store) if str(backend) != "mpi" or global_ranks_in_group else store
        )
        if global_ranks_in_group:
            default = c10d._get_default_group()
            members = tuple(default.communicator.ranks[rank] for rank in global_ranks_in_group)
            maker.ask_for(default.communicator, group_name, members)
            if default.rank() not in global_ranks_in_group:
                return c10d.GroupMember.NON_GROUP_MEMBER, None
        else:
            members, group_rank = maker.default_members(
                group_size, group_rank, prefixed, may_differ=maker.has_been_in_a_world()
            )
        config = str(c10d.BackendConfig(c10d.Backend(str(backend))))
        _require_known(str(backend))
        group = maker.make(
            members=members, rank=group_rank, backend=str(backend), timeout=timeout, name=group_name,
            description=group_desc or "undefined", store=prefixed,
        )  # fmt: skip
        if device_id:
            group.bound_device_id = device_id
        c10d._register_pg_in_world(
            group, backend_name=backend, store=prefixed, group_name=group_name, backend_config=config,
            add_to_default_tag=pg_tag in (None, ""), pg_tag=None if pg_tag in (None, "") else f"user:{pg_tag}",
        )  # fmt: skip
        return group, prefixed

    return new_process_group
