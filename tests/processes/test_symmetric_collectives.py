"""Symmetric memory of ranks that are processes: its collectives, as with carriers; what reaches into peers is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

import kernbench
from tests.processes.outcomes import assert_equal, outcome

WORLD = 4
ops: Any = torch.ops.symm_mem


def _meet() -> tuple[torch.Tensor, Any]:
    buffer = symm_mem.empty(64, device="cuda")  # type: ignore[call-overload]
    return buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)  # type: ignore[arg-type]


def _collectives(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    buffer, handle = _meet()
    assert (handle.buffer_size, handle.has_multicast_support(), handle.multicast_ptr != 0) == (256, True, True)
    total = sum(range(1, WORLD + 1))
    for name in ("one_shot_all_reduce", "multimem_one_shot_all_reduce", "two_shot_all_reduce_", "multimem_all_reduce_"):
        buffer.fill_(rank + 1)
        assert getattr(ops, name)(buffer, "sum", group).eq(total).all()
    buffer.copy_(torch.arange(64.0))
    part = torch.empty(16, device="cuda")
    ops.reduce_scatter_out(buffer, group, False, part)
    assert torch.equal(part.cpu(), WORLD * torch.arange(64.0).chunk(WORLD)[rank])
    dist.all_reduce(part)  # on the group's own stream, beside
    torch.cuda.synchronize()


def _without_looks(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    buffer, _ = _meet()
    for name in ("two_shot_all_reduce_", "multimem_all_reduce_"):
        getattr(ops, name)(buffer, "sum", group)
    torch.cuda.synchronize()


@pytest.mark.parametrize("data", [True, False])
def test_collectives_are_those_of_carriers(data: bool, capsys: pytest.CaptureFixture[str]) -> None:
    worker = _collectives if data else _without_looks
    carriers, processes = (
        outcome(worker, isolation, WORLD, lambda: capsys.readouterr().out, enable_data=data)
        for isolation in ("carrier", "process")
    )
    assert_equal(processes, carriers)


def test_what_reaches_into_peers_is_refused() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        buffer, handle = _meet()
        assert handle.get_buffer(rank, (4,), torch.float32).data_ptr() == buffer.data_ptr()
        for reach in (
            lambda: handle.get_buffer(1 - rank, (4,), torch.float32), lambda: handle.buffer_ptrs,
            lambda: handle.get_signal_pad(1 - rank), handle.barrier, lambda: handle.put_signal(1 - rank),
        ):  # fmt: skip
            with pytest.raises(
                kernbench.KernbenchError, match=f"of rank {1 - rank} is out of reach: ranks that are processes"
            ):
                reach()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation="process")


@triton.jit
def _count(word_ptr, out_ptr):
    before = tl.load(word_ptr)
    tl.store(word_ptr, before + 1)
    tl.store(out_ptr, before)


def _reads_own_words(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    buffer, _ = _meet()
    buffer.fill_(float(rank))
    out = torch.empty(3, device="cuda")
    side = torch.cuda.Stream()
    _count[(1,)](buffer, out)
    _count[(1,)](buffer, out[1:])
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _count[(1,)](buffer, out[2:])
    torch.cuda.synchronize()
    print(out.tolist())


def test_kernels_that_read_what_others_of_their_rank_wrote_end(capsys: pytest.CaptureFixture[str]) -> None:
    carriers, processes = (
        outcome(_reads_own_words, isolation, WORLD, lambda: capsys.readouterr().out)
        for isolation in ("carrier", "process")
    )
    assert_equal(processes, carriers)
