"""How programs become lanes: factoring, chunks, and values that agree with running programs one by one."""

from __future__ import annotations

from math import prod

import pytest
import torch
import triton

from kernbench.triton_engine import Execution
from kernbench.triton_engine.lane_grid import CHUNK_ELEMENTS

from .programs import scale_kernel, swizzled_matmul_kernel


def matmul(m, n, k, group=4, block=(16, 16, 16)):
    a, b, c = torch.randn(m, k).half(), torch.randn(k, n).half(), torch.empty(m, n)
    bm, bn, bk = block
    grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)
    swizzled_matmul_kernel[grid](a, b, c, m, n, k, BM=bm, BN=bn, BK=bk, GROUP=group)
    return a, b, c


@pytest.mark.parametrize("group", [1, 2, 4, 16])
def test_swizzled_grid_becomes_a_rectangle(collected, group):
    a, b, c = matmul(128, 96, 64, group)
    (launch,) = collected.launches
    execution = Execution([launch])
    shape = execution.lane_grid.shape
    assert len(shape) >= 2
    assert prod(shape) == 48
    assert sorted(execution.lane_grid.ids.reshape(-1).tolist()) == list(range(48))
    assert execution.run() == "done"
    torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-3, rtol=1e-3)


def test_ragged_group_is_still_right(collected):
    a, b, c = matmul(112, 48, 32, group=4)
    Execution(collected.launches).run()
    torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-3, rtol=1e-3)


def test_chunks_bound_what_is_alive(collected):
    n = 8 * CHUNK_ELEMENTS
    x = torch.arange(n, dtype=torch.float32)
    out = torch.empty_like(x)
    scale_kernel[(n // 1024,)](x, out, n, 2.0, BLOCK=1024)
    execution = Execution(collected.launches)
    sizes = [prod(b - a for a, b in c.ranges) * 1024 for c in execution.lane_grid.chunks]
    assert len(sizes) == 8
    assert max(sizes) <= CHUNK_ELEMENTS
    execution.run()
    assert torch.equal(out, x * 2)


def test_lane_grid_is_kept_between_launches(collected):
    x = torch.zeros(64)
    for _ in range(2):
        scale_kernel[(4,)](x, x, 64, 2.0, BLOCK=16)
    first, second = (Execution([launch]).lane_grid for launch in collected.launches)
    assert first is second
