"""Bugs of public issue trackers, told again as short programs: streams, captured graphs, and signals between ranks.

The line that a report must name ends with ``# here``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.distributed import _symmetric_memory as symm_mem

MANY = 1 << 20


def scaled_before_it_is_summed(fixed: bool) -> None:
    """A sum is begun, and what it is of divided at once."""
    gradients = torch.ones(MANY, device="cuda")
    work = dist.all_reduce(gradients, async_op=True)
    if fixed:
        work.wait()
    gradients.div_(2)  # here
    work.wait()


def clones_gathered_by_another_stream(fixed: bool) -> None:
    """Shards are cloned on one stream, and copied to what is gathered on another that does not wait."""
    side = torch.cuda.Stream()
    shard = torch.ones(MANY, device="cuda").clone()
    if fixed:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.empty(MANY, device="cuda").copy_(shard)  # here
        shard.record_stream(side)


def sum_waited_for_on_another_stream(fixed: bool) -> None:
    """``wait`` holds up the stream that it is called on, and no other."""
    values, side = torch.ones(MANY, device="cuda"), torch.cuda.Stream()
    work = dist.all_reduce(values, async_op=True)
    with torch.cuda.stream(side):
        work.wait()
    if fixed:
        torch.cuda.current_stream().wait_stream(side)
    values + 1  # here
    values.record_stream(side)


def batch_dropped_while_it_is_used(fixed: bool) -> None:
    """Each batch is made on a stream of its own, which gives the next one the memory of the last."""
    side, mine = torch.cuda.Stream(), torch.cuda.current_stream()
    total = torch.zeros(MANY, device="cuda")
    for step in range(3):
        with torch.cuda.stream(side):
            if fixed:
                side.wait_stream(mine)
            batch = torch.full((MANY,), float(step), device="cuda")  # here
        mine.wait_stream(side)
        total += batch
        del batch


def captured_on_a_stream_that_is_not(fixed: bool) -> None:
    """The library launches on a stream that it was given, and another one is captured."""
    graph, captured, given = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    with torch.cuda.graph(graph, stream=captured), torch.cuda.stream(captured if fixed else given):
        y.copy_(x)  # here
    graph.replay()


def workspace_in_the_pool_of_a_graph(fixed: bool) -> None:
    """A workspace that is first made during a capture gets memory that the graph has used before, and uses in each replay."""
    graph, x = torch.cuda.CUDAGraph(), torch.full((MANY,), 3.0, device="cuda")
    workspace = torch.empty(MANY, device="cuda") if fixed else None
    with torch.cuda.graph(graph):
        doubled = x * 2
        doubled.sum()
        del doubled
        if workspace is None:
            workspace = torch.empty(MANY, device="cuda")
    workspace.fill_(1.0)
    graph.replay()


@triton.jit
def _pushed(room, flag, values, color, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(room + at, tl.load(values + at))  # pushed
    tl.debug_barrier()
    tl.atomic_xchg(flag, color, sem="release", scope="sys")


@triton.jit
def _pulled(room, flag, out, color, N: tl.constexpr):
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != color:
        pass
    tl.debug_barrier()
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(room + at))


def color_that_a_capture_keeps(fixed: bool) -> None:
    """The host counts a flag's values, of which a captured graph has one: at the second replay it is up already."""
    world, rank = dist.group.WORLD.group_name, dist.get_rank()
    room, flag = symm_mem.empty(64, device="cuda"), symm_mem.empty(1, dtype=torch.int32, device="cuda")
    rooms, flags = symm_mem.rendezvous(room, world), symm_mem.rendezvous(flag, world)
    its_room = rooms.get_buffer(1 - rank, (64,), torch.float32)
    its_flag = flags.get_buffer(1 - rank, (1,), torch.int32)
    values, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")

    def lowered() -> None:
        flag.zero_()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    lowered()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if rank == 0:
            _pushed[(1,)](its_room, its_flag, values, 1, 64)
        else:
            _pulled[(1,)](room, flag, out, 1, 64)
    for _ in range(2):
        graph.replay()
        if fixed:
            torch.cuda.synchronize()
            dist.barrier()
            lowered()


def signal_of_another_group(fixed: bool) -> None:
    """Two groups meet on one buffer: rank 2 waits for rank 0's signal in one of them, and gets rank 1's in the other."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 2])]
    buffer = symm_mem.empty(64, device="cuda").fill_(0.0)
    rank = dist.get_rank()
    first, second = (
        symm_mem.rendezvous(buffer, group.group_name) if rank in (sender, 2) else None
        for sender, group in enumerate(groups)
    )
    channel = 1 if fixed else 0
    if rank == 1:
        second.put_signal(1, channel=channel)
    dist.barrier()
    if rank == 0:
        first.get_buffer(1, (64,), torch.float32).fill_(7.0)
        first.put_signal(1, channel=0)
    if rank == 2:
        first.wait_signal(0, channel=0)
        second.wait_signal(0, channel=channel)
    torch.cuda.synchronize()
    dist.barrier()


def duration_asked_for_too_early(fixed: bool) -> None:
    """Of events whose later one the GPU has not come to yet."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = torch.ones(4096, 4096, device="cuda")
    begin.record()
    x @ x
    end.record()
    if fixed:
        end.synchronize()
    print(begin.elapsed_time(end) > 0)


def event_waited_for_before_it_is_recorded(fixed: bool) -> None:
    """The wait of an event that has not been recorded yet waits for nothing."""
    maker, user = torch.cuda.Stream(), torch.cuda.Stream()
    x, made = torch.ones(MANY, device="cuda"), torch.cuda.Event()
    torch.cuda.synchronize()

    def make() -> None:
        with torch.cuda.stream(maker):
            x.mul_(3)  # here
            made.record()

    if fixed:
        make()
    with torch.cuda.stream(user):
        made.wait()
        y = x + 1
    if not fixed:
        make()
    torch.cuda.synchronize()
    assert y[0].item() in (2.0, 4.0)


def copied_by_a_stream_of_its_own(fixed: bool) -> None:
    """A batch is copied to the GPU on a transfer stream, which the default stream does not wait for."""
    side, host = torch.cuda.Stream(), torch.ones(MANY).pin_memory()
    batch = torch.zeros(MANY, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        batch.copy_(host, non_blocking=True)
    if fixed:
        torch.cuda.current_stream().wait_stream(side)
    batch.sum()  # here
    torch.cuda.synchronize()


def halves_copied_to_the_host(fixed: bool) -> None:
    """A copy that changes the type, too, is as little waited for as one that does not."""
    halves = torch.ones(MANY, device="cuda").to("cpu", dtype=torch.float16, non_blocking=True)
    if fixed:
        torch.cuda.synchronize()
    print(halves[0].item())  # here
