"""A tensor whose memory the program drops, or keeps elsewhere, while a library is at work on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import kernbench
from tests.order.stream_programs import N, memory_of_isend_made_free
from tests.order.test_streams import races_of


def _send(drop: Callable[[torch.Tensor], object], sums: list[float]) -> None:
    if dist.get_rank() == 0:
        output = torch.ones(N, device="cuda")
        work = dist.isend(output, 1)
        assert work is not None
        kept = drop(output)
        work.wait()
        del kept
    else:
        received = torch.zeros(N, device="cuda")
        dist.recv(received, 0)
        sums.append(received.sum().item())


def _replace(output: torch.Tensor) -> None:
    output.data = torch.empty(1, device="cuda")


def _replace_with_a_view_kept(output: torch.Tensor) -> torch.Tensor:
    view = output.view(2, -1)
    output.data = torch.empty(1, device="cuda")
    return view


@pytest.mark.parametrize("schedule", ["default", "r.0=1"], ids=["sender first", "receiver first"])
def test_a_message_has_the_shape_and_the_memory_of_the_call(schedule: str) -> None:
    """Without the detector the receiver gets what was there when the sender called."""

    def worker(rank: int) -> None:
        dist.init_process_group()
        torch.cuda.set_device(rank)
        _send(_replace, sums)

    sums: list[float] = []
    with kernbench.simulate("dgx_h100", schedule=schedule) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert sums == [N]


def test_memory_that_is_dropped_before_the_wait_is_reported() -> None:
    (race,) = races_of(memory_of_isend_made_free, False).found
    assert "a new .data frees it, at " in str(race)
    assert race.remedy.startswith("call wait() on the work that send at ")


@pytest.mark.parametrize("drop", [_replace_with_a_view_kept, lambda output: None], ids=["view", "kept"])
def test_memory_that_somebody_has_is_not_free(drop: Callable[[torch.Tensor], object]) -> None:
    assert races_of(_send, drop, []).found == []
