"""Running a function as every rank of a stock program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

import kernbench

Ranks = Callable[..., list[Any]]


@pytest.fixture
def ranks() -> Ranks:
    """``ranks(body, world_size)``: what ``body()`` returns in each rank, inside an initialised default group."""

    def run(body: Callable[[], Any], world_size: int = 4, *, backend: str = "gloo", **spawn: Any) -> list[Any]:
        results: list[Any] = [None] * world_size

        def worker(rank: int) -> None:
            dist.init_process_group(backend)
            results[rank] = body()
            dist.destroy_process_group()

        with kernbench.simulate(seed=1) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=world_size, **spawn)
        return results

    return run
