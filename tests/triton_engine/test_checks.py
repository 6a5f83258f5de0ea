"""The optional checks: races and reads of memory never written."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import triton
import triton.language as tl

import kernbench
from kernbench.triton_engine import RaceError, UninitialisedReadError, registry, set_checks

from .programs import scale_kernel, swizzled_matmul_kernel


@pytest.fixture(autouse=True)
def _checked():
    before = set_checks(True)
    yield
    set_checks(before)


@triton.jit
def overlapping_kernel(out_ptr, STEP: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * STEP + tl.arange(0, N)
    tl.store(out_ptr + i, i)


@triton.jit
def scattered_kernel(index_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + tl.load(index_ptr + i), i)


@triton.jit
def same_word_kernel(out_ptr):
    tl.store(out_ptr + 3, 1)


def test_disjoint_stores_pass():
    x, out = torch.randn(64), torch.empty(64)
    scale_kernel[(5,)](x, out, 50, 2.0, BLOCK=16)
    assert torch.equal(out[:50], x[:50] * 2)
    a, b, c = torch.randn(32, 32).half(), torch.randn(32, 32).half(), torch.empty(32, 32)
    swizzled_matmul_kernel[(4,)](a, b, c, 32, 32, 32, BM=16, BN=16, BK=16, GROUP=2)
    torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-3, rtol=1e-3)


def test_operands_are_not_held_in_a_cycle():
    out = torch.zeros(4, dtype=torch.int32)
    same_word_kernel[(1,)](out)
    held = weakref.ref(out)
    gc.disable()
    try:
        del out
        assert held() is None
    finally:
        gc.enable()


def test_one_program_that_stores_one_word_passes():
    out = torch.zeros(4, dtype=torch.int32)
    same_word_kernel[(1,)](out)
    assert out.tolist() == [0, 0, 0, 1]
    with pytest.raises(RaceError, match="both write element 3"):
        same_word_kernel[(2,)](out)


def test_overlapping_tiles_race():
    with pytest.raises(
        RaceError, match=r"program \(\d, 0, 0\) and program \(\d, 0, 0\) both write element \d+ of out_ptr"
    ):
        overlapping_kernel[(3,)](torch.zeros(64, dtype=torch.int32), STEP=8, N=16)


def test_one_word_races():
    with pytest.raises(RaceError, match="element 3 of out_ptr"):
        same_word_kernel[(4,)](torch.zeros(8, dtype=torch.int32))


@pytest.mark.parametrize("clash", [False, True])
def test_scattered_stores(clash):
    index = torch.randperm(32).int()
    if clash:
        index[20] = index[3]
    out = torch.zeros(32, dtype=torch.int32)
    if clash:
        with pytest.raises(RaceError, match=f"element {int(index[3])} of out_ptr"):
            scattered_kernel[(2,)](index, out, N=16)
    else:
        scattered_kernel[(2,)](index, out, N=16)
        assert torch.equal(out[index.long()], torch.arange(32, dtype=torch.int32))


def test_fresh_memory_must_be_written_before_it_is_read():
    x, y, z = torch.ones(64), torch.empty(64), torch.empty(64)
    registry.register(y, "y", fresh=True)
    scale_kernel[(2,)](x, y, 32, 2.0, BLOCK=16)
    scale_kernel[(2,)](y, z, 32, 2.0, BLOCK=16)
    assert (z[:32] == 4).all()
    with pytest.raises(UninitialisedReadError, match="reads element 32 of x_ptr"):
        scale_kernel[(3,)](y, z, 48, 2.0, BLOCK=16)
    registry.unregister(y)


@triton.jit
def gathering_kernel(index_ptr, x_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + tl.load(index_ptr + i)))


def _on_two_ranks(body) -> None:
    with kernbench.simulate("dgx_h100", races=True) as ctx:
        ctx.multiprocessing.spawn(lambda rank: body(), nprocs=2)


def test_with_races_what_kernels_write_is_written():
    def body() -> None:
        index, x, out = (
            torch.arange(32, device="cuda").flip(0),
            torch.randn(32, device="cuda"),
            torch.empty(32, device="cuda"),
        )
        gathering_kernel[(2,)](index, x, out, N=16)
        assert out.tolist() == x.tolist()[::-1]
        scale_kernel[(2,)](x, out, 32, 2.0, BLOCK=16)
        assert out.tolist() == [2 * each for each in x.tolist()]
        scattered = torch.empty(32, dtype=torch.int64, device="cuda")
        scattered_kernel[(2,)](index, scattered, N=16)
        assert scattered.tolist() == list(range(31, -1, -1))

    _on_two_ranks(body)


def test_with_races_each_still_finds_what_is_wrong():
    def two_programs() -> None:
        overlapping_kernel[(3,)](torch.zeros(64, dtype=torch.int32, device="cuda"), STEP=8, N=16)

    def two_streams() -> None:
        x, side = torch.zeros(1 << 20, device="cuda"), torch.cuda.Stream()
        with torch.cuda.stream(side):
            scale_kernel[(1,)](x, x, 16, 2.0, BLOCK=16)

    def unwritten() -> None:
        out = torch.empty(32, device="cuda")
        scale_kernel[(1,)](torch.ones(16, device="cuda"), out, 16, 2.0, BLOCK=16)
        out.tolist()

    for body, error, words in (
        (two_programs, RaceError, "both write element"),
        (two_streams, RaceError, "stream"),
        (unwritten, kernbench.UndefinedMemoryError, "read of unwritten memory"),
    ):
        with pytest.raises(kernbench.SpawnException) as found:
            _on_two_ranks(body)
        assert all(isinstance(each, error) and words in str(each) for each in found.value.errors.values())
