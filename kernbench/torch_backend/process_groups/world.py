"""What ``torch.distributed`` knows about process groups, per rank.

torch keeps it in one object, ``torch.distributed.distributed_c10d._world``, whose class it calls an extension point. A
rank's whole body runs on one OS thread, so a thread-local object in its place gives every rank its own.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch.distributed.distributed_c10d

from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.torch_backend.relies_on import Reliance

c10d: Any = torch.distributed.distributed_c10d


class _Known:
    """What one rank knows, as attributes of ``distributed_c10d._World``."""

    def __init__(self) -> None:
        self.default_pg: object = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, Any] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.pg_flight_recorder_hooks: dict[Any, Any] = {}  # since torch 2.15
        self.comms: list[Any] = []

    @property
    def pg_config_info(self) -> list[dict[str, Any]]:
        """What torch's own computes from the rest."""
        info: list[dict[str, Any]] = c10d._World.pg_config_info.fget(self)
        return info


class RankWorld(_Known, threading.local):
    """Stands in for ``distributed_c10d._World``: attributes of the rank whose thread asks."""


class ProcessWorld(_Known):
    """The same for a rank that has a process of its own, and may have threads."""


class GreenletWorld:
    """The same for ranks that share a thread.

    Args:
        hosts: name the caller.
    """

    def __init__(self, hosts: Hosts) -> None:
        known: weakref.WeakKeyDictionary[Host, _Known] = weakref.WeakKeyDictionary()
        object.__setattr__(self, "_mine", lambda: known.setdefault(hosts.current(), _Known()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._mine(), name, value)


def enter(group: Any, name: str) -> None:
    """Let torch know ``group``, of which the rank that runs is a member, under ``name``; the first one is its default group."""
    world = c10d._world
    backend = group.backend_name
    world.pg_map[group] = backend, group.get_group_store()
    world.pg_names[group] = name
    world.pg_group_ranks[group] = group.communicator.index
    world.pg_backend_config[group] = f"cpu:{backend},cuda:{backend}"
    world.pg_to_tag[group] = "" if world.default_pg is None else f"ptd:{name}"
    world.tags_to_pg.setdefault(world.pg_to_tag[group], []).append(group)
    if world.default_pg is None:
        world.default_pg = group


def _is_covered(world: object) -> bool:
    """Whether a rank's world has what torch's has."""
    return {name for name, value in vars(world).items() if isinstance(value, property)} <= {*dir(RankWorld())}


RELIES_ON = (
    Reliance("torch.distributed.distributed_c10d._world", "each use looks it up", looked_up_by=(
        "torch.distributed.distributed_c10d.init_process_group",
    )),
    Reliance("torch.distributed.distributed_c10d._World", "a rank's world has what it has", has=("pg_config_info",),
             holds=_is_covered),
)  # fmt: skip
