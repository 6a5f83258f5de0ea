"""Operations of symmetric memory wait for each other by the words of a buffer's signal pad: on one stream at a time."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symm_mem

import kernbench


def races(*, apart: bool, ordered: bool) -> list[str]:
    """What two sums of two streams are said to be, ``apart``: in buffers of their own."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        group = dist.group.WORLD.group_name
        buffers = []
        for _ in range(2 if apart else 1):
            buffer = symm_mem.empty(64, device="cuda").fill_(1.0)
            symm_mem.rendezvous(buffer, group)
            buffers.append(buffer)
        first, second = buffers if apart else buffers[0].split(32)
        streams = [torch.cuda.Stream() for _ in range(2)]
        for stream, buffer in zip(streams, (first, second), strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            if ordered:
                stream.wait_stream(streams[0])
            with torch.cuda.stream(stream):
                torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group)
        torch.cuda.synchronize()
        assert [first[0].item(), second[0].item()] == [2.0, 2.0]

    with kernbench.simulate("dgx_h100", world_size=2, races="warn") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        return [str(each) for each in ctx.simulation.order.races.found]


def test_two_streams_do_not_share_a_signal_pad():
    found = races(apart=False, ordered=False)
    assert found
    for each in found:
        assert "two_shot_all_reduce (its signals)" in each
        assert "let stream 2 wait for stream 1" in each


@pytest.mark.parametrize(("apart", "ordered"), [(True, False), (False, True)])
def test_two_streams_with_pads_of_their_own_or_one_after_the_other(apart, ordered):
    assert races(apart=apart, ordered=ordered) == []
