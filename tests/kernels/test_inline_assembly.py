"""Inline PTX as kernels use it: arithmetic, packed types, predicates, vectors, signals between programs."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.beyond_interpreter("has no inline assembly")


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    total = tl.inline_asm_elementwise("add.f32 $0, $1, $2;", "=f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + i, total)
    largest = tl.inline_asm_elementwise(
        """
        {
            .reg .pred p;
            setp.gt.f32 p, $1, $2;
            selp.f32 $0, $1, $2, p;
        }
        """,
        "=f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(out_ptr + N + i, largest)
    fused = tl.inline_asm_elementwise(
        "fma.rn.f32 $0, $1, $2, $2;", "=f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out_ptr + 2 * N + i, fused)


def test_float_arithmetic_and_predicates():
    x, y = torch.randn(64), torch.randn(64)
    out = torch.zeros(3, 64)
    arithmetic_kernel[(1,)](x, y, out, N=64)
    torch.testing.assert_close(out, torch.stack([x + y, torch.maximum(x, y), x * y + y]))


@triton.jit
def packed_bytes_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Four bytes per register: shift each byte's nibble down, as packed-integer code does."""
    i = tl.arange(0, N)
    y = tl.inline_asm_elementwise(
        """
        {
            .reg .b32 t;
            shr.b32 t, $1, 3;
            and.b32 $0, t, 0x1f1f1f1f;
        }
        """,
        "=r,r", [tl.load(x_ptr + i)], dtype=tl.uint8, is_pure=True, pack=4,
    )  # fmt: skip
    tl.store(out_ptr + i, y)


def test_packed_bytes():
    x = torch.randint(0, 256, (64,), dtype=torch.uint8)
    out = torch.zeros_like(x)
    packed_bytes_kernel[(1,)](x, out, N=64)
    assert torch.equal(out, x >> 3)


@triton.jit
def two_results_kernel(x_ptr, low_ptr, high_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    low, high = tl.inline_asm_elementwise(
        "and.b32 $0, $2, 0xffff; shr.u32 $1, $2, 16;",
        "=r,=r,r", [tl.load(x_ptr + i)], dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(low_ptr + i, low)
    tl.store(high_ptr + i, high)


def test_two_results():
    x = torch.randint(0, 2**31, (32,)).to(torch.uint32)
    low, high = torch.zeros_like(x), torch.zeros_like(x)
    two_results_kernel[(1,)](x, low, high, N=32)
    assert torch.equal(low.long(), x.long() & 0xFFFF)
    assert torch.equal(high.long(), x.long() >> 16)


@triton.jit
def bf16x2_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    out = tl.inline_asm_elementwise(
        "add.rn.bf16x2 $0, $1, $2;", "=r,r,r", [tl.load(x_ptr + i), tl.load(y_ptr + i)],
        dtype=tl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip
    tl.store(out_ptr + i, out)


def test_packed_bf16_addition():
    x, y = torch.randn(32).bfloat16(), torch.randn(32).bfloat16()
    out = torch.zeros_like(x)
    bf16x2_kernel[(1,)](x, y, out, N=32)
    assert torch.equal(out, x + y)


@triton.jit
def _send(address):
    return tl.inline_asm_elementwise(
        """
        {
            .reg .u32 previous;
            .reg .pred busy;
            again:
                atom.global.release.sys.cas.b32 previous, [$1], 0, 1;
                setp.ne.u32 busy, previous, 0;
                @busy bra again;
            mov.u32 $0, previous;
        }
        """,
        "=r,l", [address], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _receive(address):
    return tl.inline_asm_elementwise(
        """
        {
            .reg .u32 previous;
            .reg .pred waiting;
            again:
                atom.global.acquire.sys.cas.b32 previous, [$1], 1, 0;
                setp.ne.u32 waiting, previous, 1;
                @waiting bra again;
            mov.u32 $0, previous;
        }
        """,
        "=r,l", [address], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def signal_kernel(flag_ptr, data_ptr, out_ptr, WORLD: tl.constexpr):
    """All-to-all barrier by compare-and-swap flags, then every program reads every other's word."""
    rank = tl.program_id(0)
    tl.store(data_ptr + rank, rank * 11 + 1)
    tl.debug_barrier()
    for peer in range(WORLD):
        _send((flag_ptr + peer * WORLD + rank).to(tl.int64))
    for peer in range(WORLD):
        _receive((flag_ptr + rank * WORLD + peer).to(tl.int64))
    total = 0
    for peer in range(WORLD):
        total += tl.load(data_ptr + peer)
    tl.store(out_ptr + rank, total)


def test_signals_by_compare_and_swap():
    world = 4
    flags, data, out = (torch.zeros(n, dtype=torch.int32) for n in (world * world, world, world))
    signal_kernel[(world,)](flags, data, out, WORLD=world)
    assert out.tolist() == [sum(r * 11 + 1 for r in range(world))] * world
    assert (flags == 0).all()


@triton.jit
def vector_load_kernel(x_ptr, out_ptr):
    a, b, c, d = tl.inline_asm_elementwise(
        "ld.global.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,l", [(x_ptr + tl.program_id(0) * 4).to(tl.int64)],
        dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32), is_pure=False, pack=1,
    )  # fmt: skip
    base = out_ptr + tl.program_id(0) * 4
    tl.store(base, d)
    tl.store(base + 1, c)
    tl.store(base + 2, b)
    tl.store(base + 3, a)


def test_vector_load():
    x = torch.randint(0, 2**31, (3, 4)).to(torch.uint32)
    out = torch.zeros_like(x)
    vector_load_kernel[(3,)](x, out)
    assert torch.equal(out.long(), x.long().flip(1))


@triton.jit
def no_operands_kernel(out_ptr):
    """As programmatic dependent launch is written: an instruction without operands whose result nobody wants."""
    tl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    seven = tl.inline_asm_elementwise("mov.u32 $0, 7;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr, seven)


def test_assembly_without_operands():
    out = torch.zeros(1, dtype=torch.int32)
    no_operands_kernel[(1,)](out)
    assert out == 7
