"""Tensors of the host in a group of NCCL: which of torch's errors a call raises, and what is said of ranks without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench

SEEN, UNSEEN = "Tensors must be CUDA and dense", "No backend type associated with device type cpu"


def _calls(rank: int) -> list[tuple[str, Callable[[], Any]]]:
    """Calls that all refuse, with the error by the tensors that torch looks at: none that are in lists of ranks."""
    x, room = torch.ones(4, device="cuda"), torch.ones(8, device="cuda")
    h, h_room = torch.ones(4), torch.ones(8)
    return [
        (SEEN, lambda: dist.all_gather([h, h.clone()], x)),
        (SEEN, lambda: dist.all_gather([x, h], x)),
        (UNSEEN, lambda: dist.all_gather([x, x.clone()], h)),
        (SEEN, lambda: dist.all_gather([torch.ones(3), torch.ones(5)], room[: 3 + 2 * rank])),
        (SEEN, lambda: dist.all_gather_into_tensor(h_room, x)),
        (SEEN, lambda: dist.all_gather_into_tensor(room, h)),
        (SEEN, lambda: dist.reduce_scatter(x, [h, h])),
        (UNSEEN, lambda: dist.reduce_scatter(h, [x, x])),
        (SEEN, lambda: dist.reduce_scatter_tensor(x, h_room)),
        (SEEN, lambda: dist.all_to_all([x, x.clone()], [h, h])),
        (SEEN, lambda: dist.all_to_all_single(h, x)),
        (UNSEEN, lambda: dist.send(h, 1) if rank == 0 else dist.recv(h, 0)),
    ]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize("data", [True, False])
def test_each_call_raises_torchs_error(isolation: str, data: bool) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        for number, (words, call) in enumerate(_calls(rank)):
            with pytest.raises(ValueError if words == SEEN else RuntimeError, match=words) as refused:
                call()
            assert refused.type is (ValueError if words == SEEN else RuntimeError), number

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)


@pytest.mark.parametrize("message", [False, True])
def test_ranks_that_use_no_gpu_are_told_once(message: bool) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((2,), rank + 1.0)
        for _ in range(2):
            if not message:
                dist.all_reduce(x)
            elif rank == 0:
                dist.send(x, 1)
            else:
                dist.recv(x, 0)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        (remark,) = ctx.simulation.remarks
    assert UNSEEN in remark
    assert "test_nccl_and_the_host.py" in remark
