"""Arithmetic, comparison and selection, of packed numbers too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.triton_engine.fixed_width import np_division, np_shift, np_trunc_div
from kernbench.triton_engine.rounding import directed, fused_to_odd, multiply_add

from .conversions import DIRECTIONS
from .numbers import U64, decode, encode, width
from .parse import Instruction
from .state import State
from .table import instruction


def _of_zero(a: np.ndarray) -> np.ndarray:
    """All ones, as the instructions of ``ptxas`` end: quotients and remainders of 16, 32 and 64 bits."""
    return ~np.zeros_like(a)


_QUOTIENT, _REMAINDER = np_division(np_trunc_div, _of_zero), np_division(np.fmod, _of_zero)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a / b if a.dtype.kind == "f" else _QUOTIENT(a, b)


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
    "rem": _REMAINDER,
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
    """``f`` with what modifiers ask of a floating result: rounding, ``.NaN``, ``.xorsign.abs``, ``.relu``, ``.sat``."""
    for name in DIRECTIONS.keys() & set(modifiers):
        f = directed(f, DIRECTIONS[name])
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
def _binary(state: State, instr: Instruction) -> None:
    d, a, b = instr.operands[:3]
    kind = instr.type
    x, y = state.raw(a), state.raw(b)
    if instr.opcode == "mul" and kind[0] in "us" and kind != "" and "wide" in instr.modifiers:
        wide = kind[0] + str(width(kind) * 2)
        state.assign(d, encode(decode(x, kind).astype(np.int64 if kind[0] == "s" else U64) * decode(y, kind), wide))
        return
    if instr.opcode == "mul" and "hi" in instr.modifiers:
        bits = width(kind)
        big = decode(x, kind).astype(object) * decode(y, kind).astype(object)
        state.assign(d, np.array([(int(v) >> bits) & ((1 << bits) - 1) for v in big], dtype=U64))
        return
    if kind == "pred":
        state.assign(d, encode(ARITHMETIC[instr.opcode](decode(x, "pred"), decode(y, "pred")), "pred"))
        return
    if instr.opcode in ("shl", "shr") and kind[0] == "b":
        kind = "u" + kind[1:]
    if instr.opcode in ("shl", "shr"):
        count = y.astype(np.uint32).astype(U64)
        state.assign(d, encode(ARITHMETIC[instr.opcode](decode(x, kind), count), kind))
        return
    f = ARITHMETIC[instr.opcode]
    state.assign(d, apply_packed(kind, _modified(f, instr.modifiers) if "f" in kind else f, x, y))


@instruction(*_UNARY)
def _unary(state: State, instr: Instruction) -> None:
    d, a = instr.operands[:2]
    kind = instr.type
    if kind == "pred":
        state.assign(d, encode(~state.value(a, "pred"), "pred"))
        return
    f = _UNARY[instr.opcode]
    state.assign(d, apply_packed(kind, _modified(f, instr.modifiers) if "f" in kind else f, state.raw(a)))


def _fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """For a type of 32 bits or fewer, which it is rounded to when it is encoded."""
    return fused_to_odd(*(v.astype(np.float64) for v in (x, y, z)))


@instruction("fma")
def _fma(state: State, instr: Instruction) -> None:
    d, a, b, c = instr.operands
    kind = instr.type
    directions = DIRECTIONS.keys() & set(instr.modifiers)
    f = multiply_add if directions or kind == "f64" else _fused
    state.assign(d, apply_packed(kind, _modified(f, instr.modifiers), state.raw(a), state.raw(b), state.raw(c)))


@instruction("mad")
def _mad(state: State, instr: Instruction) -> None:
    d, a, b, c = instr.operands
    kind = instr.type
    if kind[0] == "f":
        _fma(state, instr)
    elif "hi" in instr.modifiers:
        x, y, z = (decode(state.raw(n), kind) for n in (a, b, c))
        bits = width(kind)
        products = x.astype(object) * y.astype(object)
        high = [((int(v) >> bits) + int(w)) & ((1 << bits) - 1) for v, w in zip(products, z, strict=True)]
        state.assign(d, np.array(high, dtype=U64))
    elif "wide" in instr.modifiers:
        wide = kind[0] + str(width(kind) * 2)
        product = decode(state.raw(a), kind).astype(np.int64 if kind[0] == "s" else U64) * decode(state.raw(b), kind)
        state.assign(d, encode(product + decode(state.raw(c), wide), wide))
    else:
        state.assign(d, apply_packed(kind, lambda x, y, z: x * y + z, state.raw(a), state.raw(b), state.raw(c)))


@instruction("setp")
def _setp(state: State, instr: Instruction) -> None:
    d, a, b = instr.operands[:3]
    compare = next(m for m in instr.modifiers if m.rstrip("u") in _COMPARE or m in _COMPARE)
    kind = instr.type
    if kind[0] == "b":
        kind = "u" + kind[1:]
    if compare in ("lo", "ls", "hi", "hs"):
        kind = "u" + kind[1:]
    x, y = state.value(a, kind), state.value(b, kind)
    name = compare if compare in _COMPARE else compare[:-1]
    out = _COMPARE[name](x, y)
    if x.dtype.kind == "f":
        nan = np.isnan(x) | np.isnan(y)
        out = out | nan if compare.endswith("u") and compare not in _COMPARE else out & ~nan
    if len(instr.operands) > 3:
        other = state.value(instr.operands[3], "pred")
        join = next((m for m in instr.modifiers if m in ("and", "or", "xor")), "and")
        out = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[join](out, other)
    first, _, second = d.partition("|")
    state.assign(first, encode(out, "pred"))
    if second:
        state.assign(second, encode(~out, "pred"))


@instruction("selp")
def _selp(state: State, instr: Instruction) -> None:
    d, a, b, p = instr.operands
    state.assign(d, np.where(state.value(p, "pred"), state.raw(a), state.raw(b)))


@instruction("copysign")
def _copysign(state: State, instr: Instruction) -> None:
    d, sign, magnitude = instr.operands
    state.assign(d, apply_packed(instr.type, lambda a, b: np.copysign(b, a), state.raw(sign), state.raw(magnitude)))


@instruction("testp")
def _testp(state: State, instr: Instruction) -> None:
    d, a = instr.operands
    x = state.value(a, instr.type)
    tiny = np.finfo(x.dtype).tiny
    tests: dict[str, Callable[[], np.ndarray]] = {
        "finite": lambda: np.isfinite(x),
        "infinite": lambda: np.isinf(x),
        "number": lambda: ~np.isnan(x),
        "notanumber": lambda: np.isnan(x),
        "normal": lambda: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda: (x != 0) & (np.abs(x) < tiny),
    }
    state.assign(d, encode(next(f for name, f in tests.items() if name in instr.modifiers)(), "pred"))


@instruction("dp4a")
def _dp4a(state: State, instr: Instruction) -> None:
    """Products of four bytes each, added to a number of 32 bits."""
    d, a, b, c = instr.operands
    signed = [m[0] == "s" for m in instr.modifiers if m in ("s32", "u32")]
    total = decode(state.raw(c), "s32" if any(signed) else "u32").astype(np.int64)
    for k in range(4):
        x, y = (
            decode((state.raw(name) >> U64(8 * k)) & U64(0xFF), "s8" if is_signed else "u8").astype(np.int64)
            for name, is_signed in zip((a, b), signed, strict=True)
        )
        total = total + x * y
    state.assign(d, encode(total, "s32"))
