"""vLLM's collectives of parts of several sizes, which it has of its own binding of NCCL alone: the same ones by torch's.

``vllm.distributed.device_communicators.cuda_communicator``. Experts with data parallelism gather tokens so.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor


def gather_by_torch(module: ModuleType) -> None:
    """Have a communicator whose binding is disabled, as there is no library to bind, use its group of torch."""
    communicator: Any = getattr(module, "CudaCommunicator", None)
    for name, by_torch in (
        ("all_gatherv", _gather), ("reduce_scatterv", _scatter), ("reduce_scatterv_into_output", _scatter_into),
    ):  # fmt: skip
        method = getattr(communicator, name, None)
        if callable(method):
            setattr(communicator, name, _unless_bound(method, by_torch))


def _unless_bound(method: Any, by_torch: Any) -> Any:
    @functools.wraps(method)
    def collective(self: Any, *args: Any, **kwargs: object) -> Any:
        bound = self.pynccl_comm is not None and not self.pynccl_comm.disabled
        return method(self, *args, **kwargs) if bound else by_torch(self.device_group, *args, **kwargs)

    return collective


def _gather(group: object, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    _only_rows(dim, "all_gatherv")
    given = [input_] if isinstance(input_, Tensor) else input_
    found = [_gathered(each, sizes, group) for each in given]
    return found[0] if isinstance(input_, Tensor) else found


def _scatter(group: object, input_: Tensor, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    _only_rows(dim, "reduce_scatterv")
    return _scattered(input_, sizes, group)


def _scatter_into(
    group: object, input_: Tensor, output: Tensor, dim: int = -1, sizes: list[int] | None = None
) -> Tensor:
    _only_rows(dim, "reduce_scatterv_into_output")
    if sizes is None or len(set(sizes)) == 1:
        dist.reduce_scatter_tensor(output, input_.contiguous(), group=group)
        return output
    return output.copy_(_scattered(input_, sizes, group))


def _only_rows(dim: int, name: str) -> None:
    if dim != 0:
        raise NotImplementedError(f"vllm: its stand-in has {name} of rows alone, and dim is {dim}")


def _gathered(part: Tensor, sizes: list[int] | None, group: Any) -> Tensor:
    """The parts of all, one after the other: those of several sizes are as many broadcasts, as of vLLM's binding."""
    world = dist.get_world_size(group)
    if sizes is None or len(set(sizes)) == 1:
        out = part.new_empty(world * len(part), *part.shape[1:])
        dist.all_gather_into_tensor(out, part, group=group)
        return out
    out = part.new_empty(sum(sizes), *part.shape[1:])
    parts = out.split(sizes)
    parts[dist.get_rank(group)].copy_(part)
    for at, each in enumerate(parts):
        dist.broadcast(each, group=group, group_src=at)
    return out


def _scattered(whole: Tensor, sizes: list[int] | None, group: Any) -> Tensor:
    """One's part of the sums: those of several sizes are as many reductions."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    whole = whole.contiguous()
    if sizes is None or len(set(sizes)) == 1:
        out = whole.new_empty(len(whole) // world, *whole.shape[1:])
        dist.reduce_scatter_tensor(out, whole, group=group)
        return out
    parts = [each.clone() for each in whole.split(sizes)]
    for at, each in enumerate(parts):
        dist.reduce(each, group=group, group_dst=at)
    return parts[rank]
