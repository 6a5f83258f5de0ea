"""Moves and bit fields."""

from __future__ import annotations

import numpy as np

from .numbers import U64, decode, encode, width
from .parse import Instruction
from .state import State
from .table import instruction


@instruction("mov")
def _mov(state: State, instr: Instruction) -> None:
    d, a = instr.operands
    if a.startswith("{"):
        parts = [state.raw(n) for n in state.names(a)]
        size = width(instr.type) // len(parts)
        out = np.zeros(state.count, dtype=U64)
        for k, p in enumerate(parts):
            out |= (p & U64((1 << size) - 1)) << U64(k * size)
        state.assign(d, out)
    elif d.startswith("{"):
        names = state.names(d)
        size = width(instr.type) // len(names)
        raw = state.raw(a)
        for k, n in enumerate(names):
            state.assign(n, (raw >> U64(k * size)) & U64((1 << size) - 1))
    else:
        kind = instr.type
        raw = state.raw(a)
        state.assign(d, raw if kind == "pred" or width(kind) == 64 else raw & U64((1 << width(kind)) - 1))


@instruction("cvta")
def _cvta(state: State, instr: Instruction) -> None:
    state.assign(instr.operands[0], state.raw(instr.operands[1]))


@instruction("prmt")
def _prmt(state: State, instr: Instruction) -> None:
    d, a, b, c = instr.operands[:4]
    both = (state.raw(a) & U64(0xFFFFFFFF)) | (state.raw(b) << U64(32))
    selector = state.raw(c)
    out = np.zeros(state.count, dtype=U64)
    for k in range(4):
        pick = (selector >> U64(4 * k)) & U64(0xF)
        byte = (both >> ((pick & U64(7)) * U64(8))) & U64(0xFF)
        sign = np.where(byte & U64(0x80), U64(0xFF), U64(0))
        out |= np.where(pick & U64(8), sign, byte) << U64(8 * k)
    state.assign(d, out)


@instruction("lop3")
def _lop3(state: State, instr: Instruction) -> None:
    d, a, b, c, table = instr.operands[:5]
    x, y, z = state.raw(a), state.raw(b), state.raw(c)
    lut = int(table, 0)
    full = U64(0xFFFFFFFF)
    out = np.zeros(state.count, dtype=U64)
    for k in range(8):
        if lut >> k & 1:
            out |= (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
    state.assign(d, out & full)


@instruction("bfe")
def _bfe(state: State, instr: Instruction) -> None:
    d, a, start, length = instr.operands
    n = state.raw(length) & U64(0xFF)
    out = (state.raw(a) >> (state.raw(start) & U64(0xFF))) & ((U64(1) << n) - U64(1))
    if instr.type[0] == "s":
        sign = (out >> (n - U64(1))) & U64(1)
        out = np.where(sign != 0, out | ~((U64(1) << n) - U64(1)), out) & U64((1 << width(instr.type)) - 1)
    state.assign(d, out)


@instruction("bfi")
def _bfi(state: State, instr: Instruction) -> None:
    d, a, b, start, length = instr.operands
    at = state.raw(start) & U64(0xFF)
    field = ((U64(1) << (state.raw(length) & U64(0xFF))) - U64(1)) << at
    state.assign(d, (state.raw(b) & ~field) | ((state.raw(a) << at) & field))


@instruction("shf")
def _shf(state: State, instr: Instruction) -> None:
    """Funnel shift: of the 64 bits ``b:a``, the upper word shifted left or the lower word shifted right."""
    d, a, b, c = instr.operands
    full = U64(0xFFFFFFFF)
    both = (state.raw(b) & full) << U64(32) | (state.raw(a) & full)
    count = state.raw(c) & full
    count = np.minimum(count, U64(32)) if "clamp" in instr.modifiers else count & U64(31)
    state.assign(d, (both << count) >> U64(32) if "l" in instr.modifiers else (both >> count) & full)


def _bits(raw: np.ndarray, size: int) -> np.ndarray:
    """``[n, size]`` booleans, the lowest bit first."""
    return (raw[:, None] >> np.arange(size, dtype=U64)) & U64(1) != 0


@instruction("clz", "popc", "brev", "bfind")
def _count_bits(state: State, instr: Instruction) -> None:
    d, a = instr.operands
    size = width(instr.type)
    raw = state.raw(a) & U64((1 << size) - 1 if size < 64 else 0xFFFFFFFFFFFFFFFF)
    if instr.opcode == "bfind" and instr.type[0] == "s":  # the highest bit that differs from the sign
        negative = decode(raw, instr.type) < 0
        raw = np.where(negative, ~raw & U64((1 << size) - 1 if size < 64 else 0xFFFFFFFFFFFFFFFF), raw)
    bits = _bits(raw, size)
    highest = np.where(bits.any(1), size - 1 - bits[:, ::-1].argmax(1), -1)
    if instr.opcode == "popc":
        out = bits.sum(1)
    elif instr.opcode == "brev":
        state.assign(d, (bits[:, ::-1].astype(U64) << np.arange(size, dtype=U64)).sum(1, dtype=U64))
        return
    elif instr.opcode == "clz" or "shiftamt" in instr.modifiers:
        out = size - 1 - highest if instr.opcode == "clz" else np.where(highest < 0, -1, size - 1 - highest)
    else:
        out = highest
    state.assign(d, encode(out.astype(np.int64), "s32"))
