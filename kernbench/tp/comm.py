"""Which ``distributed`` a collective goes to, so that the layers are one code for all of them.

- ``torch.distributed`` where it is initialised: NCCL with GPUs, gloo processes, simulated ranks;
- else ``ctx.distributed`` of the running simulation, which needs no ``init_process_group``;
- else a world of one: a plain process is its own reference.

A group belongs to the library that made it, so calls go by the group's type and a program may mix them. Works have
``wait()`` in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from kernbench.errors import KernbenchError
from kernbench.runtime_api.current import current_context, current_owner
from kernbench.runtime_api.groups import ProcessGroup as SimulatedGroup
from kernbench.scheduler.carrier import current_carrier

Group = Any
"""A process group of torch or of a context, or :data:`SOLO`."""

SUM, MAX, AVG = "sum", "max", "avg"
_TORCH_OPS = {SUM: dist.ReduceOp.SUM, MAX: dist.ReduceOp.MAX, AVG: dist.ReduceOp.AVG}
# torch 2.13 deprecates the names on the right
_ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class SoloGroup:
    """The group of a process that is alone."""

    def size(self) -> int:
        """One."""
        return 1

    def rank(self) -> int:
        """Zero."""
        return 0

    def __repr__(self) -> str:
        return "<SoloGroup>"


SOLO = SoloGroup()


def _torch_is_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def _simulated() -> Any:
    """``ctx.distributed`` when the caller is a simulated rank."""
    ctx = current_context()
    if ctx is None or current_owner() is None:
        raise KernbenchError("this process group belongs to a simulated rank, and none is running here")
    return ctx.distributed


# -- who is there ----------------------------------------------------------------------------------------------------


def world_size() -> int:
    """Ranks of the world; 1 where no process group has been initialised."""
    if _torch_is_up():
        return dist.get_world_size()
    return 1 if current_owner() is None else int(_simulated().get_world_size())


def world_rank() -> int:
    """This rank's number in the world."""
    if _torch_is_up():
        return dist.get_rank()
    owner = current_owner()
    return 0 if owner is None or owner.rank is None else owner.rank


def new_group(ranks: Sequence[int]) -> Group:
    """A group of ranks of the world. Every rank calls this for every group, in the same order."""
    if _torch_is_up():
        return dist.new_group(list(ranks))
    return SOLO if current_owner() is None else _simulated().new_group(list(ranks))


def group_size(group: Group) -> int:
    """Members of a group."""
    return int(group.size) if isinstance(group, SimulatedGroup) else int(group.size())


def group_rank(group: Group) -> int:
    """This rank's number in a group."""
    return group.rank(world_rank()) if isinstance(group, SimulatedGroup) else int(group.rank())


def group_ranks(group: Group) -> list[int]:
    """World ranks of a group, in group order."""
    if group is SOLO:
        return [0]
    return list(group.ranks) if isinstance(group, SimulatedGroup) else dist.get_process_group_ranks(group)


def can_differentiate() -> bool:
    """Whether a collective may run inside an autograd function. Not on a greenlet rank: it would switch to another rank
    in the middle of torch's C++ frames and with grad mode off. Carriers and real processes may."""
    return current_owner() is None or current_carrier() is not None


def has_values() -> bool:
    """False in a simulation that models time only: what tensors hold does not matter there."""
    ctx = current_context()
    return ctx is None or ctx.enable_data


# -- collectives -----------------------------------------------------------------------------------------------------


def all_reduce(tensor: torch.Tensor, op: str = SUM, *, group: Group, async_op: bool = False) -> Any:
    """Reduce ``tensor`` in place over the group."""
    if group is SOLO:
        return None
    if isinstance(group, SimulatedGroup):
        return _simulated().all_reduce(tensor, op=op, group=group, async_op=async_op)
    return dist.all_reduce(tensor, op=_TORCH_OPS[op], group=group, async_op=async_op)


def all_gather_into_tensor(output: torch.Tensor, tensor: torch.Tensor, *, group: Group, async_op: bool = False) -> Any:
    """``output`` ``[n * d0, ...]`` = every member's ``tensor`` ``[d0, ...]``, in group order. Both contiguous."""
    if group is SOLO:
        output.copy_(tensor)
        return None
    if isinstance(group, SimulatedGroup):
        return _simulated().all_gather_into_tensor(output, tensor, group=group, async_op=async_op)
    return _ALL_GATHER(output, tensor, group=group, async_op=async_op)


def reduce_scatter_tensor(
    output: torch.Tensor, tensor: torch.Tensor, op: str = SUM, *, group: Group, async_op: bool = False
) -> Any:
    """``output`` ``[d0 / n, ...]`` = this member's share of the reduced ``tensor`` ``[d0, ...]``. Both contiguous."""
    if group is SOLO:
        output.copy_(tensor)
        return None
    if isinstance(group, SimulatedGroup):
        return _simulated().reduce_scatter_tensor(output, tensor, op=op, group=group, async_op=async_op)
    return _REDUCE_SCATTER(output, tensor, op=_TORCH_OPS[op], group=group, async_op=async_op)


def broadcast(tensor: torch.Tensor, src: int, *, group: Group, async_op: bool = False) -> Any:
    """Give every member the tensor of rank ``src`` of the world."""
    if group is SOLO:
        return None
    if isinstance(group, SimulatedGroup):
        return _simulated().broadcast(tensor, src=src, group=group, async_op=async_op)
    return dist.broadcast(tensor, src=src, group=group, async_op=async_op)
