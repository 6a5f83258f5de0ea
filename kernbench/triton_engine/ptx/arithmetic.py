"""Arithmetic, comparison and selection, of packed numbers too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .numbers import U64, decode, encode, width
from .parse import Instruction
from .state import State
from .table import instruction


def _trunc_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return a // safe
    q = np.floor_divide(a, safe)
    return q + (((a - q * safe) != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)


def _shift(f: Callable[[Any, Any], Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        bits = a.dtype.itemsize * 8
        count = np.minimum(b.astype(np.uint64), np.uint64(bits - 1)).astype(a.dtype)
        out = f(a, count)
        if a.dtype.kind == "i" and f is np.right_shift:
            return out
        return np.where(b.astype(np.uint64) >= bits, a.dtype.type(0), out)

    return run


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _trunc_div,
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "rem": np.fmod,
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: (1.0 / np.sqrt(x.astype(np.float64))).astype(x.dtype),
    "rcp": lambda x: (1.0 / x.astype(np.float64)).astype(x.dtype),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "not": np.bitwise_not,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def lanewise(kind: str, f: Callable[..., np.ndarray], *raws: np.ndarray) -> np.ndarray:
    """Apply ``f`` to numbers of a type, or to both halves of a packed one."""
    with np.errstate(all="ignore"):
        if not kind.endswith("x2"):
            return encode(f(*(decode(r, kind) for r in raws)), kind)
        half = kind.removesuffix("x2")
        low = encode(f(*(decode(r & U64(0xFFFF), half) for r in raws)), half)
        high = encode(f(*(decode((r >> U64(16)) & U64(0xFFFF), half) for r in raws)), half)
    return low | (high << U64(16))


@instruction(*ARITHMETIC)
def _binary(s: State, i: Instruction) -> None:
    d, a, b = i.operands[:3]
    kind = i.type
    x, y = s.raw(a), s.raw(b)
    if i.opcode == "mul" and kind[0] in "us" and kind != "" and "wide" in i.modifiers:
        wide = kind[0] + str(width(kind) * 2)
        s.assign(d, encode(decode(x, kind).astype(np.int64 if kind[0] == "s" else U64) * decode(y, kind), wide))
        return
    if i.opcode == "mul" and "hi" in i.modifiers:
        bits = width(kind)
        big = decode(x, kind).astype(object) * decode(y, kind).astype(object)
        s.assign(d, np.array([(int(v) >> bits) & ((1 << bits) - 1) for v in big], dtype=U64))
        return
    if kind == "pred":
        s.assign(d, encode(ARITHMETIC[i.opcode](decode(x, "pred"), decode(y, "pred")), "pred"))
        return
    if i.opcode in ("shl", "shr") and kind[0] == "b":
        kind = "u" + kind[1:]
    if i.opcode in ("shl", "shr"):
        count = y.astype(np.uint32).astype(U64)
        s.assign(d, encode(ARITHMETIC[i.opcode](decode(x, kind), count), kind))
        return
    s.assign(d, lanewise(kind, ARITHMETIC[i.opcode], x, y))


@instruction(*_UNARY)
def _unary(s: State, i: Instruction) -> None:
    d, a = i.operands[:2]
    kind = i.type
    if kind == "pred":
        s.assign(d, encode(~s.value(a, "pred"), "pred"))
        return
    s.assign(d, lanewise(kind, _UNARY[i.opcode], s.raw(a)))


@instruction("fma")
def _fma(s: State, i: Instruction) -> None:
    d, a, b, c = i.operands
    kind = i.type
    wide = lambda x, y, z: x.astype(np.float64) * y + z  # noqa: E731
    s.assign(d, lanewise(kind, wide, s.raw(a), s.raw(b), s.raw(c)))


@instruction("mad")
def _mad(s: State, i: Instruction) -> None:
    d, a, b, c = i.operands
    kind = i.type
    if kind[0] == "f":
        _fma(s, i)
    elif "wide" in i.modifiers:
        wide = kind[0] + str(width(kind) * 2)
        product = decode(s.raw(a), kind).astype(np.int64 if kind[0] == "s" else U64) * decode(s.raw(b), kind)
        s.assign(d, encode(product + decode(s.raw(c), wide), wide))
    else:
        s.assign(d, lanewise(kind, lambda x, y, z: x * y + z, s.raw(a), s.raw(b), s.raw(c)))


@instruction("setp")
def _setp(s: State, i: Instruction) -> None:
    d, a, b = i.operands[:3]
    compare = next(m for m in i.modifiers if m.rstrip("u") in _COMPARE or m in _COMPARE)
    kind = i.type
    if kind[0] == "b":
        kind = "u" + kind[1:]
    if compare in ("lo", "ls", "hi", "hs"):
        kind = "u" + kind[1:]
    x, y = s.value(a, kind), s.value(b, kind)
    name = compare if compare in _COMPARE else compare[:-1]
    out = _COMPARE[name](x, y)
    if x.dtype.kind == "f":
        nan = np.isnan(x) | np.isnan(y)
        out = out | nan if compare.endswith("u") and compare not in _COMPARE else out & ~nan
    if len(i.operands) > 3:
        other = s.value(i.operands[3], "pred")
        join = next((m for m in i.modifiers if m in ("and", "or", "xor")), "and")
        out = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[join](out, other)
    first, _, second = d.partition("|")
    s.assign(first, encode(out, "pred"))
    if second:
        s.assign(second, encode(~out, "pred"))


@instruction("selp")
def _selp(s: State, i: Instruction) -> None:
    d, a, b, p = i.operands
    s.assign(d, np.where(s.value(p, "pred"), s.raw(a), s.raw(b)))
