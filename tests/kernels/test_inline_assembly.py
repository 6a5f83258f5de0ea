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
    """As programmatic dependent launch is written: an instruction without operands whose result is not used."""
    tl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    seven = tl.inline_asm_elementwise("mov.u32 $0, 7;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr, seven)


def test_assembly_without_operands():
    out = torch.zeros(1, dtype=torch.int32)
    no_operands_kernel[(1,)](out)
    assert out == 7


@triton.jit
def one_word_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr, ASM: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    out = tl.inline_asm_elementwise(ASM, "=r,r,r", [x, y], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr + i, out)


def _words(assembly: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.numel(), dtype=torch.int32)
    one_word_kernel[(1,)](x.view(torch.int32), y.view(torch.int32), out, N=x.numel(), ASM=assembly)
    return out


def _unsigned(x: torch.Tensor) -> list[int]:
    return [v & 0xFFFFFFFF for v in x.tolist()]


_FUNNEL = {
    "shf.l.wrap.b32 $0, $1, $2, 37;": lambda a, b: ((b << 32 | a) << 5 >> 32) & 0xFFFFFFFF,
    "shf.l.clamp.b32 $0, $1, $2, 37;": lambda a, b: a,
    "shf.r.wrap.b32 $0, $1, $2, 4;": lambda a, b: ((b << 32 | a) >> 4) & 0xFFFFFFFF,
    "popc.b32 $0, $1;": lambda a, b: a.bit_count(),
    "clz.b32 $0, $1;": lambda a, b: 32 - a.bit_length(),
    "bfind.u32 $0, $1;": lambda a, b: (a.bit_length() - 1) & 0xFFFFFFFF,
    "brev.b32 $0, $1;": lambda a, b: int(f"{a:032b}"[::-1], 2),
    "dp4a.u32.u32 $0, $1, $2, 7;": lambda a, b: (
        7 + sum(x * y for x, y in zip(a.to_bytes(4, "little"), b.to_bytes(4, "little"), strict=True))
    ),
    "mad.hi.u32 $0, $1, $2, 9;": lambda a, b: ((a * b >> 32) + 9) & 0xFFFFFFFF,
}


@pytest.mark.parametrize("assembly", _FUNNEL)
def test_words_of_bits(assembly):
    x, y = (torch.randint(-(2**31), 2**31, (32,), dtype=torch.int32) for _ in range(2))
    x[0] = 0
    out = _words(assembly, x, y)
    assert _unsigned(out) == [_FUNNEL[assembly](a, b) for a, b in zip(_unsigned(x), _unsigned(y), strict=True)]


def _pairs(high: torch.Tensor, low: torch.Tensor) -> list[int]:
    bits = 8 * low.element_size()
    raw = {8: torch.uint8, 16: torch.int16}[bits]
    return [
        (h & (1 << bits) - 1) << bits | (v & (1 << bits) - 1)
        for h, v in zip(high.view(raw).tolist(), low.view(raw).tolist(), strict=True)
    ]


@pytest.mark.parametrize(("kind", "dtype"), [("e4m3x2", torch.float8_e4m3fn), ("e5m2x2", torch.float8_e5m2)])
def test_pairs_of_fp8_are_packed_and_unpacked(kind, dtype):
    x, y = torch.randn(64) * 100, torch.randn(64)
    packed = _words(f"{{ .reg .b16 t; cvt.rn.satfinite.{kind}.f32 t, $1, $2; cvt.u32.u16 $0, t; }}", x, y)
    assert _unsigned(packed) == _pairs(x.to(dtype), y.to(dtype))
    halves = _words(f"{{ .reg .b16 t; cvt.u16.u32 t, $1; cvt.rn.f16x2.{kind} $0, t; }}", packed, packed)
    assert _unsigned(halves) == _pairs(x.to(dtype).half(), y.to(dtype).half())


def test_pairs_of_fp4():
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    x = torch.cat([grid, torch.tensor([0.25, 0.75, 2.5, 5.0, 7.0, 100.0, 0.2, 1.26])])
    nearest = torch.cat([grid, torch.tensor([0.0, 1.0, 2.0, 4.0, 6.0, 6.0, 0.0, 1.5])])  # ties to the even mantissa
    pack = "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $1, $2; cvt.u32.u8 $0, t; }"
    packed = _words(pack, -x, x)
    codes = [grid.tolist().index(v) for v in nearest.tolist()]
    assert _unsigned(packed) == [(c | 8) << 4 | c for c in codes]
    halves = _words("{ .reg .b8 t; cvt.u8.u32 t, $1; cvt.rn.f16x2.e2m1x2 $0, t; }", packed, packed)
    assert _unsigned(halves) == _pairs((-nearest).half(), nearest.half())


def test_scales_are_powers_of_two_rounded_up():
    x = torch.tensor([1.0, 1.001, 2.0, 3.0, 0.75, 1e-30, 6.0e37, 448.0])
    packed = _words("{ .reg .b16 t; cvt.rp.satfinite.ue8m0x2.f32 t, $1, $2; cvt.u32.u16 $0, t; }", x, x)
    codes = [int(v) + 127 for v in torch.ceil(torch.log2(x.double()))]
    assert _unsigned(packed) == [c << 8 | c for c in codes]
    unpacked = _words("{ .reg .b16 t; cvt.u16.u32 t, $1; cvt.rn.bf16x2.ue8m0x2 $0, t; }", packed, packed)
    powers = torch.tensor([2.0 ** (c - 127) for c in codes])
    assert _unsigned(unpacked) == _pairs(powers.bfloat16(), powers.bfloat16())


@triton.jit
def pairs_of_floats_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    out = tl.inline_asm_elementwise(
        "{ .reg .b64 a, b; mov.b64 a, {$2, $3}; mov.b64 b, {$4, $5}; fma.rn.f32x2 a, a, b, b; mov.b64 {$0, $1}, a; }",
        "=f,=f,f,f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=2,
    )  # fmt: skip
    tl.store(out_ptr + i, out)


def test_pairs_of_floats():
    x, y, out = torch.randn(64), torch.randn(64), torch.zeros(64)
    pairs_of_floats_kernel[(1,)](x, y, out, N=64)
    torch.testing.assert_close(out, x * y + y)


@triton.jit
def largest_magnitude(a, b):
    return tl.inline_asm_elementwise(
        "{ max.NaN.xorsign.abs.f32 $0, $1, $2; and.b32 $0, $0, 0x7fffffff; }",
        "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def reduce_by_assembly_kernel(x_ptr, row_ptr, all_ptr, scan_ptr, M: tl.constexpr, N: tl.constexpr):
    at = (tl.program_id(0) * M + tl.arange(0, M))[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(row_ptr + tl.program_id(0) * M + tl.arange(0, M), tl.reduce(x, 1, largest_magnitude))
    tl.store(all_ptr + tl.program_id(0), tl.reduce(tl.ravel(x), 0, largest_magnitude))
    tl.store(scan_ptr + at, tl.associative_scan(x, 1, largest_magnitude))


def test_combine_function_in_assembly():
    x = torch.randn(3 * 8, 16)
    x[5, 3] = float("nan")
    rows, everything, scan = torch.zeros(24), torch.zeros(3), torch.zeros(24, 16)
    reduce_by_assembly_kernel[(3,)](x, rows, everything, scan, M=8, N=16)
    torch.testing.assert_close(rows, x.abs().amax(1), equal_nan=True)
    torch.testing.assert_close(everything, x.abs().view(3, -1).amax(1), equal_nan=True)
    torch.testing.assert_close(scan[8:, 1:], x.abs().cummax(1).values[8:, 1:])  # the first element is not combined


@triton.jit
def refused_kernel(out_ptr, TEXT: tl.constexpr):
    value = tl.inline_asm_elementwise(TEXT, "=r", [], dtype=tl.uint32, is_pure=True, pack=1)
    tl.store(out_ptr + tl.program_id(0), value.to(tl.int32))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mov.u32 $0, %envreg1;", "reads %envreg1, which has no value"),
        ("cp.async.wait_all; mov.u32 $0, 1;", "instruction is not supported: cp.async.wait_all"),
        ("bra nowhere;", "branches to an unknown label nowhere"),
    ],
    ids=["register", "instruction", "label"],
)
def test_what_is_not_supported_names_kernel_and_line(text: str, what: str):
    with pytest.raises(
        NotImplementedError, match=rf"kernel refused_kernel: .*{what}[^$]*at \S*test_inline_assembly.py:\d+"
    ):
        refused_kernel[(1,)](torch.zeros(4, dtype=torch.int32), TEXT=text)
