"""Launches of several ranks run as one batch; each takes the time, and did the work, that it takes and does alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernbench
from tests.triton_fixtures import ROUNDING

triton = pytest.importorskip("triton", reason="Triton exists for Linux only")
tl = pytest.importorskip("triton.language")

SIZE = 1 << 18


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    tl.store(out + index, tl.load(x + index, mask=mask) + tl.load(y + index, mask=mask), mask=mask)


@triton.jit
def look_up_kernel(table, rows, out, WIDTH: tl.constexpr):
    row = tl.load(rows + tl.program_id(0))
    column = tl.arange(0, WIDTH)
    tl.store(out + tl.program_id(0) * WIDTH + column, tl.load(table + row * WIDTH + column))


@triton.jit
def permute_kernel(x, places, out, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.load(places + index), tl.load(x + index), mask=tl.load(x + index) > 0)


@triton.jit
def sum_kernel(x, lengths, out, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    length = tl.load(lengths + tl.program_id(0))
    for at in range(0, length, BLOCK):
        index = at + tl.arange(0, BLOCK)
        total += tl.load(x + index, mask=index < length, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(total))


@triton.jit
def count_kernel(values, bins, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    value = tl.load(values + index, mask=mask, other=0)
    tl.atomic_add(bins + value, 1, mask=mask & (value > 2))


@triton.jit
def cycles_kernel(x, out, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    address = (x + index).to(tl.int64)
    value = tl.inline_asm_elementwise(
        "ld.global.b32 $0, [$1];", "=f,l", [address], dtype=tl.float32, is_pure=False, pack=1
    )
    tl.store(out + index, value)


def _add(rank: int, made: torch.Generator) -> Callable[[], Any]:
    n = SIZE - 1000 * rank
    x, y = torch.randn(SIZE, generator=made).cuda(), torch.randn(SIZE, generator=made).cuda()
    out = torch.empty_like(x)
    return lambda: add_kernel[(triton.cdiv(SIZE, 1024),)](x, y, out, n, BLOCK=1024)


def _look_up(rank: int, made: torch.Generator) -> Callable[[], Any]:
    table = torch.randn(512, 256, generator=made).cuda()
    rows = torch.randint(512 if rank else 2, (1024,), generator=made).cuda()
    out = torch.empty(1024, 256, device="cuda")
    return lambda: look_up_kernel[(1024,)](table, rows, out, WIDTH=256)


def _permute(rank: int, made: torch.Generator) -> Callable[[], Any]:
    x, places = (torch.randn(SIZE, generator=made) + rank).cuda(), torch.randperm(SIZE, generator=made).cuda()
    out = torch.zeros(SIZE, device="cuda")
    return lambda: permute_kernel[(SIZE // 1024,)](x, places, out, BLOCK=1024)


def _sum(rank: int, made: torch.Generator) -> Callable[[], Any]:
    x = torch.randn(SIZE, generator=made).cuda()
    lengths = (torch.randint(1, SIZE, (64,), generator=made) // (1 + 3 * rank)).cuda()
    out = torch.empty(64, device="cuda")
    return lambda: sum_kernel[(64,)](x, lengths, out, BLOCK=1024)


def _count(rank: int, made: torch.Generator) -> Callable[[], Any]:
    values = torch.randint(2 + 2 * rank, (SIZE,), generator=made).cuda()
    bins = torch.zeros(16, dtype=torch.int32, device="cuda")
    return lambda: count_kernel[(SIZE // 1024,)](values, bins, SIZE, BLOCK=1024)


def _assembly(rank: int, made: torch.Generator) -> Callable[[], Any]:
    x = torch.randn(4096, generator=made).cuda()
    out = torch.empty_like(x)
    return lambda: cycles_kernel[(4,)](x, out, BLOCK=1024)


LAUNCHES = {
    "add": _add, "look up": _look_up, "permute": _permute, "sum": _sum, "count": _count, "assembly": _assembly,
}  # fmt: skip


def launched(name: str, ranks: int, only: int | None = None, **options: Any) -> dict[int, Any]:
    """Of each rank's launch, or of that of ``only`` one: how long it takes (s), its bytes, and what it did."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        launch = LAUNCHES[name](rank, torch.Generator().manual_seed(rank))
        torch.cuda.synchronize()
        if only is None or rank == only:
            launch()

    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        return {
            record.rank: (record.end - record.start, record.nbytes, dict(record.detail))
            for record in ctx.engine.op_log.records()
            if record.kind == "kernel"
        }


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_of_a_batch_is_as_alone(name: str) -> None:
    together = launched(name, 4)
    assert set(together) == set(range(4))
    for rank in (0, 3):
        assert together[rank] == launched(name, 4, only=rank)[rank]


def test_ranks_that_do_not_do_the_same_take_their_own_time() -> None:
    took = {rank: seconds for rank, (seconds, _, _) in launched("sum", 4).items()}
    assert took[0] > 1.5 * took[3]


def test_a_tensor_that_is_given_twice_is_one_without_data() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        x, out = torch.randn(SIZE, device="cuda"), torch.empty(SIZE, device="cuda")
        add_kernel[(SIZE // 1024,)](x, x, out, SIZE, BLOCK=1024)

    found = []
    for data in (True, False):
        with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=2)
            found.append([(op.duration, op.nbytes) for op in ctx.engine.op_log.operations if op.kind == "kernel"])
    assert found[0] == found[1]


@triton.jit
def described_copy_kernel(source, target):
    target.store([0, 0], source.load([0, 0]))


@ROUNDING
def test_a_descriptor_reads_in_its_ranks_own_way() -> None:
    """One compiled kernel serves descriptors that round and those that do not."""
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor.from_tensor

    found = {}

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        x, out = torch.full((16, 16), 1 + 2**-13, device="cuda"), torch.zeros(16, 16, device="cuda")
        source = descriptor(x, [16, 16], round_f32_to_tf32=rank == 1)
        described_copy_kernel[(1,)](source, descriptor(out, [16, 16]))
        found[rank] = out[3, 3].item()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert found == {0: 1 + 2**-13, 1: 1.0, 2: 1 + 2**-13}
