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


EDGES = {
    "remainder": [(-1.5, 0.2), (-0.1, math.inf), (-0.0, 3.0), (5.0, 2.0), (7.0, 2.0), (2.5, 1.0), (1e300, 3.0)],
    "fdim": [(math.inf, math.inf), (1.0, -math.inf), (3.0, 1.0), (1.0, 3.0)],
    "erfcinv": [(1e-40,), (0.5,), (1.9,)],
    "normcdfinv": [(1e-40,), (0.5,), (0.9,)],
    "rcbrt": [(0.0,), (-8.0,), (math.inf,)],
    "tgamma": [(0.0,), (-0.0,), (-1.0,), (-88.0,), (-1.5,), (300.0,), (30.0,)],
    "logb": [(1 - 2.0**-53,), (1.0,), (0.0,), (-math.inf,), (5e-324,)],
    "round": [(0.49999999999999994,), (4503599627370497.0,), (-2.5,), (0.5,)],
    "sinpi": [(1.0,), (1e6 + 0.5,), (2.0**60,), (-0.25,)],
    "cospi": [(0.5,), (1e6 + 1,), (2.0**60,), (0.25,)],
    "norm4d": [(1e200, 0.0, 1e200, 0.0)],
    "rnorm3d": [(3.0, 0.0, 4.0)],
    "rhypot": [(3.0, 4.0)],
}
EDGE_VALUES = {
    "remainder": [math.remainder(a, b) for a, b in EDGES["remainder"]],
    "fdim": [0.0, math.inf, 2.0, 0.0],
    "erfcinv": [9.448789766720859, 0.4769362762044699, -1.1630871536766743],  # of mpmath
    "normcdfinv": [-13.310921371425171, 0.0, 1.2815515655446004],
    "rcbrt": [math.inf, -0.5, 0.0],
    "tgamma": [math.inf, -math.inf, math.nan, math.nan, math.gamma(-1.5), math.inf, math.gamma(30.0)],
    "logb": [-1.0, 0.0, -math.inf, math.inf, -1074.0],
    "round": [0.0, 4503599627370497.0, -3.0, 1.0],
    "sinpi": [0.0, 1.0, 0.0, -(0.5**0.5)],
    "cospi": [0.0, -1.0, 1.0, 0.5**0.5],
    "norm4d": [2**0.5 * 1e200],
    "rnorm3d": [0.2],
    "rhypot": [0.2],
}


@triton.jit
def four_kernel(a_ptr, b_ptr, c_ptr, d_ptr, out_ptr, FUNCTION: tl.constexpr, OPERANDS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.load(a_ptr + i), tl.load(b_ptr + i), tl.load(c_ptr + i), tl.load(d_ptr + i)
    if OPERANDS == 1:
        tl.store(out_ptr + i, FUNCTION(a))
    elif OPERANDS == 2:
        tl.store(out_ptr + i, FUNCTION(a, b))
    elif OPERANDS == 3:
        tl.store(out_ptr + i, FUNCTION(a, b, c))
    else:
        tl.store(out_ptr + i, FUNCTION(a, b, c, d))


def of_operands(function, rows, dtype, out_dtype):
    """What a function gives for rows of operands."""
    operands = len(rows[0])
    padded = [*rows, *[rows[0]] * (8 - len(rows))]
    columns = [torch.tensor([row[k % operands] for row in padded], dtype=dtype) for k in range(4)]
    out = torch.zeros(8, dtype=out_dtype)
    four_kernel[(1,)](*columns, out, FUNCTION=function, OPERANDS=operands, N=8)
    return out[: len(rows)]


@pytest.mark.parametrize("name", EDGES)
def test_arguments_at_the_edge(name):
    out = of_operands(getattr(cuda_libdevice, name), EDGES[name], torch.float64, torch.float64)
    expected = torch.tensor(EDGE_VALUES[name], dtype=torch.float64)
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-300, equal_nan=True)
    assert torch.equal(torch.signbit(out)[~out.isnan()], torch.signbit(expected)[~out.isnan()])


#: Pairs of 64 bits, from which those of 32 and both signs are made.
WORDS = [
    (2**63 - 1, 2**63 - 3),
    (2**62 + 12345, -(2**61)),
    (-1, -1),
    (-(2**63), 3),
    (0x1234567FEDCBA98, 0x0FEDCBA987654321),
    (7, 2),
]


def signed(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def low_24(value):
    return signed(value << 8, 32) >> 8


INTEGERS = {
    "mulhi": (("int32", "int64", "uint32", "uint64"), lambda a, b, bits: (a * b) >> bits),
    "hadd": (("int32", "uint32"), lambda a, b, bits: (a + b) >> 1),
    "rhadd": (("int32", "uint32"), lambda a, b, bits: (a + b + 1) >> 1),
    "mul24": (("int32",), lambda a, b, bits: low_24(a) * low_24(b)),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, (kinds, _) in INTEGERS.items() for kind in kinds])
def test_functions_of_integers(name, kind):
    dtype, bits = getattr(torch, kind), int(kind[-2:])
    number = (lambda v: v & ((1 << bits) - 1)) if kind.startswith("u") else (lambda v: signed(v, bits))
    rows = [(number(a), number(b)) for a, b in WORDS]
    out = of_operands(getattr(cuda_libdevice, name), rows, dtype, dtype)
    assert out.tolist() == [number(INTEGERS[name][1](a, b, bits)) for a, b in rows]


def test_functions_of_integers_without_a_sign_and_of_halves_of_doubles():
    rows = [(4000000000, 5, 7), (5, 4000000000, 7), (2**24 + 3, 2**25 + 5, 1)]
    out = of_operands(cuda_libdevice.sad, rows, torch.uint32, torch.uint32)
    assert out.tolist() == [abs(a - b) + c for a, b, c in rows]
    out = of_operands(cuda_libdevice.mul24, [row[:2] for row in rows], torch.uint32, torch.uint32)
    assert out.tolist() == [((a % 2**24) * (b % 2**24)) % 2**32 for a, b, _ in rows]
    x = [(math.pi,), (-1e300,), (5e-324,)]
    bits = torch.tensor(x, dtype=torch.float64).view(torch.int64).reshape(-1).tolist()
    high = of_operands(cuda_libdevice.double2hiint, x, torch.float64, torch.int32).tolist()
    low = of_operands(cuda_libdevice.double2loint, x, torch.float64, torch.int32).tolist()
    assert high == [signed(v >> 32, 32) for v in bits]
    assert low == [signed(v, 32) for v in bits]
    back = of_operands(cuda_libdevice.hiloint2double, list(zip(high, low, strict=True)), torch.int32, torch.float64)
    assert back.tolist() == [row[0] for row in x]


@pytest.mark.parametrize(
    ("source", "name"), [("float", "ull"), ("double", "ull"), ("double", "ll"), ("double", "uint")]
)
def test_what_an_integer_cannot_hold_becomes_the_closest(source, name):
    dtype = torch.float32 if source == "float" else torch.float64
    bits, unsigned = (32 if name == "uint" else 64), name.startswith("u")
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    x = [-1e30, -3.5, 2.5, 2.0**31, 2.0**63, 1.5 * 2.0**63, 2.0**64, math.inf]
    out_dtype = {"ull": torch.uint64, "ll": torch.int64, "uint": torch.uint32}[name]
    out = of_operands(getattr(cuda_libdevice, f"{source}2{name}_rz"), [(v,) for v in x], dtype, out_dtype)
    whole = [low if v < low else high if v > high else int(v) for v in x]
    assert out.tolist() == [min(max(v, low), high) for v in whole]


def test_functions_that_tritons_compiler_for_amd_writes_itself():
    from kernbench.triton_engine.ops.extern import function_of

    x = torch.tensor([-2.5, 0.5, 3.7])
    for name, expected in {"rint": x.round(), "fabs": x.abs(), "fast_expf": x.exp(), "fast_tanhf": x.tanh()}.items():
        assert torch.equal(function_of(f"__triton_hip_{name}")(x), expected)
    assert function_of("__triton_hip_llrint")(x).tolist() == [-2, 0, 4]
    assert function_of("__triton_hip_iabs")(torch.tensor([-2, 3])).tolist() == [2, 3]
    assert torch.equal(function_of("__triton_hip_fast_fdividef")(x, x), torch.ones(3))
