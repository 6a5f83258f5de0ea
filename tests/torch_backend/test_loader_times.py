"""Virtual times of ranks whose loaders have workers and a thread that pins memory: however slow the workers are."""

from __future__ import annotations

import multiprocessing
import random
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import kernbench


class _Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        sum(range(random.SystemRandom().randint(0, 3_000_000)))  # in the machine's time
        return torch.full((8,), float(index))


def _rank(rank: int, found: Any) -> None:
    torch.cuda.set_device(rank)
    total, seen = torch.zeros(8, device="cuda"), [time.perf_counter()]
    for batch in DataLoader(_Slow(), batch_size=2, num_workers=2, pin_memory=True):
        seen.append(time.perf_counter())
        total += batch.cuda(non_blocking=True).sum(0)
    torch.cuda.synchronize()
    found.put((rank, [*seen, time.perf_counter()], total[0].item()))


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_ranks_are_not_moved_on_while_they_wait_for_workers(isolation: str) -> None:
    found = multiprocessing.get_context("fork").SimpleQueue()
    with kernbench.simulate("dgx_h100") as ctx:
        ranks = ctx.multiprocessing.spawn(_rank, (found,), nprocs=2, isolation=isolation, join=False)
        (_, first, total), (_, second, other) = sorted(found.get() for _ in range(2))
        while not ranks.join():
            pass
    assert first == second
    assert total == other == sum(range(8))
