"""Pairs of programs: each has a race as it stands, and none when it is ``fixed``.

Every pair is a real bug's shape, on two ranks. The lines of the two accesses are marked ``# first`` and ``# second``; of a mark
with a word behind it, in the variant of that name.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

N = 1 << 12


def result_of_an_async_collective_read_before_wait(fixed: bool) -> None:
    x = torch.ones(N, device="cuda")
    work = dist.all_reduce(x, async_op=True)  # first
    if fixed:
        work.wait()
    x.sum()  # second
    work.wait()


def result_of_an_async_collective_read_on_the_host(fixed: bool) -> None:
    x = torch.ones(N)
    work = dist.all_reduce(x, async_op=True)  # first
    if fixed:
        work.wait()
    x.tolist()  # second
    work.wait()


def buffer_of_isend_reused(fixed: bool) -> None:
    rank = dist.get_rank()
    buffer = torch.full((N,), float(rank), device="cuda")
    if rank == 0:
        for _ in range(2):
            work = dist.isend(buffer, 1)  # first
            if fixed:
                work.wait()
            buffer.add_(1)  # second
    else:
        for _ in range(2):
            dist.recv(buffer, 0)


def memory_of_isend_made_free(fixed: bool) -> None:
    """Megatron 4047: an activation that is sent is "deallocated" by a ``data`` of one element, before it has gone."""
    rank = dist.get_rank()
    if rank == 0:
        output = torch.ones(N, device="cuda")
        work = dist.isend(output, 1)  # first
        assert work is not None
        if fixed:
            work.wait()
        output.data = torch.empty(1, device="cuda")  # second
        work.wait()
    else:
        received = torch.zeros(N, device="cuda")
        dist.recv(received, 0)


def tensor_changed_while_an_async_collective_reads_it(fixed: bool) -> None:
    x, every = torch.ones(N, device="cuda"), torch.empty(2 * N, device="cuda")
    work = dist.all_gather_into_tensor(every, x, async_op=True)  # first
    if fixed:
        work.wait()
    x.mul_(2)  # second
    work.wait()


def stream_that_does_not_wait(fixed: bool) -> None:
    side = torch.cuda.Stream()
    x = torch.ones(N, device="cuda")  # first
    if fixed:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2  # second
    torch.cuda.current_stream().wait_stream(side)
    y.sum()


def stream_that_waits_for_an_event_recorded_too_early(fixed: bool) -> None:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    x = torch.zeros(N, device="cuda")
    if not fixed:
        event.record()
    x.add_(1)  # first
    if fixed:
        event.record()
    side.wait_event(event)
    with torch.cuda.stream(side):
        x.sum()  # second
    torch.cuda.synchronize()


def memory_given_back_while_another_stream_reads_it(fixed: bool) -> None:
    side = torch.cuda.Stream()
    x = torch.ones(N, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2  # first
    if fixed:
        x.record_stream(side)
    del x
    z = torch.zeros(N, device="cuda")  # second
    torch.cuda.current_stream().wait_stream(side)
    y.add_(z)


def memory_given_back_before_the_streams_meet(fixed: bool) -> None:
    side = torch.cuda.Stream()
    x = torch.ones(N, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)  # first
    if fixed:
        torch.cuda.current_stream().wait_stream(side)
    del x
    torch.zeros(N, device="cuda")  # second
    torch.cuda.synchronize()


def host_looks_before_a_copy_has_ended(fixed: bool) -> None:
    x = torch.ones(N, device="cuda")
    there = x.to("cpu", non_blocking=True)  # first
    if fixed:
        torch.cuda.current_stream().synchronize()
    there.sum().item()  # second
    torch.cuda.synchronize()


def pinned_memory_filled_while_a_copy_reads_it(fixed: bool) -> None:
    batch, event = torch.zeros(N).pin_memory(), torch.cuda.Event()
    for step in range(2):
        if fixed and step:
            event.synchronize()
        batch.fill_(step)  # second
        x = batch.to("cuda", non_blocking=True)  # first
        event.record()
        x.sum()
    torch.cuda.synchronize()


def two_streams_that_write_one_buffer(fixed: bool) -> None:
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(N, device="cuda")
    one.wait_stream(torch.cuda.current_stream())
    other.wait_stream(torch.cuda.current_stream())
    half = N // 2
    with torch.cuda.stream(one):
        x[:half].add_(1)  # first
    with torch.cuda.stream(other):
        x[half if fixed else half - 1 :].add_(1)  # second
    torch.cuda.synchronize()


def collective_called_before_its_input_is_there(fixed: bool) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.ones(N, device="cuda")  # first
    if fixed:
        torch.cuda.current_stream().wait_stream(side)
    dist.all_reduce(x)  # second
    torch.cuda.synchronize()


PAIRS = (
    result_of_an_async_collective_read_before_wait,
    result_of_an_async_collective_read_on_the_host,
    buffer_of_isend_reused,
    memory_of_isend_made_free,
    tensor_changed_while_an_async_collective_reads_it,
    stream_that_does_not_wait,
    stream_that_waits_for_an_event_recorded_too_early,
    memory_given_back_while_another_stream_reads_it,
    memory_given_back_before_the_streams_meet,
    host_looks_before_a_copy_has_ended,
    pinned_memory_filled_while_a_copy_reads_it,
    two_streams_that_write_one_buffer,
    collective_called_before_its_input_is_there,
)
