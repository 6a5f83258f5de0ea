"""Integer arithmetic: wrap-around, truncating division, shifts, unsigned types, casts: exact, in every width."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
BINARY = [
    "add", "sub", "mul", "div", "mod", "and", "or", "xor", "shl", "shr", "min", "max", "lt", "le", "gt", "ge", "eq",
    "ne", "cdiv",
]  # fmt: skip


@triton.jit
def binary_kernel(a_ptr, b_ptr, shift_ptr, positive_ptr, out_ptr, N: tl.constexpr):
    """Row ``i`` of ``out`` is the ``i``-th operation of ``BINARY``."""
    i = tl.arange(0, N)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    shift = tl.load(shift_ptr + i)
    positive = tl.load(positive_ptr + i)
    tl.store(out_ptr + 0 * N + i, a + b)
    tl.store(out_ptr + 1 * N + i, a - b)
    tl.store(out_ptr + 2 * N + i, a * b)
    tl.store(out_ptr + 3 * N + i, a // b)
    tl.store(out_ptr + 4 * N + i, a % b)
    tl.store(out_ptr + 5 * N + i, a & b)
    tl.store(out_ptr + 6 * N + i, a | b)
    tl.store(out_ptr + 7 * N + i, a ^ b)
    tl.store(out_ptr + 8 * N + i, a << shift)
    tl.store(out_ptr + 9 * N + i, a >> shift)
    tl.store(out_ptr + 10 * N + i, tl.minimum(a, b))
    tl.store(out_ptr + 11 * N + i, tl.maximum(a, b))
    tl.store(out_ptr + 12 * N + i, a < b)
    tl.store(out_ptr + 13 * N + i, a <= b)
    tl.store(out_ptr + 14 * N + i, a > b)
    tl.store(out_ptr + 15 * N + i, a >= b)
    tl.store(out_ptr + 16 * N + i, a == b)
    tl.store(out_ptr + 17 * N + i, a != b)
    tl.store(out_ptr + 18 * N + i, tl.cdiv(positive, b & 7 | 1))


def samples(dtype: str, n: int, seed: int) -> np.ndarray:
    """Corners of the type, then random values of its whole range."""
    info = np.iinfo(dtype)
    corners = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, info.max // 2, info.min // 2, 3, 7]
    rest = np.random.default_rng(seed).integers(info.min, info.max, n - len(corners), dtype=dtype, endpoint=True)
    return np.concatenate([np.array(corners, dtype=dtype), rest])


def truncating_divmod(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """C's ``/`` and ``%`` (towards zero) from Python's exact integers."""
    quotient = [
        abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    q = np.array(quotient, dtype=object)
    return q, a.astype(object) - q * b.astype(object)


def wrap(values: np.ndarray, dtype: str) -> np.ndarray:
    """Exact integers reduced to the type, two's complement."""
    bits = np.iinfo(dtype).bits
    unsigned = np.array([int(v) & ((1 << bits) - 1) for v in values], dtype=f"uint{bits}")
    return unsigned.view(dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_binary_operations(dtype):
    n = 256
    info = np.iinfo(dtype)
    a, b = samples(dtype, n, 1), samples(dtype, n, 2)[::-1].copy()
    b[b == 0] = 5
    b[(a == info.min) & (b == -1 if info.min < 0 else False)] = 3  # overflows: undefined in C
    shift = (np.arange(n) % info.bits).astype(dtype)
    positive = np.abs(a // 2).astype(dtype) // 2
    out = torch.zeros((len(BINARY), n), dtype=getattr(torch, dtype))
    binary_kernel[(1,)](*(torch.from_numpy(v) for v in (a, b, shift, positive)), out, N=n)

    x, y = a.astype(object), b.astype(object)
    quotient, remainder = truncating_divmod(a, b)
    divisor = (y & 7) | 1
    expected = {
        "add": x + y, "sub": x - y, "mul": x * y, "div": quotient, "mod": remainder,
        "and": x & y, "or": x | y, "xor": x ^ y,
        "shl": x << shift.astype(object), "shr": x >> shift.astype(object),
        "min": np.minimum(a, b), "max": np.maximum(a, b),
        "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b,
        "cdiv": -(-positive.astype(object) // divisor),
    }  # fmt: skip
    wrong = [
        op for op, row in zip(BINARY, out.numpy(), strict=True) if not np.array_equal(row, wrap(expected[op], dtype))
    ]
    assert wrong == []


@triton.jit
def unary_kernel(a_ptr, out_ptr, N: tl.constexpr, SIGNED: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(a_ptr + i)
    if SIGNED:
        tl.store(out_ptr + i, -a)
        tl.store(out_ptr + 1 * N + i, tl.abs(a))
    else:
        tl.store(out_ptr + i, 0 - a)
        tl.store(out_ptr + 1 * N + i, a)
    tl.store(out_ptr + 2 * N + i, ~a)
    tl.store(out_ptr + 3 * N + i, tl.where(a == 0, 1, 0))
    tl.store(out_ptr + 4 * N + i, tl.where(a != 0, 1, 0))


@pytest.mark.beyond_interpreter("no bitwise not of unsigned tensors")
@pytest.mark.parametrize("dtype", INTEGERS)
def test_unary_operations(dtype):
    a = samples(dtype, 64, 3)
    out = torch.zeros((5, 64), dtype=getattr(torch, dtype))
    unary_kernel[(1,)](torch.from_numpy(a), out, N=64, SIGNED=dtype.startswith("int"))
    x = a.astype(object)
    for row, expected in zip(out.numpy(), [-x, abs(x), ~x, x == 0, x != 0], strict=True):
        np.testing.assert_array_equal(row, wrap(expected, dtype))


@triton.jit
def cast_kernel(a_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(a_ptr + i).to(out_ptr.dtype.element_ty))


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", ["int8", "uint8", "int32", "uint32", "int64"])
def test_integer_casts_wrap_and_extend(source, target):
    a = samples(source, 64, 4)
    out = torch.zeros(64, dtype=getattr(torch, target))
    cast_kernel[(1,)](torch.from_numpy(a), out, N=64)
    np.testing.assert_array_equal(out.numpy(), wrap(a.astype(object), target))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_to_float_and_back(dtype):
    a = samples(dtype, 64, 5)
    as_float = torch.zeros(64)
    cast_kernel[(1,)](torch.from_numpy(a), as_float, N=64)
    np.testing.assert_array_equal(as_float.numpy(), a.astype(np.float32))

    info = np.iinfo(dtype)
    f = np.linspace(max(info.min, -(2.0**40)) * 0.99, min(info.max, 2.0**40) * 0.99, 64, dtype=np.float32)
    back = torch.zeros(64, dtype=getattr(torch, dtype))
    cast_kernel[(1,)](torch.from_numpy(f), back, N=64)
    np.testing.assert_array_equal(back.numpy(), np.trunc(f).astype(dtype))


@triton.jit
def mulhi_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.umulhi(tl.load(a_ptr + i), tl.load(b_ptr + i)))


@pytest.mark.beyond_interpreter("multiplies signed operands as signed")
@pytest.mark.parametrize("dtype", ["uint32", "uint64", "int32", "int64"])
def test_umulhi_is_the_unsigned_upper_half(dtype):
    bits = np.iinfo(dtype).bits
    a, b = samples(dtype, 128, 6), samples(dtype, 128, 7)
    out = torch.zeros(128, dtype=getattr(torch, dtype))
    mulhi_kernel[(1,)](torch.from_numpy(a), torch.from_numpy(b), out, N=128)
    product = a.view(f"uint{bits}").astype(object) * b.view(f"uint{bits}").astype(object)
    np.testing.assert_array_equal(out.numpy(), wrap(product >> bits, dtype))


@triton.jit
def scalar_kernel(out_ptr, a, b):
    """The same semantics on scalars: arguments, not tiles."""
    tl.store(out_ptr, a // b)
    tl.store(out_ptr + 1, a % b)
    tl.store(out_ptr + 2, a * 65536 * 65536)
    tl.store(out_ptr + 3, min(a, b))
    tl.store(out_ptr + 4, max(a, b))
    tl.store(out_ptr + 5, tl.cdiv(a, b))
    tl.store(out_ptr + 6, (a + 2147483647).to(tl.int64))


@pytest.mark.beyond_interpreter("scalar arguments follow Python's integers")
@pytest.mark.parametrize(("a", "b"), [(7, 3), (-7, 3), (7, -3), (-7, -3), (17, 16)])
def test_scalar_arithmetic(a, b):
    out = torch.zeros(7, dtype=torch.int64)
    scalar_kernel[(1,)](out, a, b)
    q, r = truncating_divmod(np.array([a]), np.array([b]))
    ceiling = truncating_divmod(np.array([a + b - 1]), np.array([b]))[0][0]
    total = wrap(np.array([a + 2147483647], dtype=object), "int32")[0]
    assert out.tolist() == [q[0], r[0], wrap(np.array([a << 32]), "int32")[0], min(a, b), max(a, b), ceiling, total]


@triton.jit
def large_scalar_kernel(out_ptr, big, unsigned):
    tl.store(out_ptr, big + 1)
    tl.store(out_ptr + 1, unsigned.to(tl.int64, bitcast=True))
    tl.store(out_ptr + 2, (unsigned >> 1).to(tl.int64))


def test_scalars_wider_than_32_bits_keep_their_value():
    out = torch.zeros(3, dtype=torch.int64)
    big, unsigned = 2**40 + 3, 2**64 - 5
    large_scalar_kernel[(1,)](out, big, unsigned)
    assert out.tolist() == [big + 1, -5, unsigned >> 1]


@triton.jit
def hash_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """A murmur-like mix: wraps at every step."""
    i = tl.arange(0, N)
    h = tl.load(x_ptr + i)
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    h ^= h >> 16
    tl.store(out_ptr + i, h)


def test_unsigned_hash():
    x = samples("uint32", 128, 8)
    out = torch.zeros(128, dtype=torch.uint32)
    hash_kernel[(1,)](torch.from_numpy(x), out, N=128)
    h = x.copy()
    h ^= h >> 16
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> 13
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> 16
    np.testing.assert_array_equal(out.numpy(), h)


@triton.jit
def boolean_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    """Booleans are integers of one bit: sums wrap, and dividing or shifting them is legal if odd."""
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i) != 0, tl.load(b_ptr + i) != 0
    tl.store(out_ptr + 0 * N + i, a + b)
    tl.store(out_ptr + 1 * N + i, a - b)
    tl.store(out_ptr + 2 * N + i, a * b)
    tl.store(out_ptr + 3 * N + i, a // b)
    tl.store(out_ptr + 4 * N + i, a % b)
    tl.store(out_ptr + 5 * N + i, a << b)
    tl.store(out_ptr + 6 * N + i, a >> b)


@pytest.mark.beyond_interpreter("numpy's booleans do not wrap")
def test_arithmetic_of_booleans():
    a, b = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    out = torch.full((7, 4), 9, dtype=torch.int8)
    boolean_kernel[(1,)](a, b, out, N=4)
    both, one = [0, 0, 0, 1], [0, 1, 1, 0]
    first, first_only = [0, 0, 1, 1], [0, 0, 1, 0]  # a divisor is 1, to the compiler
    assert out.tolist() == [one, one, both, first, [0] * 4, first_only, first_only]


@triton.jit
def divide_kernel(a_ptr, b_ptr, out_ptr, seven, zero, N: tl.constexpr, SCALARS: tl.constexpr):
    tl.store(out_ptr + 2 * N, seven // zero)
    tl.store(out_ptr + 2 * N + 1, seven % zero)
    if SCALARS:
        for i in range(N):
            a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
            tl.store(out_ptr + i, a // b)
            tl.store(out_ptr + N + i, a % b)
    else:
        i = tl.arange(0, N)
        a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
        tl.store(out_ptr + i, a // b)
        tl.store(out_ptr + N + i, a % b)


@pytest.mark.beyond_interpreter("numpy warns of a division by zero")
@pytest.mark.parametrize("scalars", [False, True], ids=["tile", "scalars"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_by_zero(dtype: str, scalars: bool) -> None:
    """All ones on NVIDIA; of a number of 64 bits that fits into 32, 32 ones (pytorch 135330, 165650)."""
    info = np.iinfo(dtype)
    a = np.array([7, 0, info.max, info.min], dtype=dtype)
    b = np.array([0, 0, 0, 3], dtype=dtype)
    out = torch.zeros(10, dtype=getattr(torch, dtype))
    divide_kernel[(1,)](torch.from_numpy(a), torch.from_numpy(b), out, 7, 0, 4, scalars)
    ones = -1 if info.min < 0 else info.max
    short = 2**32 - 1 if info.bits == 64 else ones
    quotient, remainder = divmod(-int(info.min), 3)
    assert out.tolist() == [short, short, ones, -quotient, short, short, ones, -remainder, ones, ones]


@triton.jit
def divide_by_instructions(a_ptr, b_ptr, out_ptr):
    i = tl.arange(0, 4)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(out_ptr + i, tl.inline_asm_elementwise("div.s64 $0, $1, $2;", "=l,l,l", [a, b], tl.int64, True, 1))
    tl.store(out_ptr + 4 + i, tl.inline_asm_elementwise("rem.s64 $0, $1, $2;", "=l,l,l", [a, b], tl.int64, True, 1))
    small = tl.inline_asm_elementwise(
        "rem.u32 $0, $1, $2;", "=r,r,r", [a.to(tl.int32), b.to(tl.int32)], tl.int32, True, 1
    )
    tl.store(out_ptr + 8 + i, small)


@pytest.mark.beyond_interpreter("has no inline assembly")
def test_division_by_zero_in_instructions() -> None:
    out = torch.zeros(3, 4, dtype=torch.int64)
    divide_by_instructions[(1,)](torch.tensor([7, -7, 0, -7]), torch.tensor([0, 0, 0, 2]), out)
    assert out.tolist() == [[-1, -1, -1, -3], [-1, -1, -1, -1], [-1, -1, -1, 1]]
