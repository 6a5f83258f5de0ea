"""Results over inputs: said where NCCL does not take them, silent where a rank's part is at its own place or apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import kernbench

WORLD = 2


def _exchange(rank: int) -> torch.Tensor:
    x = torch.arange(4.0, device="cuda") + 10 * rank
    dist.all_to_all_single(x, x)
    return x


def _exchange_of_lists(rank: int) -> torch.Tensor:
    x = torch.arange(4.0, device="cuda") + 10 * rank
    dist.all_to_all(list(x.chunk(2)), list(x.chunk(2)))
    return x


def _gather_from(place: int) -> torch.Tensor:
    whole = torch.zeros(2 * WORLD, device="cuda")
    part = whole[2 * place : 2 * place + 2].fill_(place)
    dist.all_gather_into_tensor(whole, part)
    return whole


def _scatter_to(place: int) -> torch.Tensor:
    whole = torch.ones(2 * WORLD, device="cuda")
    dist.reduce_scatter_tensor(whole[2 * place : 2 * place + 2], whole)
    return whole


def _apart(rank: int) -> torch.Tensor:
    x = torch.arange(8.0, device="cuda")
    dist.all_to_all_single(x[:4], x[4:])
    return x


SAID = (_exchange, _exchange_of_lists, lambda rank: _gather_from(1 - rank), lambda rank: _scatter_to(0))
SILENT = (_gather_from, _scatter_to, _apart)


def _remarks(call: Callable[[int], torch.Tensor], backend: str, **options: object) -> list[str]:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group(backend)
        call(rank)

    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=WORLD)
        return list(ctx.simulation.remarks)


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize("call", SAID, ids=["exchange", "lists", "gather", "scatter"])
def test_what_nccl_does_not_do_in_place(call: Callable[[int], torch.Tensor], data: bool) -> None:
    found = _remarks(call, "nccl", enable_data=data)
    assert len(found) == 1
    assert "writes its output over its input" in found[0]
    assert "test_in_place_collectives.py:" in found[0]
    assert _remarks(call, "gloo", enable_data=data) == []


@pytest.mark.parametrize("call", SILENT, ids=["gather", "scatter", "apart"])
def test_parts_at_their_own_place(call: Callable[[int], torch.Tensor]) -> None:
    assert _remarks(call, "nccl") == []
