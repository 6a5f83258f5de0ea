"""Pairs of programs with Triton kernels over memory that ranks share: each has a race as it stands, and none when ``fixed``.

The lines that meet have marks, which :data:`PAIRS` names.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

N, BLOCK = 1024, 256


@triton.jit
def _barrier(signals, slot, rank: tl.constexpr, world: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr):
    """Every program raises a word at its peers' programs of the same number, and takes down theirs."""
    put: tl.constexpr = "relaxed" if SEM == "relaxed" else "release"
    take: tl.constexpr = "relaxed" if SEM == "relaxed" else "acquire"
    signals = signals.to(tl.pointer_type(tl.uint64))
    for peer in range(world):
        there = tl.load(signals + peer).to(tl.pointer_type(tl.int32)) + slot * world + rank
        while tl.atomic_cas(there, 0, 1, sem=put, scope=SCOPE) != 0:
            pass
    here = tl.load(signals + rank).to(tl.pointer_type(tl.int32)) + slot * world
    for peer in range(world):
        while tl.atomic_cas(here + peer, 1, 0, sem=take, scope=SCOPE) != 1:
            pass


@triton.jit
def one_shot(
    buffers, signals, out, rank: tl.constexpr, world: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr,
    EXIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    _barrier(signals, block, rank, world, SEM, SCOPE)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in range(world):
        buffer = tl.load(buffers.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(buffer + offsets)  # read
    tl.store(out + offsets, total)
    if EXIT:
        _barrier(signals, block, rank, world, SEM, SCOPE)


@triton.jit
def _one_shot_by_count(buffers, counters, out, call, rank: tl.constexpr, world: tl.constexpr, BLOCK: tl.constexpr):
    """The barrier counts up: the k-th call waits until every peer's has come to ``call``."""
    offsets = tl.arange(0, BLOCK)
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
        total += tl.load(buffer + offsets)  # counted
    tl.store(out + offsets, total)


@triton.jit
def _histogram(x, counts, n, ATOMIC: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x + offsets, mask=offsets < n, other=0))
    if ATOMIC:
        tl.atomic_add(counts, total, sem="relaxed")
    else:
        tl.store(counts, tl.load(counts) + total)  # sum


@triton.jit
def _double(x, y, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets) * 2)  # double


@triton.jit
def _hand_over(x, buffers, signals, out, rank: tl.constexpr, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
    """Rank 0 puts a tile where rank 1 waits for it; one thread says that it is there, and all have put it there."""
    offsets = tl.arange(0, BLOCK)
    buffer = tl.load(buffers.to(tl.pointer_type(tl.uint64)) + 1).to(tl.pointer_type(tl.float32))
    flag = tl.load(signals.to(tl.pointer_type(tl.uint64)) + 1).to(tl.pointer_type(tl.int32)) + 1024  # no barrier's word
    if rank == 0:
        tl.store(buffer + offsets, tl.load(x + offsets))  # put
        if BARRIER:
            tl.debug_barrier()
        tl.atomic_xchg(flag, 1, sem="release", scope="sys")
    else:
        while tl.atomic_cas(flag, 1, 0, sem="acquire", scope="sys") != 1:
            pass
        tl.store(out + offsets, tl.load(buffer + offsets))  # got


@triton.jit
def _reverse(x, scratch, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(scratch + offsets, tl.load(x + offsets))  # written first
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + offsets, tl.load(scratch + (BLOCK - 1 - offsets)))  # read backwards


_MEET: tl.constexpr = tl.constexpr("""{
    .reg .u32 %lane, %seen; .reg .u64 %at, %there; .reg .pred %first, %one, %mine;
    mov.u32 %lane, %tid.x;
    setp.eq.u32 %first, %lane, 0;
    setp.ne.or.u32 %one, $4, 1, %first;
    @%one fence.acq_rel.sys;
    setp.lt.u32 %mine, %lane, $3;
    @!%mine bra met;
    mad.wide.u32 %at, %lane, 8, $1;
    ld.global.u64 %there, [%at];
    mad.wide.u32 %there, $2, 4, %there;
    st.relaxed.sys.global.u32 [%there+4096], 1;
    mad.wide.u32 %at, $2, 8, $1;
    ld.global.u64 %there, [%at];
    mad.wide.u32 %there, %lane, 4, %there;
    again: ld.relaxed.sys.global.u32 %seen, [%there+4096];
    setp.ne.u32 %mine, %seen, 1;
    @%mine bra again;
    met: setp.ne.or.u32 %one, $4, 2, %first;
    @%one fence.acq_rel.sys;
    bar.sync 0;
    mov.u32 $0, 0;
}""")
"""Every lane raises a word at one peer and waits for that peer's: registers 1 to 4 are the words' tables, the rank, the world,
and at which fence the first lane alone is (1: before, 2: behind)."""


@triton.jit
def _meet_by_lanes(x, buffers, signals, out, rank, world: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    buffers = buffers.to(tl.pointer_type(tl.uint64))
    mine = tl.load(buffers + rank).to(tl.pointer_type(tl.float32))
    tl.store(mine + offsets, tl.load(x + offsets))  # put before the fence
    tl.debug_barrier()
    tl.inline_asm_elementwise(_MEET, "=r,l,r,r,r", [signals, rank, world, ALONE], tl.int32, is_pure=False, pack=1)
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in range(world):
        buffer = tl.load(buffers + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(buffer + offsets)  # got after the fence
    tl.store(out + offsets, total)


def meet(numel: int = N) -> tuple[torch.Tensor, Any]:
    buffer = symm_mem.empty(numel, dtype=torch.float32, device="cuda")
    handle = symm_mem.rendezvous(buffer, dist.group.WORLD)  # type: ignore[arg-type]
    buffer.fill_(1)
    handle.barrier()
    return buffer, handle


def reduce_by_kernel(
    handle: Any, out: torch.Tensor, sem: str = "acq_rel", scope: str = "sys", exit: bool = True
) -> None:
    one_shot[(N // BLOCK,)](
        handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, rank=handle.rank, world=handle.world_size, SEM=sem,
        SCOPE=scope, EXIT=exit, BLOCK=BLOCK,
    )  # fmt: skip


def exit_barrier_missing(fixed: bool) -> None:
    buffer, handle = meet()
    out = torch.empty_like(buffer)
    reduce_by_kernel(handle, out, exit=fixed)
    buffer.fill_(2)  # fill too early
    torch.cuda.synchronize()


def start_barrier_relaxed(fixed: bool) -> None:
    buffer, handle = meet()
    out = torch.empty_like(buffer)
    buffer.fill_(2)  # fill before relaxed
    reduce_by_kernel(handle, out, sem="acq_rel" if fixed else "relaxed")
    torch.cuda.synchronize()


def scope_of_one_gpu_only(fixed: bool) -> None:
    buffer, handle = meet()
    out = torch.empty_like(buffer)
    buffer.fill_(2)  # fill before gpu
    reduce_by_kernel(handle, out, scope="sys" if fixed else "gpu")
    torch.cuda.synchronize()


def counters_used_again_without_counting_on(fixed: bool) -> None:
    buffer, handle = meet()
    counters = symm_mem.empty(64, dtype=torch.int32, device="cuda")
    theirs = symm_mem.rendezvous(counters, dist.group.WORLD)  # type: ignore[arg-type]
    counters.zero_()
    theirs.barrier()
    out = torch.empty_like(buffer)
    for call in range(1, 3):
        _one_shot_by_count[(1,)](
            handle.buffer_ptrs_dev, theirs.buffer_ptrs_dev, out, call if fixed else 1, rank=handle.rank,
            world=handle.world_size, BLOCK=N,
        )  # fmt: skip
        handle.barrier()
        buffer.fill_(call)  # fill between calls
    torch.cuda.synchronize()


def host_writes_while_a_peer_reads(fixed: bool) -> None:
    buffer, handle = meet()
    peer = handle.get_buffer(1 - handle.rank, (N,), torch.float32)
    peer.sum()  # look at a peer
    if fixed:
        handle.barrier()
    buffer.fill_(3)  # write one's own
    torch.cuda.synchronize()


def one_staging_slot_for_all_calls(fixed: bool) -> None:
    slots, handle = meet(2 * N)
    out = torch.empty(N, device="cuda")
    for call in range(3):
        at = call % 2 if fixed else 0
        slots[at * N : (at + 1) * N].fill_(call)  # stage
        handle.barrier()
        for peer in range(handle.world_size):
            out.add_(handle.get_buffer(peer, (N,), torch.float32, at * N))  # take
    torch.cuda.synchronize()


def update_by_programs_that_is_not_atomic(fixed: bool) -> None:
    x, counts = torch.ones(N, device="cuda"), torch.zeros(1, device="cuda")
    _histogram[(N // BLOCK,)](x, counts, N, ATOMIC=fixed, BLOCK=BLOCK)
    torch.cuda.synchronize()


def kernel_on_a_stream_that_does_not_wait(fixed: bool) -> None:
    side = torch.cuda.Stream()
    x, y = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")  # made
    if fixed:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _double[(N // BLOCK,)](x, y, BLOCK=BLOCK)
    torch.cuda.synchronize()


def kernel_reads_what_a_collective_writes(fixed: bool) -> None:
    x, y = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    work = dist.all_reduce(x, async_op=True)  # collective
    if fixed:
        work.wait()
    _double[(N // BLOCK,)](x, y, BLOCK=BLOCK)
    work.wait()
    torch.cuda.synchronize()


def torch_reads_what_a_kernel_on_another_stream_writes(fixed: bool) -> None:
    side = torch.cuda.Stream()
    x, y = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _double[(N // BLOCK,)](x, y, BLOCK=BLOCK)
    if fixed:
        torch.cuda.current_stream().wait_stream(side)
    y.sum()  # sum of what a kernel gives
    torch.cuda.synchronize()


def one_thread_releases_for_all(fixed: bool) -> None:
    _, handle = meet()
    x, out = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    _hand_over[(1,)](
        x, handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, rank=handle.rank, BARRIER=fixed, BLOCK=N
    )
    torch.cuda.synchronize()


def tile_read_back_by_other_threads(fixed: bool) -> None:
    x, scratch = torch.ones(N, device="cuda"), torch.empty(N, device="cuda")
    _reverse[(1,)](x, scratch, BARRIER=fixed, BLOCK=N)
    torch.cuda.synchronize()


def fence_by_one_lane_only(fixed: bool) -> None:
    _meet_once(0 if fixed else 1)


def fence_behind_by_one_lane_only(fixed: bool) -> None:
    _meet_once(0 if fixed else 2)


def _meet_once(alone: int) -> None:
    _, handle = meet()
    x, out = torch.full((N,), 1.0 + handle.rank, device="cuda"), torch.empty(N, device="cuda")
    torch.cuda.synchronize()
    _meet_by_lanes[(1,)](
        x, handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, handle.rank, world=handle.world_size, ALONE=alone,
        BLOCK=N,
    )  # fmt: skip
    torch.cuda.synchronize()
    assert out.eq(3).all()


PAIRS = {
    exit_barrier_missing: ("read", "fill too early"),
    start_barrier_relaxed: ("read", "fill before relaxed"),
    scope_of_one_gpu_only: ("read", "fill before gpu"),
    counters_used_again_without_counting_on: ("counted", "fill between calls"),
    host_writes_while_a_peer_reads: ("look at a peer", "write one's own"),
    one_staging_slot_for_all_calls: ("stage", "take"),
    update_by_programs_that_is_not_atomic: ("sum", "sum"),
    kernel_on_a_stream_that_does_not_wait: ("made", "double"),
    kernel_reads_what_a_collective_writes: ("collective", "double"),
    torch_reads_what_a_kernel_on_another_stream_writes: ("double", "sum of what a kernel gives"),
    one_thread_releases_for_all: ("put", "got"),
    fence_by_one_lane_only: ("put before the fence", "got after the fence"),
    fence_behind_by_one_lane_only: ("put before the fence", "got after the fence"),
    tile_read_back_by_other_threads: ("written first", "read backwards"),
}
"""The programs, and the marks of the two lines that meet."""
