"""Distributed checkpoints of a job not all of whose ranks are run: planned for all, written by those that run.

The coordinator gathers a plan from every rank, and of an absent one gets a copy of its representative's
(:mod:`.folding`). What the absent one would plan follows from where its shards are: its coordinate in the
mesh of each DTensor. The same holds for what it would have written. What a rank that runs has too (replicas, objects) is
planned for that one, which is there to write it; the files of absent ranks are named in the metadata, and are not there.

``torch.distributed.checkpoint`` takes half as long to import as torch: what is needed of it is imported where it is used,
by a program that has imported it.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from kernbench.simulation.ranks.folding import Folding
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

ITEMS = "torch.distributed.checkpoint.planner_helpers"
GATHERING = "torch.distributed.checkpoint.utils"

RELIES_ON = (
    Reliance(
        f"{ITEMS}._create_write_items_for_dtensor", "what a rank writes of a DTensor",
        looked_up_by=("torch.distributed.tensor.DTensor.__create_write_items__",), parameters=("fqn", "tensor"),
    ),
    Reliance(
        f"{GATHERING}._DistWrapper.gather_object", "the coordinator gets plans and results with it",
        looked_up_by=(f"{GATHERING}._DistWrapper.reduce_scatter",), parameters=("self", "object"),
    ),
    Reliance(
        "torch.distributed.tensor._utils._compute_local_shape_and_global_offset", "where the shard at a coordinate is",
    ),
)  # fmt: skip

Shard = tuple[torch.Size, torch.Size]
"""Offsets and sizes."""


class AbsentPlans:
    """What the ranks that are not run have of the DTensors that are saved.

    Args:
        folding: who runs, and for whom.
    """

    def __init__(self, folding: Folding, remark: Callable[[str], object]) -> None:
        self._folding = folding
        self._remark = remark
        self._shards: dict[tuple[int, str, Any], dict[int, Shard]] = {}

    def saved(self, rank: int, fqn: str, tensor: Any, offset: object) -> None:
        """``rank`` is to write its shard, at ``offset``, of a DTensor: note where the shards are of those it stands for."""
        from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

        mesh, shape = tensor.device_mesh, tensor.shape
        there: dict[int, Shard] = {}
        for place in (mesh.mesh >= 0).nonzero():
            coordinate = place.tolist()
            other = int(mesh.mesh[tuple(coordinate)])
            if other != rank and self._folding.representative(other) == rank:
                sizes, offsets = _compute_local_shape_and_global_offset(
                    shape, mesh.shape, coordinate, tensor.placements
                )
                there[other] = torch.Size(offsets), torch.Size(sizes)
        self._shards[rank, fqn, offset] = there

    def gathered(self, rank: int, members: Sequence[int], found: list[Any]) -> list[Any]:
        """What the coordinator ``rank`` has gathered of ``members``, with what those would have given that are not run.

        Raises :class:`~kernbench.simulation.ranks.folding.StandInNeededError` if that does not follow from the shards.
        """
        runs = self._folding.runs
        live = {
            index for member, given in zip(members, found, strict=True) if runs(member) for index in _indices(given)
        }
        result = list(found)
        for at, member in enumerate(members):
            if not runs(member):
                result[at] = self._given_by(rank, member, found[at], live)
        return result

    def _given_by(self, rank: int, absent: int, copied: object, live: set[Any]) -> Any:
        from torch.distributed.checkpoint.planner import SavePlan
        from torch.distributed.checkpoint.storage import WriteResult

        if isinstance(copied, SavePlan):
            moved = [self._moved(rank, absent, item, live) for item in copied.items]
            return dataclasses.replace(copied, items=[item for item in moved if item is not None])
        if isinstance(copied, list) and copied and all(isinstance(each, WriteResult) for each in copied):
            moved = [self._moved(rank, absent, result, live) for result in copied]
            files = [
                _in_file_of(absent, self._folding.representative(absent), each) for each in moved if each is not None
            ]
            if files:
                here = user_location()
                self._remark(
                    f"checkpoint at {here.file}:{here.line}: shards of ranks that are not run are in its metadata, and not in "
                    "its files: it is for a run with the same ranks"
                )
            return files
        return copied

    def _moved(self, rank: int, absent: int, item: Any, live: set[Any]) -> Any:
        """A representative's write as the absent rank's; None if a rank that runs writes the same."""
        from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

        shards = self._shards.get((self._folding.representative(absent), item.index.fqn, item.index.offset))
        if shards is None:
            if isinstance(item, WriteItem) and item.type is WriteItemType.SHARD:
                here = user_location()
                self._folding.need(
                    rank,
                    (absent,),
                    f"the checkpoint at {here.file}:{here.line}: where the shards of {item.index.fqn} are",
                )
            return None
        if absent not in shards:
            return None
        offsets, sizes = shards[absent]
        index = dataclasses.replace(item.index, offset=offsets)
        if index in live:
            return None
        if not isinstance(item, WriteItem):
            return dataclasses.replace(item, index=index)
        data: Any = item.tensor_data
        chunk = dataclasses.replace(data.chunk, offsets=offsets, sizes=sizes)
        return dataclasses.replace(item, index=index, tensor_data=dataclasses.replace(data, chunk=chunk))


def _indices(given: object) -> list[Any]:
    from torch.distributed.checkpoint.planner import SavePlan, WriteItem
    from torch.distributed.checkpoint.storage import WriteResult

    items = given.items if isinstance(given, SavePlan) else given if isinstance(given, list) else ()
    return [item.index for item in items if isinstance(item, (WriteItem, WriteResult))]


def _in_file_of(absent: int, representative: int, result: Any) -> Any:
    """A result in the file that the absent rank would have written."""
    stored = result.storage_data
    path = getattr(stored, "relative_path", None)
    if path is None:
        return result
    path = path.replace(f"__{representative}_", f"__{absent}_", 1)
    return dataclasses.replace(result, storage_data=dataclasses.replace(stored, relative_path=path))


def _plans(simulation: Simulation) -> AbsentPlans | None:
    """Those of a simulation; None if all ranks are run."""
    folding = simulation.hosts.folding
    if folding is None:
        return None
    plans = _of_folding.get(folding)
    if plans is None:
        plans = _of_folding[folding] = AbsentPlans(folding, simulation.remarks.setdefault)
    return plans


_of_folding: weakref.WeakKeyDictionary[Folding, AbsentPlans] = weakref.WeakKeyDictionary()


def install_items(patches: Patches, module: ModuleType) -> None:
    """Note where the shards of ranks that are not run are, in :data:`ITEMS`."""
    simulation = bound_devices().simulation
    hosts, plans, create = simulation.hosts, _plans(simulation), module._create_write_items_for_dtensor
    if plans is None:
        return

    def create_for_dtensor(fqn: str, tensor: torch.Tensor) -> Any:
        item = create(fqn, tensor)
        plans.saved(hosts.current_rank(), fqn, tensor, item.index.offset)
        return item

    patches.set(module, "_create_write_items_for_dtensor", create_for_dtensor)


def install_gathering(patches: Patches, module: ModuleType) -> None:
    """Have checkpoints planned for all ranks, in :data:`GATHERING`."""
    simulation = bound_devices().simulation
    hosts, plans, gather = simulation.hosts, _plans(simulation), module._DistWrapper.gather_object
    if plans is None:
        return

    def gather_object(self: Any, object: object) -> Any:
        found = gather(self, object)
        if found is None or not self.use_dist:
            return found
        members = dist.get_process_group_ranks(self.group or dist.group.WORLD)
        return plans.gathered(hosts.current_rank(), members, found)

    patches.set(module._DistWrapper, "gather_object", gather_object)
