"""Integers of one program, however they were made, wherever they are used: for one program and for several."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

NUMBERS = [3, 1, 4, 2]
TABLE = [10 * k for k in range(16)]


@triton.jit
def kernel(ints, floats, table, out, WAY: tl.constexpr, USE: tl.constexpr):
    pid = tl.program_id(0)
    pair = pid + tl.zeros((2,), tl.int32)
    one = pid + tl.zeros((1,), tl.int32)
    if WAY == "loaded":
        n = tl.load(ints + pid)
    elif WAY == "bits of a float":
        n = tl.load(floats + pid).to(tl.int32, bitcast=True) * 0 + tl.load(ints + pid)
    elif WAY == "rounded":
        n = tl.load(floats + pid).to(tl.int32)
    elif WAY == "half of a pair":
        n, _ = tl.split(tl.load(ints + pair))
    elif WAY == "the element":
        n = tl.load(ints + one).item()
    elif WAY == "gathered":
        n = tl.gather(tl.load(ints + tl.arange(0, 4)), one, 0).item()
    elif WAY == "called":
        n = libdevice.float2int_rn(tl.load(floats + pid))
    elif WAY == "exchanged":
        n = tl.atomic_xchg(floats + pid, 0.0).to(tl.int32)
    else:
        n = tl.sum(tl.load(ints + pair), 0) // 2

    if USE == "address":
        tl.store(out + pid, tl.load(table + n))
    elif USE == "bound":
        total = 0
        for k in range(n):
            total += k + 1
        tl.store(out + pid, total)
    elif USE == "shifts":
        tl.store(out + pid, (n << 3) ^ (n >> 1))
    elif USE == "quotients":
        tl.store(out + pid, (100 // n) * 1000 + 100 % n)
    elif USE == "unsigned":
        tl.store(out + pid, (n.to(tl.uint32) - 5) // 3)
    elif USE == "mask":
        tl.store(out + pid, 7, mask=n > 2)
    elif USE == "atomic":
        tl.atomic_max(out + pid, n, mask=(n >> 1) == 1)
    elif USE == "assembly":
        doubled = tl.inline_asm_elementwise("add.s32 $0, $1, $1;", "=r,r", [n], dtype=tl.int32, is_pure=True, pack=1)
        tl.store(out + pid, doubled)
    else:
        if n > 2:
            place = out + pid
        else:
            place = table + n
        tl.store(place, n)


USES = {
    "address": lambda n: TABLE[n],
    "bound": lambda n: n * (n + 1) // 2,
    "shifts": lambda n: (n << 3) ^ (n >> 1),
    "quotients": lambda n: 100 // n * 1000 + 100 % n,
    "unsigned": lambda n: ((n - 5) % 2**32) // 3,
    "mask": lambda n: 7 if n > 2 else -1,
    "atomic": lambda n: n if n >> 1 == 1 else -1,
    "assembly": lambda n: 2 * n,
    "place": lambda n: n if n > 2 else -1,
}
WAYS = (
    "loaded", "bits of a float", "rounded", "half of a pair", "the element", "gathered", "called", "exchanged", "reduced"
)  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_integers_of_a_program_are_the_same_wherever_they_come_from(use):
    for way in WAYS:
        for programs in (1, 4):
            ints = torch.tensor(NUMBERS, dtype=torch.int32)
            out = torch.full((4,), -1)
            kernel[(programs,)](ints, ints.float(), torch.tensor(TABLE), out, WAY=way, USE=use)
            expected = [USES[use](n) for n in NUMBERS[:programs]] + [-1] * (4 - programs)
            assert out.tolist() == expected, (way, programs)


@triton.jit
def bits_of_floats(low, high, x):
    pid = tl.program_id(0)
    number = tl.load(x + pid)
    tl.atomic_min(low + pid, number)
    tl.atomic_max(high + pid, number)


def test_extrema_of_one_float_per_program():
    """Triton updates floats as integers of the same bits, in two instructions, one for each sign."""
    for programs in (1, 3):
        x = torch.tensor([-0.0, 2.5, -3.0])
        low, high = torch.full((3,), 2.0), torch.full((3,), -2.0)
        bits_of_floats[(programs,)](low, high, x)
        assert low[:programs].tolist() == [-0.0, 2.0, -3.0][:programs]
        assert high[:programs].tolist() == [-0.0, 2.5, -2.0][:programs]
        assert torch.signbit(high[0])
