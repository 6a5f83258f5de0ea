"""Correct programs whose every ordering line is taken out in turn (:mod:`tests.order.test_mutations`).

A line that ends in ``# orders`` is replaced by ``pass``; ``# orders: a -> b`` replaces text in it. Where another line orders
the same accesses, or what is ordered cannot be seen, ``# harmless`` says so, with the reason.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

N, BLOCK = 512, 128


@triton.jit
def _meet(signals, slot, rank: tl.constexpr, world: tl.constexpr):
    signals = signals.to(tl.pointer_type(tl.uint64))
    for peer in range(world):
        there = tl.load(signals + peer).to(tl.pointer_type(tl.int32)) + slot * world + rank
        while tl.atomic_cas(there, 0, 1, sem="release", scope="sys") != 0:  # orders: release -> relaxed
            pass
    here = tl.load(signals + rank).to(tl.pointer_type(tl.int32)) + slot * world
    for peer in range(world):
        while tl.atomic_cas(here + peer, 1, 0, sem="acquire", scope="sys") != 1:  # orders: sys -> gpu
            pass


@triton.jit
def _two_shot(buffers, signals, rank: tl.constexpr, world: tl.constexpr, BLOCK: tl.constexpr):
    """Each rank sums a chunk of every block, and then fetches the others' chunks."""
    block = tl.program_id(0)
    buffers = buffers.to(tl.pointer_type(tl.uint64))
    mine = tl.load(buffers + rank).to(tl.pointer_type(tl.float32))
    _meet(signals, block, rank, world)  # orders
    chunk = block * world * BLOCK + rank * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in range(world):
        total += tl.load(tl.load(buffers + peer).to(tl.pointer_type(tl.float32)) + chunk)
    tl.store(mine + chunk, total)
    tl.debug_barrier()  # orders # harmless: compiled code has one before each turn of a loop that spins on an atomic
    _meet(signals, block, rank, world)  # orders
    for step in range(1, world):
        peer = (rank + step) % world
        chunk = block * world * BLOCK + peer * BLOCK + tl.arange(0, BLOCK)
        tl.store(mine + chunk, tl.load(tl.load(buffers + peer).to(tl.pointer_type(tl.float32)) + chunk))
    _meet(signals, block, rank, world)  # orders


def kernel_all_reduce() -> None:
    world = dist.get_world_size()
    buffer = symm_mem.empty(N, dtype=torch.float32, device="cuda")
    handle = symm_mem.rendezvous(buffer, dist.group.WORLD)  # type: ignore[arg-type]
    for step in range(2):
        buffer.fill_(step)
        grid = (N // (world * BLOCK),)
        _two_shot[grid](handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, handle.rank, world, BLOCK)
    torch.cuda.synchronize()  # orders # harmless: nobody looks at the result


def staged_exchange() -> None:
    """Two slots, written by their rank and read by the peer, with barriers and signals of the handle."""
    slots = symm_mem.empty(2 * N, dtype=torch.float32, device="cuda")
    handle = symm_mem.rendezvous(slots, dist.group.WORLD)  # type: ignore[arg-type]
    total, peer = torch.zeros(N, device="cuda"), 1 - handle.rank
    for step in range(4):
        at = step % 2 * N
        slots[at : at + N].fill_(step)
        handle.barrier()  # orders
        total += handle.get_buffer(peer, (N,), torch.float32, at)
    handle.put_signal(peer)  # orders
    handle.wait_signal(peer)  # orders
    slots.zero_()
    handle.barrier()  # orders # harmless: nothing is shared after it
    total.sum().item()


def prefetched_batches() -> None:
    """Pinned batches are copied on a stream of their own while the last one is computed with."""
    copies, compute = torch.cuda.Stream(), torch.cuda.current_stream()
    pinned = [torch.zeros(N).pin_memory() for _ in range(2)]
    copied = [torch.cuda.Event() for _ in range(2)]
    weight, losses = torch.ones(N, device="cuda"), []
    for step in range(4):
        slot = step % 2
        if step > 1:
            copied[slot].synchronize()  # orders
        pinned[slot].fill_(step)
        with torch.cuda.stream(copies):
            batch = pinned[slot].to("cuda", non_blocking=True)
            copied[slot].record()  # type: ignore[no-untyped-call]  # orders
        compute.wait_stream(copies)  # orders
        losses.append((batch * weight).sum())
        batch.record_stream(compute)  # orders
        del batch
        compute.wait_stream(compute)  # orders # harmless: a stream follows itself
    shown = torch.stack(losses).to("cpu", non_blocking=True)
    compute.synchronize()  # orders
    shown.tolist()


def overlapped_gradients() -> None:
    """Gradients are reduced while others are computed, and updated when they are there."""
    weights = [torch.ones(N, device="cuda") for _ in range(3)]
    works = []
    for weight in weights:
        gradient = weight * 0.5
        works.append((dist.all_reduce(gradient, async_op=True), weight, gradient))
    for work, weight, gradient in works:
        work.wait()  # orders
        weight.sub_(gradient)
    spare = weights[0].clone()
    gathered = torch.empty(2 * N, device="cuda")
    work = dist.all_gather_into_tensor(gathered, spare, async_op=True)
    work.wait()  # orders
    spare.zero_()
    gathered.sum().item()


def ring() -> None:
    """What a rank has is sent on, and what comes is added."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, total = torch.full((N,), float(rank), device="cuda"), torch.zeros(N, device="cuda")
    for _ in range(world):
        coming = torch.empty(N, device="cuda")
        sent = dist.isend(mine, (rank + 1) % world)
        came = dist.irecv(coming, (rank - 1) % world)
        assert sent is not None
        assert came is not None
        came.wait()  # orders
        total.add_(coming)
        sent.wait()  # orders # harmless: of two ranks both messages are on the one stream of their pair, in order
        mine.copy_(coming)
    total.sum().item()


def branches_of_streams() -> None:
    """Two streams compute halves of what is joined."""
    one, other, main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    x, ready = torch.ones(N, device="cuda"), torch.cuda.Event()
    ready.record()  # type: ignore[no-untyped-call]  # orders
    one.wait_event(ready)  # orders
    other.wait_event(ready)  # orders
    with torch.cuda.stream(one):
        left = x[: N // 2] * 2
    with torch.cuda.stream(other):
        right = x[N // 2 :] * 3
    main.wait_stream(one)  # orders
    main.wait_stream(other)  # orders
    torch.cat([left, right]).sum().item()


PROGRAMS = (
    kernel_all_reduce, staged_exchange, prefetched_batches, overlapped_gradients, ring, branches_of_streams,
)  # fmt: skip
