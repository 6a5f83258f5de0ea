"""Pairs of programs that replay CUDA graphs: each has a race as it stands, and none when it is ``fixed``.

The lines that meet have marks, which :data:`PAIRS` names: of a kernel, its own line; of what was captured, the captured one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

from tests.order.kernel_programs import N, meet, reduce_by_kernel


@triton.jit
def _reduce_after_count(
    buffers, counters, calls, out, call, COUNTED: tl.constexpr, rank: tl.constexpr, world: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Every rank counts its peers' words up, and goes on when its own have come to the number of the call."""
    offsets = tl.arange(0, BLOCK)
    if COUNTED:
        call = tl.load(calls)
    counters = counters.to(tl.pointer_type(tl.uint64))
    for peer in range(world):
        there = tl.load(counters + peer).to(tl.pointer_type(tl.int32)) + rank
        tl.atomic_add(there, 1, sem="release", scope="sys")
    here = tl.load(counters + rank).to(tl.pointer_type(tl.int32))
    for peer in range(world):
        while tl.atomic_add(here + peer, 0, sem="acquire", scope="sys") < call:
            pass
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in range(world):
        buffer = tl.load(buffers.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(buffer + offsets)  # load behind the count
    tl.store(out + offsets, total)


def captured(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of what ``body`` enqueues."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def flag_of_a_call_frozen_in_a_graph(fixed: bool) -> None:
    """The number of the call that flags are compared with is an argument: in a graph it is the first one's for ever."""
    buffer, handle = meet()
    counters = symm_mem.empty(64, dtype=torch.int32, device="cuda")
    theirs = symm_mem.rendezvous(counters, dist.group.WORLD)  # type: ignore[arg-type]
    counters.zero_()
    theirs.barrier()
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    calls = torch.zeros(1, dtype=torch.int32, device="cuda")

    def reduce() -> None:
        calls.add_(1)
        buffer.copy_(x)  # copy into the frozen one
        _reduce_after_count[(1,)](
            handle.buffer_ptrs_dev, theirs.buffer_ptrs_dev, calls, out, 1, COUNTED=fixed, rank=handle.rank,
            world=handle.world_size, BLOCK=N,
        )  # fmt: skip

    graph = captured(reduce)
    for _ in range(3):
        graph.replay()
        handle.barrier()  # no rank writes before all have read
    torch.cuda.synchronize()


def buffer_of_a_graph_used_again_by_its_next_replay(fixed: bool) -> None:
    """Replay after replay has one buffer: without a barrier at the end, the next one writes while a peer reads."""
    buffer, handle = meet()
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")

    def reduce() -> None:
        buffer.copy_(x)  # copy for the next replay
        reduce_by_kernel(handle, out, exit=fixed)

    graph = captured(reduce)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()


def input_of_a_graph_overwritten_on_another_stream(fixed: bool) -> None:
    side, x, y = torch.cuda.Stream(), torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    graph = captured(lambda: y.copy_(x * 2))  # captured product
    graph.replay()
    if fixed:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.fill_(1)  # next input
    torch.cuda.synchronize()


def output_of_a_graph_read_while_it_is_replayed_again(fixed: bool) -> None:
    side, x, y = torch.cuda.Stream(), torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    graph = captured(lambda: y.copy_(x))  # captured copy
    for _ in range(2):
        graph.replay()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y.sum()  # sum of the output
        if fixed:
            torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def branch_of_a_graph_that_begins_too_early(fixed: bool) -> None:
    side, event, x = torch.cuda.Stream(), torch.cuda.Event(), torch.zeros(N, device="cuda")

    def branches() -> None:
        if not fixed:
            event.record()
        x.add_(1)  # before the branch
        if fixed:
            event.record()
        side.wait_event(event)
        with torch.cuda.stream(side):
            x.sum()  # on the branch
        torch.cuda.current_stream().wait_stream(side)

    graph = captured(branches)
    graph.replay()
    torch.cuda.synchronize()


def pinned_input_of_a_graph_filled_while_it_is_copied(fixed: bool) -> None:
    batch, x = torch.zeros(N).pin_memory(), torch.zeros(N, device="cuda")
    graph = captured(lambda: x.copy_(batch, non_blocking=True))  # captured copy of the batch
    for step in range(2):
        if fixed and step:
            torch.cuda.synchronize()
        batch.fill_(step)  # fill the batch
        graph.replay()
    torch.cuda.synchronize()


def graph_replayed_on_a_stream_that_does_not_wait(fixed: bool) -> None:
    side, x = torch.cuda.Stream(), torch.zeros(N, device="cuda")
    graph = captured(lambda: x.add_(1))  # captured sum
    x.fill_(3)  # fill before the replay
    if fixed:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.replay()
    torch.cuda.synchronize()


PAIRS = {
    flag_of_a_call_frozen_in_a_graph: ("copy into the frozen one", "load behind the count"),
    buffer_of_a_graph_used_again_by_its_next_replay: ("read", "copy for the next replay"),
    input_of_a_graph_overwritten_on_another_stream: ("captured product", "next input"),
    output_of_a_graph_read_while_it_is_replayed_again: ("captured copy", "sum of the output"),
    branch_of_a_graph_that_begins_too_early: ("before the branch", "on the branch"),
    pinned_input_of_a_graph_filled_while_it_is_copied: ("captured copy of the batch", "fill the batch"),
    graph_replayed_on_a_stream_that_does_not_wait: ("captured sum", "fill before the replay"),
}
"""The programs, and the marks of the two lines that meet."""
