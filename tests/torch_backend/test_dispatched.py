"""Modes of the program see collectives as the operators that they are with groups of C++."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch_backend.conftest import Ranks

WORLD = 2


class Seen(TorchDispatchMode):
    """Notes the operators of c10d."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def collectives() -> list[Any]:
    """Every collective once; what they give."""
    rank = dist.get_rank()
    x, whole, part = torch.full((2,), rank + 1.0), torch.zeros(4), torch.zeros(2)
    cells = [torch.zeros(2) for _ in range(WORLD)]
    dist.all_reduce(x)
    dist.broadcast(x, src=1)
    dist.reduce(x, dst=0)
    dist.all_gather(cells, x)
    dist.all_gather_single(whole, x)
    dist.reduce_scatter(part, cells)
    dist.reduce_scatter_single(part, whole)
    dist.all_to_all_single(whole, whole + rank)
    dist.all_to_all([*whole.split(2)], [*(whole + rank).split(2)])
    dist.scatter(part, cells if rank == 0 else None, src=0)
    dist.gather(part, cells if rank == 0 else None, dst=0)
    dist.barrier()
    work = dist.all_reduce(part, op=dist.ReduceOp.MAX, async_op=True)
    assert work is not None
    work.wait()
    return [tensor.tolist() for tensor in (x, whole, part, *cells)]


SEEN = [
    "allreduce_", "broadcast_", "reduce_", "allgather_", "_allgather_base_", "reduce_scatter_", "_reduce_scatter_base_",
    "alltoall_base_", "alltoall_", "scatter_", "gather_", "barrier", "allreduce_",
]  # fmt: skip


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_mode_sees_each_call_once_and_changes_neither_values_nor_times(ranks: Ranks, backend: str) -> None:
    def body() -> Any:
        def timed() -> tuple[list[Any], float]:
            begin = time.monotonic()
            return collectives(), time.monotonic() - begin

        with torch.device("cuda" if backend == "nccl" else "cpu"):
            collectives()  # the first of a group make its communicator
            unseen, took = timed()
            with Seen() as mode:
                seen, took_seen = timed()
        return mode.names, seen == unseen, took_seen == pytest.approx(took, rel=1e-9)

    assert ranks(body, WORLD, backend=backend) == [(SEEN, True, True)] * WORLD


def test_coalesced_calls_are_one_operator(ranks: Ranks) -> None:
    def body() -> Any:
        given, got = [torch.ones(2), torch.ones(3)], [torch.zeros(4), torch.zeros(6)]
        with Seen() as mode:
            with dist._coalescing_manager(async_ops=True) as manager:
                for tensor, output in zip(given, got, strict=True):
                    dist.all_gather_into_tensor(output, tensor)
            manager.wait()
        return mode.names, [output.tolist() for output in got]

    assert ranks(body, WORLD) == [(["allgather_into_tensor_coalesced_"], [[1.0] * 4, [1.0] * 6])] * WORLD


def test_comm_debug_mode_counts_the_collectives_of_fsdp2(ranks: Ranks) -> None:
    def body() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        with CommDebugMode() as mode:
            model(torch.ones(2, 4, device="cuda")).sum().backward()
        counts = mode.get_comm_counts()
        return counts[torch.ops.c10d._allgather_base_], counts[torch.ops.c10d._reduce_scatter_base_], len(counts)

    assert ranks(body, WORLD, backend="nccl") == [(4, 2, 2)] * WORLD


def test_what_a_mode_answers_itself_is_the_answer(ranks: Ranks) -> None:
    class Silent(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.c10d.allreduce_.default:
                return args[0], kept.boxed()
            return func(*args, **(kwargs or {}))

    def body() -> Any:
        nonlocal kept
        kept = dist.barrier(async_op=True)
        x = torch.ones(2)
        with Silent():
            dist.all_reduce(x)
        return x.tolist()

    kept: Any = None
    assert ranks(body, 1) == [[1.0, 1.0]]
