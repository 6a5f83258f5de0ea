"""``cvt``: conversions between numbers, and between packed pairs of them."""

from __future__ import annotations

import re

import numpy as np

from kernbench.triton_engine.fixed_width import SIGNED, UNSIGNED

from .numbers import U64, decode, encode, width
from .parse import Instruction
from .state import State
from .table import instruction

_TYPE = re.compile(r"[usbf](?:8|16|32|64)|bf16|tf32|(?:bf16|f16|e4m3|e5m2|e2m1|ue8m0)x2")
_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_LARGEST = {"f16": 65504.0, "bf16": float(np.uint32(0x7F7F0000).view(np.float32))}


@instruction("cvt")
def _cvt(state: State, instr: Instruction) -> None:
    """``cvt.<rounding>.<to>.<from>``; a pair comes from two registers (the upper half first) or from a packed one."""
    to, source = [m for m in instr.modifiers if _TYPE.fullmatch(m)][:2]
    d, *sources = instr.operands
    if not to.endswith("x2"):
        state.assign(d, _convert(decode(state.raw(sources[0]), source), to, instr.modifiers))
        return
    half, single = to.removesuffix("x2"), source.removesuffix("x2")
    if source.endswith("x2"):
        raw, bits = state.raw(sources[0]), width(single)
        halves = [(raw >> U64(bits)) & U64((1 << bits) - 1), raw & U64((1 << bits) - 1)]
    else:
        halves = [state.raw(name) for name in sources[:2]]
    high, low = (_convert(decode(raw, single), half, instr.modifiers) for raw in halves)
    state.assign(d, low | (high << U64(width(half))))


def _convert(x: np.ndarray, to: str, modifiers: tuple[str, ...]) -> np.ndarray:
    """Numbers as registers of type ``to``."""
    real = x.dtype.kind == "f"
    with np.errstate(all="ignore"):
        for name, rounded in _ROUND.items():
            if name in modifiers and real:
                x = rounded(x)
        if "relu" in modifiers and real:
            x = np.where(x > 0, x, x.dtype.type(0))
        if to[0] in "us" and to != "ue8m0":
            info = np.iinfo(SIGNED[width(to)] if to[0] == "s" else UNSIGNED[width(to)])
            if real:
                x = np.clip(np.nan_to_num(np.trunc(x.astype(np.float64))), float(info.min), float(info.max))
            elif "sat" in modifiers:
                x = np.clip(x.astype(np.int64), info.min, info.max)
            return encode(x, to)
        if not real and width(to) < 64:
            x = x.astype(np.float64).astype(np.float32)
        if "sat" in modifiers:
            x = np.clip(np.nan_to_num(x), 0, 1).astype(x.dtype)
        if "satfinite" in modifiers and to in _LARGEST:
            x = np.clip(x, -_LARGEST[to], _LARGEST[to])
        if "rz" in modifiers and to in _LARGEST:
            x = _towards_zero(x, to)
        return encode(x, to)


def _towards_zero(x: np.ndarray, to: str) -> np.ndarray:
    """The number of type ``to`` next to each ``x`` that is not larger in magnitude."""
    raw = encode(x, to)
    grown = np.abs(decode(raw, to)) > np.abs(x)
    return decode(np.where(grown, raw - U64(1), raw), to)
