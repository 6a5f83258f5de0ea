"""Pairs in which two users of one communicator, or of its signals, get in each other's way."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.order.kernel_programs import BLOCK, N, meet, one_shot


def _reduce(handle: Any, out: torch.Tensor, signals: Any) -> None:
    """An all-reduce over the buffers of one handle, with barriers on the signals of another."""
    one_shot[(N // BLOCK,)](
        handle.buffer_ptrs_dev, signals.signal_pad_ptrs_dev, out, rank=handle.rank, world=handle.world_size,
        SEM="acq_rel", SCOPE="sys", EXIT=True, BLOCK=BLOCK,
    )  # fmt: skip


def two_streams_on_one_communicator(fixed: bool) -> None:
    """sglang 31117: the buffer and the signals are the communicator's, and two streams use them at once."""
    buffer, handle = meet()
    side, outs = torch.cuda.Stream(), [torch.empty(N, device="cuda") for _ in range(2)]
    side.wait_stream(torch.cuda.current_stream())
    buffer.fill_(2)
    _reduce(handle, outs[0], handle)
    if fixed:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        buffer.fill_(3)
        _reduce(handle, outs[1], handle)
    torch.cuda.synchronize()


def signals_of_two_groups_that_collide(fixed: bool) -> None:
    """pytorch 192581: buffers of their own and one set of signals, so that one takes what was meant for the other."""
    (one, first), (other, second) = meet(), meet()
    side, outs = torch.cuda.Stream(), [torch.empty(N, device="cuda") for _ in range(2)]
    side.wait_stream(torch.cuda.current_stream())
    one.fill_(2)
    _reduce(first, outs[0], first)
    with torch.cuda.stream(side):
        other.fill_(3)
        _reduce(second, outs[1], second if fixed else first)
    torch.cuda.synchronize()


def order_of_collectives_decided_by_data(fixed: bool) -> None:
    """Megatron 107: each rank takes its tensors in the order of what it has of them."""
    rank = dist.get_rank()
    tensors = [torch.ones(8, device="cuda"), torch.ones(16, device="cuda")]
    loads = [rank, 1 - rank]
    for at in range(2) if fixed else sorted(range(2), key=loads.__getitem__):
        dist.all_reduce(tensors[at])


def gather_of_columns(fixed: bool) -> None:
    """pytorch 159548: NCCL moves memory, whatever strides say."""
    columns = torch.arange(64.0, device="cuda").reshape(8, 8).t()
    mine = columns.contiguous() if fixed else columns
    parts = [torch.empty(8, 8, device="cuda") for _ in range(2)] if dist.get_rank() == 0 else None
    dist.gather(mine, parts)


PROGRAMS = (
    two_streams_on_one_communicator, signals_of_two_groups_that_collide, order_of_collectives_decided_by_data,
    gather_of_columns,
)  # fmt: skip
