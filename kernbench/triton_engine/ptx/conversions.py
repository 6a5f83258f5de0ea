"""``cvt``: conversions between numbers, and between packed pairs of them."""

from __future__ import annotations

import re

import numpy as np
import torch

from kernbench.triton_engine.fixed_width import SIGNED, UNSIGNED
from kernbench.triton_engine.rounding import directed, from_integers, saturated

from .numbers import U64, decode, encode, width
from .parse import Instruction
from .state import State
from .table import instruction

_TYPE = re.compile(r"[usbf](?:8|16|32|64)|bf16|tf32|(?:bf16|f16|e4m3|e5m2|e2m1|ue8m0)x2")
_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
#: PTX's names of rounding in a direction.
DIRECTIONS = {"rm": "rd", "rp": "ru", "rz": "rz"}
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
                x = saturated(x, np.trunc, width(to), to[0] == "u")
                x = x.view(info.dtype)
            elif "sat" in modifiers:
                x = np.clip(x.astype(np.int64), info.min, info.max)
            return encode(x, to)
        if not real:
            x = _from_integers(x, to, modifiers)
        if "sat" in modifiers:
            x = np.clip(np.nan_to_num(x), 0, 1).astype(x.dtype)
        if "satfinite" in modifiers and to in _LARGEST:
            x = np.clip(x, -_LARGEST[to], _LARGEST[to])
        for name in DIRECTIONS.keys() & set(modifiers):
            if to in _LARGEST:
                x = _neighbour(x, to, name)
            elif to == "f32":
                x = directed(lambda v: v.astype(np.float32), DIRECTIONS[name])(x)
        return encode(x, to)


def _from_integers(x: np.ndarray, to: str, modifiers: tuple[str, ...]) -> np.ndarray:
    """Integers as numbers of type ``to``, rounded once; in a direction, as fp32 or fp64, whose rounding may be repeated."""
    single = to != "f64"
    for name in DIRECTIONS.keys() & set(modifiers):
        return directed(lambda v: v.astype(np.float32 if single else np.float64), DIRECTIONS[name])(x)
    kinds = {"f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
    signed = torch.from_numpy(x.view(SIGNED[x.dtype.itemsize * 8]))
    floats = from_integers(signed, kinds.get(to, torch.float32), x.dtype.kind == "u")
    return (floats.to(torch.float32) if single else floats).numpy()


def _neighbour(x: np.ndarray, to: str, direction: str) -> np.ndarray:
    """The number of type ``to`` next to each ``x`` in a direction."""
    raw = encode(x, to)
    near = decode(raw, to)
    above, below = (near > x) & (direction != "rp"), (near < x) & (direction != "rm")
    if direction == "rz":
        above, below = above & (x > 0), below & (x < 0)
    away = np.where(np.signbit(near), -1, 1) * (below.astype(np.int64) - above.astype(np.int64))
    stepped = (raw.astype(np.int64) + away).astype(U64)
    least = np.where(above, (1 << (width(to) - 1)) + 1, 1).astype(U64)  # beside zero, on either side
    return decode(np.where(above | below, np.where(near == 0, least, stepped), raw), to)
