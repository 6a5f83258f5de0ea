"""Arithmetic, comparison and selection, of packed numbers too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.triton_engine.fixed_width import np_shift, np_trunc_div

from .numbers import U64, decode, encode, width
from .parse import Instruction
from .state import State
from .table import instruction


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a / b if a.dtype.kind == "f" else np_trunc_div(a, b)


def _shift_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np_shift(np.right_shift, saturate=a.dtype.kind == "i")(a, b)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "rem": np.fmod,
    "shl": np_shift(np.left_shift),
    "shr": _shift_right,
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


def apply_packed(kind: str, f: Callable[..., np.ndarray], *raws: np.ndarray) -> np.ndarray:
    """Apply ``f`` to numbers of a type, or to both halves of a packed one."""
    with np.errstate(all="ignore"):
        if not kind.endswith("x2"):
            return encode(f(*(decode(r, kind) for r in raws)), kind)
        half = kind.removesuffix("x2")
        bits, mask = U64(width(half)), U64((1 << width(half)) - 1)
        low = encode(f(*(decode(r & mask, half) for r in raws)), half)
        high = encode(f(*(decode((r >> bits) & mask, half) for r in raws)), half)
    return low | (high << bits)


def _modified(f: Callable[..., np.ndarray], modifiers: tuple[str, ...]) -> Callable[..., np.ndarray]:
    """``f`` with what modifiers ask of a floating result: ``.NaN``, ``.xorsign.abs``, ``.relu``, ``.sat``."""
    if "NaN" in modifiers:
        f = {np.fmin: np.minimum, np.fmax: np.maximum}.get(f, f)  # type: ignore[call-overload]
    if "xorsign" in modifiers:
        magnitude = f
        f = lambda a, b: np.where(np.signbit(a) != np.signbit(b), -1, 1) * magnitude(np.abs(a), np.abs(b))  # noqa: E731
    if "relu" in modifiers:
        signed = f
        f = lambda *xs: np.maximum(signed(*xs), 0)  # noqa: E731
    if "sat" in modifiers:
        wide = f
        f = lambda *xs: np.clip(np.nan_to_num(wide(*xs)), 0, 1)  # noqa: E731
    return f


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
    f = ARITHMETIC[i.opcode]
    s.assign(d, apply_packed(kind, _modified(f, i.modifiers) if "f" in kind else f, x, y))


@instruction(*_UNARY)
def _unary(s: State, i: Instruction) -> None:
    d, a = i.operands[:2]
    kind = i.type
    if kind == "pred":
        s.assign(d, encode(~s.value(a, "pred"), "pred"))
        return
    s.assign(d, apply_packed(kind, _UNARY[i.opcode], s.raw(a)))


@instruction("fma")
def _fma(s: State, i: Instruction) -> None:
    d, a, b, c = i.operands
    kind = i.type
    wide = lambda x, y, z: x.astype(np.float64) * y + z  # noqa: E731
    s.assign(d, apply_packed(kind, _modified(wide, i.modifiers), s.raw(a), s.raw(b), s.raw(c)))


@instruction("mad")
def _mad(s: State, i: Instruction) -> None:
    d, a, b, c = i.operands
    kind = i.type
    if kind[0] == "f":
        _fma(s, i)
    elif "hi" in i.modifiers:
        x, y, z = (decode(s.raw(n), kind) for n in (a, b, c))
        bits = width(kind)
        products = x.astype(object) * y.astype(object)
        high = [((int(v) >> bits) + int(w)) & ((1 << bits) - 1) for v, w in zip(products, z, strict=True)]
        s.assign(d, np.array(high, dtype=U64))
    elif "wide" in i.modifiers:
        wide = kind[0] + str(width(kind) * 2)
        product = decode(s.raw(a), kind).astype(np.int64 if kind[0] == "s" else U64) * decode(s.raw(b), kind)
        s.assign(d, encode(product + decode(s.raw(c), wide), wide))
    else:
        s.assign(d, apply_packed(kind, lambda x, y, z: x * y + z, s.raw(a), s.raw(b), s.raw(c)))


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


@instruction("copysign")
def _copysign(s: State, i: Instruction) -> None:
    d, sign, magnitude = i.operands
    s.assign(d, apply_packed(i.type, lambda a, b: np.copysign(b, a), s.raw(sign), s.raw(magnitude)))


@instruction("testp")
def _testp(s: State, i: Instruction) -> None:
    d, a = i.operands
    x = s.value(a, i.type)
    tiny = np.finfo(x.dtype).tiny
    tests: dict[str, Callable[[], np.ndarray]] = {
        "finite": lambda: np.isfinite(x),
        "infinite": lambda: np.isinf(x),
        "number": lambda: ~np.isnan(x),
        "notanumber": lambda: np.isnan(x),
        "normal": lambda: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda: (x != 0) & (np.abs(x) < tiny),
    }
    s.assign(d, encode(next(f for name, f in tests.items() if name in i.modifiers)(), "pred"))


@instruction("dp4a")
def _dp4a(s: State, i: Instruction) -> None:
    """Products of four bytes each, added to a number of 32 bits."""
    d, a, b, c = i.operands
    signed = [m[0] == "s" for m in i.modifiers if m in ("s32", "u32")]
    total = decode(s.raw(c), "s32" if any(signed) else "u32").astype(np.int64)
    for k in range(4):
        x, y = (
            decode((s.raw(name) >> U64(8 * k)) & U64(0xFF), "s8" if is_signed else "u8").astype(np.int64)
            for name, is_signed in zip((a, b), signed, strict=True)
        )
        total = total + x * y
    s.assign(d, encode(total, "s32"))
