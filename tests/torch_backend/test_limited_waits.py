"""``Work.wait`` with a timeout: the host waits, and what has not begun by then has failed."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import kernbench

ERRORS = {
    "nccl": (dist.DistBackendError, "Work timed out in blocking wait: all_reduce has not begun 5000 ms"),
    "gloo": (RuntimeError, "Operation timed out! all_reduce has not begun 5000 ms"),
}


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_wait_with_a_timeout_waits_no_longer(backend: str, isolation: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group(backend)
        torch.cuda.set_device(rank)
        x = torch.ones(2, device="cuda" if backend == "nccl" else "cpu")
        if rank == 1:
            time.sleep(2)
        begin = time.monotonic()
        assert dist.all_reduce(x, async_op=True).wait(timedelta(seconds=5))
        assert time.monotonic() - begin == pytest.approx(0 if rank else 2, abs=0.1)  # virtual
        if rank == 1:
            time.sleep(20)
            return
        error, words = ERRORS[backend]
        begin = time.monotonic()
        with pytest.raises(error, match=words):
            dist.all_reduce(x, async_op=True).wait(timedelta(seconds=5))
        assert time.monotonic() - begin == pytest.approx(5, abs=0.1)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_barrier_is_nccls_and_its_communicator_is_aborted(isolation: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        dist.barrier()
        if rank == 1:
            return
        with pytest.raises(dist.DistBackendError, match="blocking wait: barrier has not begun 3000 ms"):
            dist.distributed_c10d._get_default_group().barrier().wait(timedelta(seconds=3))
        for again in (dist.barrier, lambda: dist.all_reduce(torch.ones(1, device="cuda"))):
            with pytest.raises(
                dist.DistBackendError, match=r"was aborted on rank 0\. Original reason.*barrier has not begun"
            ):
                again()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)


def test_the_default_timeout_of_nccl() -> None:
    def worker(rank: int) -> None:
        from torch.distributed.constants import default_pg_nccl_timeout

        assert default_pg_nccl_timeout == dist.distributed_c10d.default_pg_nccl_timeout == timedelta(minutes=10)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
