"""Memory that C++ asks for by itself, or that this machine does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kernbench

BEYOND = 1 << 44
"""Bytes that no machine has."""


def run(body: Callable[[], Any], *, data: bool, nprocs: int = 1, limit: str = "device") -> list[Any]:
    found: list[Any] = []
    with kernbench.simulate("dgx_h100", enable_data=data, memory_limit=limit) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl", rank=rank, world_size=nprocs)
            found.append(body())

        ctx.multiprocessing.spawn(worker, nprocs=nprocs)
    return found


@pytest.mark.parametrize("views", [False, True])
def test_buckets_of_ddp_are_on_the_gpu_as_soon_as_they_are_made(views):
    def body() -> list[int]:
        model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False)).cuda()
        replica = DistributedDataParallel(model, gradient_as_bucket_view=views)
        seen = [torch.cuda.memory_allocated()]
        for _ in range(2):
            replica(torch.ones(1, 512, device="cuda")).sum().backward()
            seen.append(torch.cuda.memory_allocated())
        return seen

    parameters = 2 * 512 * 512 * 4
    without = run(body, data=False, nprocs=2)
    assert without == run(body, data=True, nprocs=2)
    made, *after = without[0]
    assert made == 2 * parameters
    workspaces = 2 * 32 << 20  # of cuBLAS, in forward and in backward
    assert [round((each - workspaces) / parameters) for each in after] == [2 if views else 3] * 2


def test_ddp_that_does_not_fit_is_out_of_the_gpus_memory():
    def body() -> None:
        with torch.device("cuda"):
            model = nn.Linear(1 << 17, 1 << 17, bias=False, dtype=torch.bfloat16)  # 32 GiB
            fits = DistributedDataParallel(model)
            del fits
            other = nn.Linear(1 << 17, 1 << 16, bias=False, dtype=torch.bfloat16)
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 48\.00 GiB"):
            DistributedDataParallel(nn.ModuleList([model, other]))

    run(body, data=False, nprocs=2)


def test_the_host_has_address_space_where_there_is_no_data():
    def body() -> None:
        for made in (torch.empty(BEYOND, dtype=torch.uint8), torch.empty(BEYOND // 4, pin_memory=True)):
            made[:3] = 7
            assert made[:3].cuda().tolist() == [7, 7, 7]
            assert made.nbytes == BEYOND

    run(body, data=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(BEYOND, dtype=torch.uint8, device="cuda"),
        lambda: torch.zeros(BEYOND // 8, 2, dtype=torch.float32, device="cuda"),
        lambda: torch.ones(1 << 21, 1, device="cuda") * torch.ones(1, 1 << 21, device="cuda"),
        lambda: torch.empty(BEYOND, dtype=torch.uint8),
    ],
    ids=["empty", "zeros", "product", "host"],
)
def test_what_this_machine_cannot_hold_is_said_in_words(make):
    def body() -> None:
        with pytest.raises(
            kernbench.KernbenchError, match=r"needs 1\.638e\+04 GiB of this machine's memory.*--no-data"
        ):
            make()

    run(body, data=True, limit="off")


def test_so_it_is_of_a_contexts_tensors():
    with (
        kernbench.simulate("dgx_h100", memory_limit="off") as ctx,
        pytest.raises(kernbench.KernbenchError, match=r"ctx\.zeros needs .* of this machine's memory"),
    ):
        ctx.zeros(BEYOND)


def test_what_the_gpu_cannot_hold_is_said_first():
    def body() -> None:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(BEYOND, dtype=torch.uint8, device="cuda")

    run(body, data=True)
