"""Moves, conversions, bit fields, and what the threads of a warp tell each other: an element is a thread alone here."""

from __future__ import annotations

import re

import numpy as np

from .numbers import SIGNED, U64, UNSIGNED, decode, encode, encode_fp8, width
from .parse import Instruction
from .state import State
from .table import instruction

_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


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


@instruction("cvt")
def _cvt(s: State, i: Instruction) -> None:
    """``cvt.<rounding>.<to>.<from>``; two sources pack into one register."""
    kinds = [m for m in i.modifiers if re.fullmatch(r"[usbf](?:8|16|32|64)|bf16|bf16x2|f16x2|e4m3x2|e5m2x2", m)]
    to, source = kinds[0], kinds[1]
    d, *sources = i.operands
    if len(sources) == 2:
        half = to.removesuffix("x2")
        high, low = (
            encode(decode(s.raw(name), source), half)
            if half in ("f16", "bf16")
            else encode_fp8(decode(s.raw(name), source), half)
            for name in sources
        )
        size = 16 if half in ("f16", "bf16") else 8
        s.assign(d, low | (high << U64(size)))
        return
    x = decode(s.raw(sources[0]), source)
    with np.errstate(all="ignore"):
        for name, f in _ROUND.items():
            if name in i.modifiers and x.dtype.kind == "f":
                x = f(x)
        if to[0] in "us" and x.dtype.kind == "f":
            info = np.iinfo(SIGNED[width(to)] if to[0] == "s" else UNSIGNED[width(to)])
            x = np.clip(np.nan_to_num(np.trunc(x.astype(np.float64))), float(info.min), float(info.max))
        elif to[0] in "us" and "sat" in i.modifiers:
            info = np.iinfo(SIGNED[width(to)] if to[0] == "s" else UNSIGNED[width(to)])
            x = np.clip(x.astype(np.int64), info.min, info.max)
        out = encode(x, to)
    if to[0] == "f" and source[0] in "us" and width(to) < 64:
        out = encode(x.astype(np.float64).astype(np.float32), to)
    s.assign(d, out)


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
