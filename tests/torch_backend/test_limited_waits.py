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
