"""Floating point: functions, NaN rules, contractions, and conversions between formats bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernbench.triton_engine.driver.target import set_target

RAW_BITS = pytest.mark.beyond_interpreter("bf16 is arithmetic on raw bits, or rounds wrongly")
BFLOAT16 = pytest.param("bfloat16", marks=RAW_BITS)
UNARY = ["exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "abs", "neg", "floor", "ceil", "erf", "sigmoid"]


@triton.jit
def unary_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + 0 * N + i, tl.exp(x))
    tl.store(out_ptr + 1 * N + i, tl.exp2(x))
    tl.store(out_ptr + 2 * N + i, tl.log(x))
    tl.store(out_ptr + 3 * N + i, tl.log2(x))
    tl.store(out_ptr + 4 * N + i, tl.sin(x))
    tl.store(out_ptr + 5 * N + i, tl.cos(x))
    tl.store(out_ptr + 6 * N + i, tl.sqrt(x))
    tl.store(out_ptr + 7 * N + i, tl.rsqrt(x))
    tl.store(out_ptr + 8 * N + i, tl.abs(x))
    tl.store(out_ptr + 9 * N + i, -x)
    tl.store(out_ptr + 10 * N + i, tl.floor(x))
    tl.store(out_ptr + 11 * N + i, tl.ceil(x))
    tl.store(out_ptr + 12 * N + i, tl.erf(x))
    tl.store(out_ptr + 13 * N + i, tl.sigmoid(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unary_functions(dtype):
    x = np.concatenate([np.linspace(-8, 8, 120), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-3, 40.0, -40.0]]).astype(dtype)
    out = torch.zeros((len(UNARY), 128), dtype=getattr(torch, dtype))
    unary_kernel[(1,)](torch.from_numpy(x), out, N=128)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = {
            "exp": np.exp(wide), "exp2": np.exp2(wide), "log": np.log(wide), "log2": np.log2(wide),
            "sin": np.sin(wide), "cos": np.cos(wide), "sqrt": np.sqrt(wide), "rsqrt": 1 / np.sqrt(wide),
            "abs": np.abs(wide), "neg": -wide, "floor": np.floor(wide), "ceil": np.ceil(wide),
            "erf": np.array([math.erf(v) for v in wide]), "sigmoid": 1 / (1 + np.exp(-wide)),
        }  # fmt: skip
    tolerance = 2e-6 if dtype == "float32" else 1e-13
    for name, row in zip(UNARY, out.numpy(), strict=True):
        np.testing.assert_allclose(row, expected[name], rtol=tolerance, atol=tolerance * 1e-1, err_msg=name)


@triton.jit
def binary_kernel(a_ptr, b_ptr, c_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    c = tl.load(c_ptr + i)
    tl.store(out_ptr + 0 * N + i, a + b)
    tl.store(out_ptr + 1 * N + i, a - b)
    tl.store(out_ptr + 2 * N + i, a * b)
    tl.store(out_ptr + 3 * N + i, a / b)
    tl.store(out_ptr + 4 * N + i, tl.fma(a, b, c))
    tl.store(out_ptr + 5 * N + i, tl.where(a > b, a, c))
    tl.store(out_ptr + 6 * N + i, a % b)


@triton.jit
def division_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, tl.fdiv(a, b))
    tl.store(out_ptr + N + i, tl.div_rn(a, b))
    tl.store(out_ptr + 2 * N + i, tl.sqrt_rn(b))


def test_rounded_division_and_root():
    a, b = torch.randn(128), torch.rand(128) + 0.1
    out = torch.zeros(3, 128)
    division_kernel[(1,)](a, b, out, N=128)
    torch.testing.assert_close(out[0], a / b)
    assert torch.equal(out[1], (a.double() / b.double()).float())
    assert torch.equal(out[2], b.double().sqrt().float())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", BFLOAT16])
def test_binary_arithmetic(dtype):
    kind = getattr(torch, dtype)
    a, b, c = (torch.randn(128).to(kind) for _ in range(3))
    b = b.abs() + 0.5
    out = torch.zeros((7, 128), dtype=kind)
    binary_kernel[(1,)](a, b, c, out, N=128)
    x, y, z = a.double(), b.double(), c.double()
    exact = [x + y, x - y, x * y, x / y, x * y + z, torch.where(x > y, x, z), torch.fmod(x, y)]
    eps = torch.finfo(kind).eps
    for row, expected in zip(out, exact, strict=True):
        torch.testing.assert_close(row.double(), expected, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_half_arithmetic_rounds_once_per_operation(dtype):
    kind = getattr(torch, dtype)
    a, b = torch.randn(128).to(kind), torch.rand(128).to(kind) + 0.5
    out = torch.zeros((7, 128), dtype=kind)
    binary_kernel[(1,)](a, b, a, out, N=128)
    for row, expected in zip(out[:3], [a + b, a - b, a * b], strict=True):
        assert torch.equal(row, expected)


@triton.jit
def nan_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    tl.store(out_ptr + 0 * N + i, tl.minimum(a, b))
    tl.store(out_ptr + 1 * N + i, tl.maximum(a, b))
    tl.store(out_ptr + 2 * N + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 3 * N + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 4 * N + i, tl.clamp(a, -1.0, 1.0))
    tl.store(out_ptr + 5 * N + i, tl.clamp(a, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 6 * N + i, (a < b).to(tl.float32))
    tl.store(out_ptr + 7 * N + i, (a != b).to(tl.float32))
    tl.store(out_ptr + 8 * N + i, (a == b).to(tl.float32))
    tl.store(out_ptr + 9 * N + i, (a >= b).to(tl.float32))


@pytest.mark.beyond_interpreter("propagates NaN always")
def test_nan_rules():
    values = [0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 0.25]
    a, b = (v.ravel().astype(np.float32) for v in np.meshgrid(values, values))
    out = torch.zeros((10, 64))
    nan_kernel[(1,)](torch.from_numpy(a), torch.from_numpy(b), out, N=64)
    clamped = np.clip(a, -1, 1)
    expected = [
        np.fmin(a, b), np.fmax(a, b), np.minimum(a, b), np.maximum(a, b),
        np.where(np.isnan(a), -1, clamped), clamped, a < b, a != b, a == b, a >= b,
    ]  # fmt: skip
    for k, (row, reference) in enumerate(zip(out.numpy(), expected, strict=True)):
        if k == 4:  # without propagation the result for NaN is one of the bounds
            reference = np.where(np.isnan(a), row, reference)
            assert np.isin(row[np.isnan(a)], [-1, 1]).all()
        np.testing.assert_array_equal(row, reference.astype(np.float32), err_msg=str(k))


@triton.jit
def cast_kernel(x_ptr, out_ptr, N: tl.constexpr, ROUNDING: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING))


def cast(x: torch.Tensor, dtype: torch.dtype, rounding: str | None = None) -> torch.Tensor:
    out = torch.zeros(x.shape, dtype=dtype)
    cast_kernel[(x.numel() // 64,)](x, out, N=64, ROUNDING=rounding)
    return out


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal bit for bit, any NaN equal to any NaN."""
    nan = torch.isnan(expected.float())
    return bool((torch.isnan(actual.float()) == nan).all()) and torch.equal(bits(actual)[~nan], bits(expected)[~nan])


def awkward_floats() -> torch.Tensor:
    """Values around every rounding boundary, ties, subnormals and limits of the narrow formats."""
    mantissas = 1 + torch.arange(0, 256) / 256
    exponents = torch.exp2(torch.arange(-30, 18).float())
    values = (mantissas[:, None] * exponents[None, :]).flatten()
    extra = torch.tensor(
        [0.0, math.inf, math.nan, 65504, 65519.9, 65520, 448, 464, 465, 480, 57344, 61440, 2**-24, 2**-25]
    )
    values = torch.cat(
        [values, values * (1 + 2**-20), values * (1 - 2**-20), extra, torch.zeros(64 - extra.numel() % 64)]
    )
    return torch.cat([values, -values])


@pytest.mark.parametrize("target", [torch.float16, pytest.param(torch.bfloat16, marks=RAW_BITS), torch.float64])
def test_fp32_rounds_to_nearest_even(target):
    x = awkward_floats()
    assert same(cast(x, target), x.to(target))


@pytest.mark.beyond_interpreter("carries are lost in its fp8 rounding")
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_rounds_to_nearest_even(source, target):
    x = awkward_floats().to(source)
    limit = torch.finfo(target).max
    x = x[x.float().abs() < limit * (1 + 2**-6)]
    x = torch.cat([x, torch.zeros(-x.numel() % 64, dtype=source)])
    assert same(cast(x, target), x.float().to(target))


@pytest.mark.beyond_interpreter("does not saturate")
@pytest.mark.parametrize("target", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_saturates_as_the_hardware_conversion_does(target):
    """``cvt.rn.satfinite``: what is too large, infinities included, becomes the largest finite value; NaN stays."""
    limit = torch.finfo(target).max
    x = torch.tensor([1e6, -1e6, math.inf, -math.inf, limit * 1.2, -limit * 1.2, math.nan, limit] * 8)
    expected = torch.tensor([limit, -limit, limit, -limit, limit, -limit, math.nan, limit] * 8)
    torch.testing.assert_close(cast(x, target).float(), expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.beyond_interpreter("fp8 subnormals become zero")
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("source", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_widens_exactly(source, target):
    x = torch.arange(256, dtype=torch.uint8).view(source)
    expected = x.float()
    finite = torch.isfinite(expected)
    assert torch.equal(cast(x, target).float()[finite], expected.to(target).float()[finite])


@pytest.mark.parametrize("source", [torch.float16, pytest.param(torch.bfloat16, marks=RAW_BITS)])
def test_half_formats_widen_exactly(source):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(source)
    assert same(cast(x, torch.float32), x.float())


@pytest.mark.beyond_interpreter("subnormals round wrongly")
@pytest.mark.parametrize(("target", "drop"), [(torch.float16, 13), (torch.bfloat16, 16)])
def test_rounding_towards_zero(target, drop):
    x = torch.randn(256).clamp(-3, 3)
    x = torch.where(x.abs() < 1e-3, torch.ones(()), x)
    truncated = (x.view(torch.int32) & -(1 << drop)).view(torch.float32)
    assert torch.equal(cast(x, target, "rtz").float(), truncated)


@triton.jit
def bitcast_kernel(x_ptr, out_ptr, back_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    as_int = x.to(out_ptr.dtype.element_ty, bitcast=True)
    tl.store(out_ptr + i, as_int)
    tl.store(back_ptr + i, (as_int ^ 0).to(x.dtype, bitcast=True))


@pytest.mark.parametrize(
    ("source", "target"), [("float32", "int32"), ("float64", "int64"), ("float16", "int16"), ("bfloat16", "uint16")]
)
def test_bitcast_round_trip(source, target):
    x = torch.randn(64).to(getattr(torch, source))
    out, back = torch.zeros(64, dtype=getattr(torch, target)), torch.zeros_like(x)
    bitcast_kernel[(1,)](x, out, back, N=64)
    assert torch.equal(out, x.view(getattr(torch, target)))
    assert torch.equal(back, x)


@triton.jit
def constants_kernel(out_ptr):
    tl.store(out_ptr + 0, float("inf"))
    tl.store(out_ptr + 1, float("-inf"))
    tl.store(out_ptr + 2, 0.1)
    tl.store(out_ptr + 3, 1e-45)
    tl.store(out_ptr + 4, -3.4028234663852886e38)
    tl.store(out_ptr + 5, float("nan"))
    tl.store(out_ptr + 6, 16777217.0)


def test_float_constants():
    out = torch.zeros(7)
    constants_kernel[(1,)](out)
    expected = np.array([np.inf, -np.inf, 0.1, 1e-45, -3.4028234663852886e38, np.nan, 16777217.0], dtype=np.float32)
    np.testing.assert_array_equal(out.numpy(), expected)


@triton.jit
def float_argument_kernel(out_ptr, x, y):
    tl.store(out_ptr, x)
    tl.store(out_ptr + 1, x * y)
    tl.store(out_ptr + 2, y + 1)


@pytest.mark.beyond_interpreter("float arguments stay Python doubles")
def test_float_arguments_are_fp32():
    out = torch.zeros(3, dtype=torch.float64)
    float_argument_kernel[(1,)](out, 0.1, 3.0)
    x = np.float32(0.1)
    np.testing.assert_array_equal(out.numpy(), np.array([x, x * np.float32(3), 4.0], dtype=np.float64))


#: What becomes of -1.5, 300, 70000, 3e9, -3e9 and NaN, by the instructions of compiled code (``kernel.asm``).
CONVERTED = {
    ("cuda:90", torch.uint8): [0, 300 % 256, 255, 255, 0, 0],
    ("cuda:90", torch.int8): [-1, 300 - 256, -1, -1, 0, 0],
    ("cuda:90", torch.int16): [-1, 300, 32767, 32767, -32768, 0],
    ("cuda:90", torch.int32): [-1, 300, 70000, 2**31 - 1, -(2**31), 0],
    ("hip:gfx942", torch.uint8): [255, 300 % 256, 70000 % 256, 255, 0, 0],
    ("hip:gfx942", torch.int16): [-1, 300, 70000 - 65536, -1, 0, 0],
    ("hip:gfx942", torch.int32): [-1, 300, 70000, 2**31 - 1, -(2**31), 0],
}


@pytest.mark.beyond_interpreter("wraps around")
@pytest.mark.parametrize(("gpu", "dtype"), CONVERTED)
def test_floats_out_of_range_become_what_the_instruction_makes_of_them(gpu, dtype):
    set_target(gpu)
    try:
        x = torch.tensor([-1.5, 300.0, 70000.0, 3e9, -3e9, math.nan, 0.0, 0.0] * 8)
        out = torch.empty(64, dtype=dtype)
        cast_kernel[(1,)](x, out, N=64, ROUNDING=None)
    finally:
        set_target(None)
    assert out[:6].tolist() == CONVERTED[gpu, dtype]
