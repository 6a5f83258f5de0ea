"""CUDA's math library by its Triton names, against float64 references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

pytestmark = pytest.mark.beyond_interpreter("has no libdevice")


def each(function):
    return np.vectorize(function, otypes=[np.float64])


UNARY = {
    "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "asinh": np.arcsinh, "atanh": np.arctanh, "log1p": np.log1p, "expm1": np.expm1,
    "log10": np.log10, "exp10": lambda x: 10.0**x, "cbrt": np.cbrt, "erf": each(math.erf), "erfc": each(math.erfc),
    "tgamma": each(math.gamma), "lgamma": each(math.lgamma), "rsqrt": lambda x: x**-0.5, "rint": np.rint,
    "nearbyint": np.rint, "trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "sqrt": np.sqrt, "exp": np.exp,
    "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin, "cos": np.cos, "abs": np.abs,
    "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "j0": None, "normcdf": None, "erfinv": None,
    "round": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
}  # fmt: skip
SPECIAL = {
    "j0": torch.special.bessel_j0,
    "normcdf": torch.special.ndtr,
    "erfinv": torch.erfinv,
}


@triton.jit
def unary_kernel(x_ptr, out_ptr, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, FUNCTION(tl.load(x_ptr + i)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in UNARY if hasattr(cuda_libdevice, name)])
def test_unary_functions(name, dtype):
    x = torch.linspace(0.02, 0.98, 64, dtype=torch.float64) * (
        1 if name in ("atanh", "asin", "acos", "erfinv") else 3.7
    )
    if name in ("tanh", "sinh", "tan", "atan", "rint", "nearbyint", "trunc", "ceil", "floor", "round", "cbrt", "abs"):
        x = torch.where(torch.arange(64) % 2 == 0, x, -x)
    x = x.to(dtype)
    out = torch.zeros(64, dtype=dtype)
    unary_kernel[(1,)](x, out, FUNCTION=getattr(cuda_libdevice, name), N=64)
    wide = x.double()
    expected = SPECIAL[name](wide) if name in SPECIAL else torch.from_numpy(UNARY[name](wide.numpy()))
    tolerance = 5e-6 if dtype == torch.float32 else 1e-7 if name in SPECIAL else 1e-12
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


BINARY = {
    "pow": np.power, "atan2": np.arctan2, "fmod": np.fmod, "hypot": np.hypot, "copysign": np.copysign,
    "fdim": lambda a, b: np.maximum(a - b, 0), "remainder": each(math.remainder), "nextafter": None,
    "div_rn": np.divide, "add_rn": np.add, "mul_rn": np.multiply,
}  # fmt: skip


@triton.jit
def binary_kernel(a_ptr, b_ptr, out_ptr, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, FUNCTION(tl.load(a_ptr + i), tl.load(b_ptr + i)))


@pytest.mark.parametrize("name", [name for name in BINARY if hasattr(cuda_libdevice, name)])
def test_binary_functions(name):
    a, b = torch.rand(64) * 5 + 0.1, torch.rand(64) * 3 - 1.5
    out = torch.zeros(64)
    binary_kernel[(1,)](a, b, out, FUNCTION=getattr(cuda_libdevice, name), N=64)
    if name == "nextafter":
        assert torch.equal(out, torch.nextafter(a, b))
    else:
        expected = torch.from_numpy(BINARY[name](a.double().numpy(), b.double().numpy()))
        torch.testing.assert_close(out.double(), expected, rtol=5e-6, atol=5e-6)


@triton.jit
def bits_kernel(x_ptr, popc_ptr, clz_ptr, ffs_ptr, brev_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(popc_ptr + i, libdevice.popc(x))
    tl.store(clz_ptr + i, libdevice.clz(x))
    tl.store(ffs_ptr + i, libdevice.ffs(x))
    tl.store(brev_ptr + i, libdevice.brev(x))


def test_bit_functions():
    x = torch.randint(-(2**31), 2**31 - 1, (64,)).to(torch.int32)
    x[:4] = torch.tensor([0, 1, -1, -(2**31)])
    outs = [torch.zeros(64, dtype=torch.int32) for _ in range(4)]
    bits_kernel[(1,)](x, *outs, N=64)
    patterns = [format(v & 0xFFFFFFFF, "032b") for v in x.tolist()]
    popc, clz, ffs, brev = (o.tolist() for o in outs)
    assert popc == [p.count("1") for p in patterns]
    assert clz == [len(p) - len(p.lstrip("0")) for p in patterns]
    assert ffs == [p[::-1].find("1") + 1 for p in patterns]
    assert [v & 0xFFFFFFFF for v in brev] == [int(p[::-1], 2) for p in patterns]


@triton.jit
def classify_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, libdevice.isnan(x).to(tl.int32))
    tl.store(out_ptr + N + i, libdevice.isinf(x).to(tl.int32))
    tl.store(out_ptr + 2 * N + i, libdevice.finitef(x).to(tl.int32))
    tl.store(out_ptr + 3 * N + i, libdevice.signbit(x).to(tl.int32))


def test_classification():
    x = torch.tensor([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, 1e-40])
    out = torch.zeros(4, 8, dtype=torch.int32)
    classify_kernel[(1,)](x, out, N=8)
    expected = torch.stack([x.isnan(), x.isinf(), x.isfinite(), torch.signbit(x)])
    assert torch.equal(out != 0, expected)


@triton.jit
def conversion_kernel(x_ptr, out_ptr, bits_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, libdevice.float2int_rn(x))
    tl.store(out_ptr + N + i, libdevice.float2int_rd(x))
    tl.store(out_ptr + 2 * N + i, libdevice.float2int_ru(x))
    tl.store(out_ptr + 3 * N + i, libdevice.float2int_rz(x))
    tl.store(bits_ptr + i, libdevice.float_as_int(x))


def test_rounding_conversions():
    x = torch.tensor([0.5, 1.5, -0.5, -1.5, 2.4, -2.6, 100.0, -7.99])
    out, bits = torch.zeros(4, 8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    conversion_kernel[(1,)](x, out, bits, N=8)
    assert torch.equal(out, torch.stack([x.round(), x.floor(), x.ceil(), x.trunc()]).int())
    assert torch.equal(bits, x.view(torch.int32))
