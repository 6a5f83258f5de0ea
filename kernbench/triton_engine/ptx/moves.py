"""Moves, bit fields, and what the threads of a warp tell each other: an element is a thread alone here."""

from __future__ import annotations

import numpy as np

from .numbers import U64, decode, encode, width
from .parse import Instruction
from .state import State
from .table import instruction


@instruction("mov")
def _mov(s: State, i: Instruction) -> None:
    d, a = i.operands
    if a.startswith("{"):
        parts = [s.raw(n) for n in s.names(a)]
        size = width(i.type) // len(parts)
        out = np.zeros(s.count, dtype=U64)
        for k, p in enumerate(parts):
            out |= (p & U64((1 << size) - 1)) << U64(k * size)
        s.assign(d, out)
    elif d.startswith("{"):
        names = s.names(d)
        size = width(i.type) // len(names)
        raw = s.raw(a)
        for k, n in enumerate(names):
            s.assign(n, (raw >> U64(k * size)) & U64((1 << size) - 1))
    else:
        kind = i.type
        raw = s.raw(a)
        s.assign(d, raw if kind == "pred" or width(kind) == 64 else raw & U64((1 << width(kind)) - 1))


@instruction("cvta")
def _cvta(s: State, i: Instruction) -> None:
    s.assign(i.operands[0], s.raw(i.operands[1]))


@instruction("prmt")
def _prmt(s: State, i: Instruction) -> None:
    d, a, b, c = i.operands[:4]
    both = (s.raw(a) & U64(0xFFFFFFFF)) | (s.raw(b) << U64(32))
    selector = s.raw(c)
    out = np.zeros(s.count, dtype=U64)
    for k in range(4):
        pick = (selector >> U64(4 * k)) & U64(0xF)
        byte = (both >> ((pick & U64(7)) * U64(8))) & U64(0xFF)
        sign = np.where(byte & U64(0x80), U64(0xFF), U64(0))
        out |= np.where(pick & U64(8), sign, byte) << U64(8 * k)
    s.assign(d, out)


@instruction("lop3")
def _lop3(s: State, i: Instruction) -> None:
    d, a, b, c, table = i.operands[:5]
    x, y, z = s.raw(a), s.raw(b), s.raw(c)
    lut = int(table, 0)
    full = U64(0xFFFFFFFF)
    out = np.zeros(s.count, dtype=U64)
    for k in range(8):
        if lut >> k & 1:
            out |= (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
    s.assign(d, out & full)


@instruction("bfe")
def _bfe(s: State, i: Instruction) -> None:
    d, a, start, length = i.operands
    n = s.raw(length) & U64(0xFF)
    out = (s.raw(a) >> (s.raw(start) & U64(0xFF))) & ((U64(1) << n) - U64(1))
    if i.type[0] == "s":
        sign = (out >> (n - U64(1))) & U64(1)
        out = np.where(sign != 0, out | ~((U64(1) << n) - U64(1)), out) & U64((1 << width(i.type)) - 1)
    s.assign(d, out)


@instruction("bfi")
def _bfi(s: State, i: Instruction) -> None:
    d, a, b, start, length = i.operands
    at = s.raw(start) & U64(0xFF)
    field_ = ((U64(1) << (s.raw(length) & U64(0xFF))) - U64(1)) << at
    s.assign(d, (s.raw(b) & ~field_) | ((s.raw(a) << at) & field_))


@instruction("shf")
def _shf(s: State, i: Instruction) -> None:
    """Funnel shift: of the 64 bits ``b:a``, the upper word shifted left or the lower word shifted right."""
    d, a, b, c = i.operands
    full = U64(0xFFFFFFFF)
    both = (s.raw(b) & full) << U64(32) | (s.raw(a) & full)
    count = s.raw(c) & full
    count = np.minimum(count, U64(32)) if "clamp" in i.modifiers else count & U64(31)
    s.assign(d, (both << count) >> U64(32) if "l" in i.modifiers else (both >> count) & full)


def _bits(raw: np.ndarray, size: int) -> np.ndarray:
    """``[n, size]`` booleans, the lowest bit first."""
    return (raw[:, None] >> np.arange(size, dtype=U64)) & U64(1) != 0


@instruction("clz", "popc", "brev", "bfind")
def _count_bits(s: State, i: Instruction) -> None:
    d, a = i.operands
    size = width(i.type)
    raw = s.raw(a) & U64((1 << size) - 1 if size < 64 else 0xFFFFFFFFFFFFFFFF)
    if i.opcode == "bfind" and i.type[0] == "s":  # the highest bit that differs from the sign
        negative = decode(raw, i.type) < 0
        raw = np.where(negative, ~raw & U64((1 << size) - 1 if size < 64 else 0xFFFFFFFFFFFFFFFF), raw)
    bits = _bits(raw, size)
    highest = np.where(bits.any(1), size - 1 - bits[:, ::-1].argmax(1), -1)
    if i.opcode == "popc":
        out = bits.sum(1)
    elif i.opcode == "brev":
        s.assign(d, (bits[:, ::-1].astype(U64) << np.arange(size, dtype=U64)).sum(1, dtype=U64))
        return
    elif i.opcode == "clz" or "shiftamt" in i.modifiers:
        out = size - 1 - highest if i.opcode == "clz" else np.where(highest < 0, -1, size - 1 - highest)
    else:
        out = highest
    s.assign(d, encode(out.astype(np.int64), "s32"))


@instruction("shfl")
def _shfl(s: State, i: Instruction) -> None:
    """One element is one thread here: a shuffle returns its own value."""
    d, a = i.operands[:2]
    s.assign(d.partition("|")[0], s.raw(a))


@instruction("vote")
def _vote(s: State, i: Instruction) -> None:
    d, a = i.operands[:2]
    s.assign(d, s.value(a, "pred").astype(U64))


@instruction("activemask")
def _activemask(s: State, i: Instruction) -> None:
    s.assign(i.operands[0], np.ones(s.count, dtype=U64))
