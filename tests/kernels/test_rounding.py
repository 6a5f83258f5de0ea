"""Floating results are rounded once, and in the direction asked for, as exact fractions say."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

pytestmark = pytest.mark.beyond_interpreter("has no libdevice, and rounds by way of fp32")

N = 256
#: Bits of the mantissa, and the exponent of the smallest subnormal number.
FORMATS = {torch.float16: (11, -24), torch.bfloat16: (8, -133), torch.float32: (24, -149), torch.float64: (53, -1074)}


def rounded(value: Fraction, dtype: torch.dtype, mode: str = "rn") -> float:
    """The number of a format next to a fraction; overflow aside."""
    bits, least = FORMATS[dtype]
    if value == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(value.numerator))) - math.floor(math.log2(value.denominator))
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - bits + 1, least)
    whole = {"rn": round, "rd": math.floor, "ru": math.ceil, "rz": math.trunc}[mode](value / unit)
    return float(whole * unit)


def numbers(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Of many magnitudes, some beside each other's halves."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(N, generator=random, dtype=torch.float64)
    scale = torch.randint(-8, 8, (N,), generator=random)
    x = x * torch.exp2(torch.where(torch.arange(N) % 4 == 0, scale * 6, scale).double())
    few_bits = torch.round(x * 8) / 8
    return torch.where(torch.arange(N) % 3 == 0, few_bits, x).to(dtype)


@triton.jit
def two(x_ptr, y_ptr, out_ptr, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, FUNCTION(tl.load(x_ptr + i), tl.load(y_ptr + i)))


@triton.jit
def three(x_ptr, y_ptr, z_ptr, out_ptr, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, FUNCTION(tl.load(x_ptr + i), tl.load(y_ptr + i), tl.load(z_ptr + i)))


@triton.jit
def one(x_ptr, out_ptr, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, FUNCTION(tl.load(x_ptr + i)))


EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y if y else Fraction(0),
}


@pytest.mark.parametrize("mode", ["rn", "rd", "ru", "rz"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_libdevice_rounds_in_a_direction(name, dtype, mode):
    x, y = numbers(dtype, 1), numbers(dtype, 2)
    y = torch.where(y == 0, 1, y).to(dtype)
    out = torch.zeros(N, dtype=dtype)
    two[(1,)](x, y, out, FUNCTION=getattr(libdevice, f"{name}_{mode}"), N=N)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    assert out.tolist() == [rounded(EXACT[name](Fraction(a), Fraction(b)), dtype, mode) for a, b in pairs]


@pytest.mark.parametrize("mode", ["rn", "rd", "ru", "rz"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fused_product_and_sum_rounds_in_a_direction(dtype, mode):
    x, y = numbers(dtype, 3), numbers(dtype, 4)
    z = torch.where(torch.arange(N) % 2 == 0, -(x * y), numbers(dtype, 5))
    out = torch.zeros(N, dtype=dtype)
    three[(1,)](x, y, z, out, FUNCTION=getattr(libdevice, f"fma_{mode}"), N=N)
    triples = zip(*(v.tolist() for v in (x, y, z)), strict=True)
    assert out.tolist() == [rounded(Fraction(a) * Fraction(b) + Fraction(c), dtype, mode) for a, b, c in triples]


@triton.jit
def fma_kernel(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.fma(tl.load(x_ptr + i), tl.load(y_ptr + i), tl.load(z_ptr + i)))


@pytest.mark.parametrize("dtype", FORMATS)
def test_fma_rounds_once(dtype):
    x, y = numbers(dtype, 6).clamp(-100, 100), numbers(dtype, 7).clamp(-100, 100)
    z = torch.where(torch.arange(N) % 2 == 0, -(x * y), numbers(dtype, 8).clamp(-1000, 1000))
    bits, _ = FORMATS[dtype]
    if bits < 53:  # beside a tie, on either side
        x[:2], y[:2] = torch.tensor([1 + 2.0 ** (1 - bits)], dtype=dtype), 1 + 2.0 ** (1 - bits)
        x[2:4], y[2:4] = 1.0, 1 + 2.0 ** (1 - bits)
        z[2:4] = torch.tensor([2.0**-bits, -(2.0**-bits)], dtype=dtype)
        x[4:6], y[4:6], z[4:6] = 2.0**-13, 2.0 ** -(bits // 2), torch.tensor([1.0, -1.0], dtype=dtype)
    out = torch.zeros(N, dtype=dtype)
    fma_kernel[(1,)](x, y, z, out, N=N)
    triples = zip(*(v.double().tolist() for v in (x, y, z)), strict=True)
    expected = [rounded(Fraction(a) * Fraction(b) + Fraction(c), dtype) for a, b, c in triples]
    assert out.double().tolist() == expected


@triton.jit
def cast_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty))


@triton.jit
def scalar_cast_kernel(x_ptr, out_ptr):
    i = tl.program_id(0)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty))


def beside_ties(source: torch.dtype, target: torch.dtype) -> torch.Tensor:
    """Numbers a little above and below a midpoint of the target: the little is lost on the way by fp32."""
    bits, _ = FORMATS[target]
    if source.is_floating_point:
        middle = 1 + 2.0**-bits * torch.tensor([1.0, 3.0, -1.0 + 2.0**bits, 5.0], dtype=source)
        x = torch.cat([middle + 2.0**-40, middle - 2.0**-40, middle])
        return torch.cat([x, -x])
    top = 15 if target is torch.float16 else source.itemsize * 8 - 1
    exact = [(1 << (top - 1)) + (k << (top - 1 - bits)) for k in (1, 3, 5)] if top > bits else [1]
    unsigned = source in (torch.uint32, torch.uint64)
    values = [v + d for v in exact for d in (-1, 0, 1)] + [2**24 + 1, 2**24 + 3]
    values += [] if unsigned else [-v for v in values]
    values += [2 ** (source.itemsize * 8) - 2**20 + 1] if unsigned and target is not torch.float16 else []
    return torch.tensor([v for v in values if target is not torch.float16 or abs(v) < 65504], dtype=source)


@pytest.mark.parametrize("kernel", [cast_kernel, scalar_cast_kernel])
@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("source", [torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64])
def test_casts_round_once(source, target, kernel):
    x = beside_ties(source, target)
    count = len(x)
    x = torch.cat([x, torch.ones(64 - count, dtype=torch.int64).to(source)])
    out = torch.zeros(64, dtype=target)
    kernel[(64,) if kernel is scalar_cast_kernel else (1,)](x, out, *(() if kernel is scalar_cast_kernel else (64,)))
    assert out.double().tolist() == [rounded(Fraction(v), target) for v in x.tolist()]


@pytest.mark.parametrize("mode", ["rn", "rd", "ru", "rz"])
@pytest.mark.parametrize(
    "name", ["int2float", "uint2float", "ll2float", "ull2float", "ll2double", "ull2double", "uint2double"]
)
def test_integers_become_floats_in_a_direction(name, mode):
    source = {"int": torch.int32, "uint": torch.uint32, "ll": torch.int64, "ull": torch.uint64}[name.partition("2")[0]]
    target = torch.float32 if name.endswith("float") else torch.float64
    if not hasattr(libdevice, f"{name}_{mode}"):
        pytest.skip("libdevice has this conversion to nearest only, as it is exact")
    x = beside_ties(source, torch.float32 if target is torch.float32 else torch.bfloat16)
    top = 2 ** (source.itemsize * 8 - 1) - 1
    x = torch.tensor([*x.tolist(), top, top - 1], dtype=source)
    x = torch.cat([x, torch.ones(64 - len(x), dtype=torch.int64).to(source)])
    out = torch.zeros(64, dtype=target)
    one[(1,)](x, out, FUNCTION=getattr(libdevice, f"{name}_{mode}"), N=64)
    assert out.tolist() == [rounded(Fraction(v), target, mode) for v in x.tolist()]


@triton.jit
def assembly_kernel(x_ptr, y_ptr, out_ptr, ASM: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(ASM, "=f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=1))


@pytest.mark.parametrize(("word", "mode"), [("rn", "rn"), ("rm", "rd"), ("rp", "ru"), ("rz", "rz")])
@pytest.mark.parametrize("name", ["add", "mul", "div", "fma"])
def test_assembly_rounds_in_a_direction(name, word, mode):
    x, y = numbers(torch.float32, 9), numbers(torch.float32, 10)
    y = torch.where(y == 0, 1, y).to(torch.float32)
    out = torch.zeros(N)
    operands = "$1, $2, $1" if name == "fma" else "$1, $2"
    assembly_kernel[(1,)](x, y, out, ASM=f"{name}.{word}.f32 $0, {operands};", N=N)
    exact = {**EXACT, "fma": lambda a, b: a * b + a}[name]
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    assert out.tolist() == [rounded(exact(Fraction(a), Fraction(b)), torch.float32, mode) for a, b in pairs]


@triton.jit
def conversion_kernel(x_ptr, out_ptr, ASM: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    out = tl.inline_asm_elementwise(ASM, "=r,l", [tl.load(x_ptr + i)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr + i, out)


@pytest.mark.parametrize(("word", "mode"), [("rn", "rn"), ("rm", "rd"), ("rp", "ru"), ("rz", "rz")])
@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("source", [torch.float64, torch.int64])
def test_conversions_of_assembly_round_once_in_a_direction(source, target, word, mode):
    if source is torch.float64 and target is torch.bfloat16:
        x = numbers(torch.float64, 11)
    else:
        x = beside_ties(source, target)
        x = torch.cat([x, torch.ones(N - len(x), dtype=torch.int64).to(source)])
    out = torch.zeros(N, dtype=torch.int32)
    to = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}[target]
    kind = "f64" if source is torch.float64 else "s64"
    holder, out_of = (".b32", "mov.b32 $0, t;") if to == "f32" else (".b16", "cvt.u32.u16 $0, t;")
    asm = f"{{ .reg {holder} t; cvt.{word}.{to}.{kind} t, $1; {out_of} }}"
    conversion_kernel[(1,)](x.view(torch.int64), out, ASM=asm, N=N)
    bits = out.numpy()
    got = (
        torch.from_numpy(bits if to == "f32" else bits.astype(np.uint16).view(np.int16)).view(target).double().tolist()
    )
    assert got == [rounded(Fraction(v), target, mode) for v in x.tolist()]
