"""Programs whose timeline is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import kernbench
from kernbench.runtime_api.context import RuntimeContext


def layers(rank: int, world_size: int, torch: Any) -> None:
    """Compute beside an all-reduce, twice; then a broadcast on half of the ranks, a look at a value, a nap."""
    dist = torch.distributed
    dist.init_process_group(rank=rank, world_size=world_size)
    x, gradient = torch.randn(64, 64), torch.ones(100_000)
    for _ in range(2):
        work = dist.all_reduce(gradient, async_op=True)
        x = torch.relu(x @ x)
        work.wait()
    half = dist.new_group(range(0, world_size, 2))
    if rank % 2 == 0:
        dist.broadcast(gradient, src=0, group=half)
    x.sum().item()
    torch.sleep(1e-6 * (rank + 1))
    dist.barrier()


def exchanges(rank: int, world_size: int, torch: Any) -> None:
    """Point-to-point messages around a ring, collectives of several shapes, two groups at a time."""
    dist = torch.distributed
    dist.init_process_group(rank=rank, world_size=world_size)
    x, y = torch.ones(1024), torch.zeros(1024)
    works = [dist.isend(x, (rank + 1) % world_size), dist.irecv(y, (rank - 1) % world_size)]
    for work in works:
        work.wait()
    dist.all_to_all_single(y, x)
    dist.reduce(x, dst=3)
    pair = dist.new_group([0, 1])
    work = dist.all_reduce(x, async_op=True)
    if rank < 2:
        dist.all_reduce(y, group=pair)
    work.wait()


@pytest.fixture
def ctx() -> Iterator[RuntimeContext]:
    """A context in which 8 ranks have run ``layers``."""
    with kernbench.simulate(correlation_id="layers") as context:
        context.multiprocessing.spawn(layers, args=(8, context), nprocs=8)
        yield context
