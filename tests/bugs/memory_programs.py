"""Bugs of public issue trackers on one GPU: kernels, copies, memory. Wrong as they stand, right when ``fixed``.

The line that a report must name ends with ``# here``.
"""

from __future__ import annotations

import gc
import io

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import nn

N = 64
MIB = 1 << 20


@triton.jit
def _rows(x, width, row, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = row.to(tl.int64) * width if WIDE else row * width
    tl.store(x + at + tl.arange(0, BLOCK), 1)  # offsets


def offsets_of_32_bits(fixed: bool) -> None:
    """A row's number times the row's length passes 2^31."""
    width = 4096
    rows = (1 << 31) // width + 2
    x = torch.empty(rows * width, dtype=torch.int8, device="cuda")
    _rows[(1,)](x, width, rows - 1, WIDE=fixed, BLOCK=64)
    torch.cuda.synchronize()


@triton.jit
def _product(a, b, c, K, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    rows, inner = tl.arange(0, 16), tl.arange(0, BLOCK)
    total = tl.zeros((16, 16), tl.float32)
    for k in range(0, K, BLOCK):
        inside = inner + k < K if MASKED else inner + k < K + BLOCK
        left = tl.load(a + rows[:, None] * K + (inner + k)[None, :], inside[None, :], other=0.0)  # product
        right = tl.load(b + (inner + k)[:, None] * 16 + rows[None, :], inside[:, None], other=0.0)
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * 16 + rows[None, :], total)


def product_of_an_odd_length(fixed: bool) -> None:
    """The last block of the inner dimension is not whole."""
    a, b, c = (torch.ones(shape, device="cuda") for shape in ((16, 40), (40, 16), (16, 16)))
    _product[(1,)](a, b, c, 40, MASKED=fixed, BLOCK=16)
    torch.cuda.synchronize()


@triton.jit
def _largest(x, out, n, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if OTHER:
        row = tl.load(x + at, at < n, other=-float("inf"))
    else:
        row = tl.load(x + at, at < n)  # undefined
    tl.store(out, tl.max(row))


def masked_load_without_other(fixed: bool) -> None:
    """Lanes behind the mask have any value, and take part in the maximum."""
    x, out = torch.full((40,), -3.0, device="cuda"), torch.zeros(1, device="cuda")
    _largest[(1,)](x, out, 40, OTHER=fixed, BLOCK=64)
    print(out.item())


@triton.jit
def _gathered(table, ids, out, CHECKED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(ids + at)
    if CHECKED:
        value = tl.load(table + row, row >= 0, other=0.0)
    else:
        value = tl.load(table + row)  # padded
    tl.store(out + at, value)


def padding_used_as_an_index(fixed: bool) -> None:
    """Tokens that are padding are -1."""
    table, out = torch.ones(N, device="cuda"), torch.zeros(16, device="cuda")
    ids = torch.arange(16, device="cuda", dtype=torch.int32)
    ids[13:] = -1
    _gathered[(1,)](table, ids, out, CHECKED=fixed, BLOCK=16)
    torch.cuda.synchronize()


@triton.jit
def _counted(ids, counts, ATOMIC: tl.constexpr):
    at = counts + tl.load(ids + tl.program_id(0))
    if ATOMIC:
        tl.atomic_add(at, 1)
    else:
        tl.store(at, tl.load(at) + 1)  # count


def counts_without_atomics(fixed: bool) -> None:
    ids, counts = torch.zeros(8, device="cuda", dtype=torch.int32), torch.zeros(4, device="cuda", dtype=torch.int32)
    _counted[(8,)](ids, counts, ATOMIC=fixed)
    torch.cuda.synchronize()


def expert_whose_rows_nobody_writes(fixed: bool) -> None:
    """A grouped product leaves out groups without rows, and their gradients are what the memory was."""
    sizes, x = (4, 0, 4), torch.ones(8, 16, device="cuda")
    gradients = (torch.zeros if fixed else torch.empty)(3, 16, 16, device="cuda")
    start = 0
    for expert, size in enumerate(sizes):
        if size:
            gradients[expert] = x[start : start + size].T @ x[start : start + size]
        start += size
    print(gradients.norm().item())  # here


def rows_cut_off_without_a_gradient(fixed: bool) -> None:
    """Rows behind the longest length are not unpacked, in memory that is not cleared."""
    packed, length = torch.ones(4, 8, device="cuda"), 6
    gradient = (torch.zeros if fixed else torch.empty)(length, 8, device="cuda")
    gradient[:4] = packed
    weight = torch.ones(8, 8, device="cuda")
    print((gradient @ weight).sum().item())  # here


def pinned_buffer_filled_again(fixed: bool) -> None:
    """The host writes the next batch where the last one is still being copied from."""
    batch = torch.zeros(MIB).pin_memory()
    for index in range(2):
        batch.fill_(index)  # here
        on_gpu = batch.to("cuda", non_blocking=True)
        if fixed:
            torch.cuda.synchronize()
    print(on_gpu.sum().item())


def indices_read_before_they_come(fixed: bool) -> None:
    """A copy to the host does not wait, and the next line branches on it."""
    lengths = torch.arange(4, device="cuda")
    on_host = lengths.to("cpu", non_blocking=True)
    if fixed:
        torch.cuda.current_stream().synchronize()
    print(torch.zeros(8)[: on_host.max()].shape)  # here


def prefetched_into_the_batch_in_use(fixed: bool) -> None:
    """The next batch is copied by a stream of its own over the one that the model reads."""
    side, batch = torch.cuda.Stream(), torch.ones(MIB, device="cuda")
    host = torch.ones(MIB).pin_memory()
    weight = torch.ones(MIB, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(2):
        weight.mul_(batch)
        if fixed:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            batch.copy_(host, non_blocking=True)  # here
        torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def losses_with_their_graphs(fixed: bool) -> None:
    """A mean for the log keeps every step's activations."""
    layer, total = nn.Linear(1024, 1024, device="cuda"), torch.zeros((), device="cuda")
    for _ in range(16):
        loss = layer(torch.ones(512, 1024, device="cuda")).relu().sin().sum()  # here
        total = total + (loss.detach() if fixed else loss)


def state_loaded_beside_the_model(fixed: bool) -> None:
    """The file's tensors go to the GPU, where the model and its optimizer are already."""
    model = nn.Linear(2048, 2048, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2048, device="cuda")).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, map_location="cpu" if fixed else "cuda")  # here
    model.load_state_dict(state["model"])
    torch.cuda.synchronize()


def state_of_all_ranks_on_the_first_gpu(fixed: bool) -> None:
    """A file's tensors go to the GPU that they were on when it was written: rank 0's, for all ranks. Without values."""
    state = torch.ones(14 << 30, dtype=torch.int8, device=f"cuda:{dist.get_rank() if fixed else 0}")  # here
    dist.barrier()
    assert state.numel()


@triton.jit
def _lengths(ends, out, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if MASKED:
        before = tl.load(ends + at - 1, (at > 0) & (at < n), other=0)
    else:
        before = tl.where(at == 0, 0, tl.load(ends + at - 1, at < n))  # before
    tl.store(out + at, tl.load(ends + at, at < n) - before, at < n)


def choice_that_loads_both(fixed: bool) -> None:
    """``tl.where`` takes one of two values, both of which are loaded."""
    ends = torch.arange(1, 9, device="cuda", dtype=torch.int32)
    _lengths[(1,)](ends, torch.empty_like(ends), 8, MASKED=fixed, BLOCK=16)
    torch.cuda.synchronize()


@triton.jit
def _added(values, bins, out, n, step, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(values + at, at < n, other=0)
    tl.store(out + at, value + tl.load(bins + at * step, at < n, other=0), at < n)  # strided


def mask_of_a_longer_tensor(fixed: bool) -> None:
    """One mask for two tensors, of which one is a shorter view with strides."""
    values, bins = torch.ones(4, device="cuda"), torch.ones(5, device="cuda")[::2]
    _added[(1,)](values, bins, torch.empty(4, device="cuda"), 3 if fixed else 4, bins.stride(0), BLOCK=8)
    torch.cuda.synchronize()


@triton.jit
def _per_head(x):
    tl.atomic_add(x, 1)


def grid_along_the_wrong_axis(fixed: bool) -> None:
    """Batch and heads are an axis of the grid that takes 65,535 blocks."""
    count = torch.zeros(1, device="cuda", dtype=torch.int32)
    _per_head[(65_538, 1) if fixed else (1, 65_538)](count)  # here
    torch.cuda.synchronize()


@triton.jit
def _grown(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) + 1, at < n)


_CONFIGURATIONS = [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})]


def tuned_on_what_it_changes(fixed: bool) -> None:
    """Autotuning runs a kernel many times on its own result."""
    kernel = triton.autotune(_CONFIGURATIONS, key=["n"], restore_value=["x"] if fixed else None)(_grown)
    kernel[lambda meta: (triton.cdiv(512, meta["BLOCK"]),)](torch.zeros(512, device="cuda"), 512)
    torch.cuda.synchronize()


def branch_of_a_graph_that_is_not_joined(fixed: bool) -> None:
    """A second stream of a capture has work which the first one does not wait for."""
    x, side = torch.ones(N, device="cuda"), torch.cuda.Stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul(2)
        if fixed:
            torch.cuda.current_stream().wait_stream(side)


def weights_dropped_while_they_are_copied(fixed: bool) -> None:
    """Memory is given back while a copy to the host reads it on a stream of its own."""
    side, weights = torch.cuda.Stream(), torch.full((MIB,), 5.0, device="cuda")
    stash = torch.empty(MIB).pin_memory()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        stash.copy_(weights, non_blocking=True)
    if fixed:
        weights.record_stream(side)
    weights.untyped_storage().resize_(0)
    torch.zeros(MIB, device="cuda")  # here
    torch.cuda.synchronize()


def copy_that_is_asked_for_too_seldom(fixed: bool) -> None:
    """Whether a copy is over is asked, and what is said is not waited for."""
    host, over = torch.empty(MIB).pin_memory(), torch.cuda.Event()
    host.copy_(torch.ones(MIB, device="cuda"), non_blocking=True)
    over.record()
    while not over.query() and fixed:
        pass
    print(host[0].item())  # here


def launched_on_the_current_gpu(fixed: bool) -> None:
    """Triton launches on the current GPU, wherever the tensors are."""
    counts, ids = torch.zeros(N, dtype=torch.int32, device="cuda:1"), torch.zeros(8, dtype=torch.int32, device="cuda:1")
    with torch.cuda.device(1 if fixed else 0):
        _counted[(8,)](ids, counts, ATOMIC=True)
    torch.cuda.synchronize(1)


@triton.jit
def _built_once(locks, size, CAREFUL: tl.constexpr):
    lock = locks + tl.program_id(0) % size
    taken = tl.atomic_cas(lock, 0, 1) if CAREFUL else tl.atomic_xchg(lock, 1)
    if taken == 0:
        tl.atomic_xchg(lock, 2)
    else:
        while (tl.atomic_add(lock, 0) if CAREFUL else tl.atomic_xchg(lock, 3)) != 2:  # lock
            pass


def lock_that_is_overwritten_by_who_waits(fixed: bool) -> None:
    """Each waits for the value that says "built", and puts its own in its place when it looks."""
    locks = torch.zeros(8, dtype=torch.int32, device="cuda")
    for _ in range(2):
        _built_once[(8,)](locks, 8, CAREFUL=fixed)
    torch.cuda.synchronize()


@triton.jit
def _counted_rows(x, total, lock, count, INSIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * BLOCK + at)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    number = tl.load(count)
    if number != 0:
        row += tl.load(total + at)
    tl.store(total + at, row)
    if INSIDE:
        tl.store(count, number + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)
    if not INSIDE:
        tl.store(count, number + 1)  # counted


def count_stored_behind_its_lock(fixed: bool) -> None:
    x, total = torch.ones(8 * N, device="cuda"), torch.empty(N, device="cuda")
    lock, count = torch.zeros(2, 1, dtype=torch.int32, device="cuda")
    _counted_rows[(8,)](x, total, lock, count, INSIDE=fixed, BLOCK=N)
    torch.cuda.synchronize()


@triton.jit
def _turned(x, room, y, ORDERED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(room + at, tl.load(x + at) * 2)
    if ORDERED:
        tl.debug_barrier()
    tl.store(y + at, tl.load(room + BLOCK - 1 - at))  # turned


def tile_read_back_in_another_order(fixed: bool) -> None:
    """A program stores a tile and loads it from the other end: by other threads."""
    x = torch.ones(4 * N, device="cuda")
    _turned[(1,)](x, torch.zeros_like(x), torch.zeros_like(x), ORDERED=fixed, BLOCK=4 * N)
    torch.cuda.synchronize()


class _Batch:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.itself = tensor, self


def batches_that_hold_themselves(fixed: bool) -> None:
    """Memory that only a cycle of references holds is free when Python collects it, and no failed allocation has that done."""
    for _ in range(8):
        _Batch(torch.empty(20 * MIB, dtype=torch.uint8, device="cuda"))
        if fixed:
            gc.collect()
