"""A launch over memory without an owner is counted as if zeros were in it: an index that it reads is an index."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import kernbench
from kernbench.triton_engine.values import from_lane_array

ROWS, WIDTH = 3000, 64


@triton.jit
def gather(out, table, indices, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    index = tl.load(indices + row)
    columns = tl.arange(0, BLOCK)
    tl.store(out + row * BLOCK + columns, tl.load(table + index * BLOCK + columns))


def test_an_index_in_memory_that_nobody_has_is_zero() -> None:
    def body(rank: int) -> None:
        garbage = torch.full((ROWS + 8,), 1 << 62)  # what the heap gives next, maybe
        del garbage
        table = torch.randn(100, WIDTH, device="cuda")
        out = torch.empty(ROWS, WIDTH, device="cuda")
        gather[(ROWS,)](out, table, torch.randint(0, 100, (ROWS,), device="cuda"), BLOCK=WIDTH)

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        (launch,) = (op for op in ctx.engine.op_log.operations if op.kind == "kernel")
        assert launch.nbytes >= ROWS * WIDTH * 4


def launched(ranks: int, kind: type) -> list[tuple[float, float | None]]:
    """Begin and end of launches of tensors of a class, which Inductor's code gives as torch's own, on rank 0."""

    def body(rank: int) -> None:
        torch.cuda.set_device(rank)
        table = torch.empty(100, WIDTH, device="cuda")
        out, indices = torch.empty(ROWS, WIDTH, device="cuda"), torch.zeros(ROWS, dtype=torch.int64, device="cuda")
        given = [each.as_subclass(kind) for each in (out, table, indices)]
        for _ in range(3):
            gather[(ROWS,)](*given, BLOCK=WIDTH)
            out.mul_(2)

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=ranks)
        operations = ctx.engine.op_log.operations
        return [(op.start, op.end) for op in operations if op.kind == "kernel" and op.rank == 0]


class Kept(torch.Tensor):
    """Tells of what the host reads."""


@pytest.mark.parametrize("kind", [torch.Tensor, Kept])
def test_a_launch_takes_as_long_whatever_runs_beside_it(kind: type) -> None:
    alone = launched(1, kind)
    assert len(alone) == 3
    assert alone == launched(2, kind)


def test_numbers_far_apart_are_no_affine_function_of_the_lane() -> None:
    far = np.array([-(2**62), 2**62, 5], dtype=np.int64)
    found = from_lane_array(far)
    assert not isinstance(found, int)
    assert found.per_lane is not None
    assert list(found.per_lane) == list(far)
