"""The collectives that the layers use, so that they are one code for real processes, simulated ranks and a single process.

A process group is always one of ``torch.distributed``: of NCCL with GPUs, of gloo processes, of simulated ranks (which need
not call ``init_process_group``), or :data:`SOLO`, that of a process that is alone, its own reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from kernbench.runtime_api import running_rank

Group = Any
"""A process group, or :data:`SOLO`."""

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


# -- who is there ----------------------------------------------------------------------------------------------------


def world_size() -> int:
    """Ranks of the world; 1 where no process group has been initialised."""
    if _torch_is_up():
        return dist.get_world_size()
    return running_rank.rank_count()


def world_rank() -> int:
    """This rank's number in the world."""
    if _torch_is_up():
        return dist.get_rank()
    return running_rank.rank_number()


def new_group(ranks: Sequence[int]) -> Group:
    """A group of ranks of the world. Every rank calls this for every group, in the same order."""
    if _torch_is_up():
        return dist.new_group(list(ranks))
    group = running_rank.group_of(ranks)
    return SOLO if group is None else group


def group_size(group: Group) -> int:
    """Members of a group."""
    return int(group.size())


def group_rank(group: Group) -> int:
    """This rank's number in a group."""
    return int(group.rank())


def group_ranks(group: Group) -> list[int]:
    """World ranks of a group, in group order."""
    if group is SOLO:
        return [0]
    simulated = getattr(group, "communicator", None)
    return dist.get_process_group_ranks(group) if simulated is None else list(simulated.ranks)


def can_differentiate() -> bool:
    """Whether a collective may run inside an autograd function. Not on a greenlet rank: it would switch to another rank
    in the middle of torch's C++ frames and with grad mode off. Carriers and real processes may."""
    return running_rank.has_thread()


def has_values() -> bool:
    """False in a simulation that models time only: what tensors hold does not matter there."""
    return running_rank.has_values()


# -- collectives -----------------------------------------------------------------------------------------------------


def all_reduce(tensor: torch.Tensor, op: str = SUM, *, group: Group, async_op: bool = False) -> Any:
    """Reduce ``tensor`` in place over the group."""
    if group is SOLO:
        return None
    return dist.all_reduce(tensor, op=_TORCH_OPS[op], group=group, async_op=async_op)


def all_gather_into_tensor(
    output: torch.Tensor, tensor: torch.Tensor, *, group: Group, async_op: bool = False
) -> object:
    """``output`` ``[n * d0, ...]`` = every member's ``tensor`` ``[d0, ...]``, in group order. Both contiguous."""
    if group is SOLO:
        output.copy_(tensor)
        return None
    return _ALL_GATHER(output, tensor, group=group, async_op=async_op)


def reduce_scatter_tensor(
    output: torch.Tensor, tensor: torch.Tensor, op: str = SUM, *, group: Group, async_op: bool = False
) -> Any:
    """``output`` ``[d0 / n, ...]`` = this member's share of the reduced ``tensor`` ``[d0, ...]``. Both contiguous."""
    if group is SOLO:
        output.copy_(tensor)
        return None
    return _REDUCE_SCATTER(output, tensor, op=_TORCH_OPS[op], group=group, async_op=async_op)


def broadcast(tensor: torch.Tensor, src: int, *, group: Group, async_op: bool = False) -> object:
    """Give every member the tensor of rank ``src`` of the world."""
    if group is SOLO:
        return None
    return dist.broadcast(tensor, src=src, group=group, async_op=async_op)
