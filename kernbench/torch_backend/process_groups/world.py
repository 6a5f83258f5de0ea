"""What ``torch.distributed`` knows about process groups, per rank.

torch keeps it in one object, ``torch.distributed.distributed_c10d._world``, whose class it calls an extension point. A
rank's whole body runs on one OS thread, so a thread-local object in its place gives every rank its own.

Relies on: ``distributed_c10d._world`` being looked up at each use, with the attributes below, and
``torch._C._distributed_c10d._set_thread_isolation_mode`` (the registry of group names in C++ is per thread then).
"""

from __future__ import annotations

import threading
from typing import Any

import torch.distributed.distributed_c10d

c10d: Any = torch.distributed.distributed_c10d


class RankWorld(threading.local):
    """Stands in for ``distributed_c10d._World``: attributes of the rank whose thread asks."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, Any] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.comms: list[Any] = []

    @property
    def pg_config_info(self) -> list[dict[str, Any]]:
        """What torch's own computes from the rest."""
        info: list[dict[str, Any]] = c10d._World.pg_config_info.fget(self)
        return info
