"""Numbers of PTX types in 64-bit registers."""

from __future__ import annotations

import re

import numpy as np
import torch

from kernbench.triton_engine.fixed_width import SIGNED, UNSIGNED
from kernbench.triton_engine.four_bits import E2M1
from kernbench.triton_engine.rounding import to_odd

U64 = np.uint64


_BITS = re.compile(r"\d+")
#: Narrow floating types: bits, and torch's name where it has one.
_NARROW = {"e4m3": 8, "e5m2": 8, "ue8m0": 8, "e2m1": 4}
_FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_E2M1 = E2M1[:8].numpy()  # without a sign


def width(kind: str) -> int:
    """Bits of a type."""
    if kind.endswith("x2"):
        return 2 * width(kind.removesuffix("x2"))
    if kind in _NARROW:
        return _NARROW[kind]
    match = _BITS.search(kind)
    return int(match[0]) if match else 1


def decode(raw: np.ndarray, kind: str) -> np.ndarray:
    """Registers (uint64) as numbers of a type. fp16 and bf16 become float32 (exact)."""
    bits = width(kind)
    if kind == "pred":
        return raw != 0
    if kind in _NARROW:
        return _decode_narrow(raw, kind)
    low = raw.astype(UNSIGNED[bits])
    if kind == "bf16":
        return (low.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "f16":
        return low.view(np.float16).astype(np.float32)
    if kind[0] == "f":
        return low.view(np.float32 if bits == 32 else np.float64)
    return low.view(SIGNED[bits]) if kind[0] == "s" else low


def encode(value: np.ndarray, kind: str) -> np.ndarray:
    """Numbers of a type as registers."""
    if kind == "pred":
        return np.asarray(value).astype(U64)
    if kind in _NARROW:
        return _encode_narrow(value, kind)
    if kind == "tf32":
        return _round_to_tf32(value)
    if kind == "bf16":
        if value.dtype == np.float64:
            value = to_odd(value)
        t = torch.from_numpy(np.asarray(value, dtype=np.float32, order="C")).to(torch.bfloat16)
        return t.view(torch.int16).numpy().view(np.uint16).astype(U64)
    if kind == "f16":
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(np.float16).view(np.uint16).astype(U64)
    bits = width(kind)
    if kind[0] == "f":
        out = np.asarray(value, dtype=np.float32 if bits == 32 else np.float64, order="C")
        return out.view(UNSIGNED[bits]).astype(U64)
    return np.asarray(value).astype(SIGNED[bits] if kind[0] == "s" else UNSIGNED[bits]).view(UNSIGNED[bits]).astype(U64)


def _decode_narrow(raw: np.ndarray, kind: str) -> np.ndarray:
    """Numbers of 8 or 4 bits as float32 (exact)."""
    if kind == "e2m1":
        magnitude = _E2M1[(raw & U64(7)).astype(np.int64)]
        return np.where(raw & U64(8), -magnitude, magnitude).astype(np.float32)
    if kind == "ue8m0":
        exponent = raw & U64(0xFF)
        scale = np.ldexp(np.float32(1), exponent.astype(np.int64) - 127)
        return np.where(exponent == 0xFF, np.float32(np.nan), scale).astype(np.float32)
    return torch.from_numpy(raw.astype(np.uint8)).view(_FP8[kind]).float().numpy()


def _encode_narrow(value: np.ndarray, kind: str) -> np.ndarray:
    """Numbers in 8 or 4 bits; what is too large becomes the largest."""
    x = np.asarray(value, dtype=np.float32, order="C")
    if kind == "e2m1":
        magnitude = np.abs(x)
        # Halfway cases go to the even mantissa: those whose index in the table is even.
        middle = (_E2M1[1:] + _E2M1[:-1]) / 2
        above = magnitude[..., None] > middle
        at = magnitude[..., None] == middle
        index = above.sum(-1) + (at & (np.arange(7) % 2 == 1)).sum(-1)
        index = np.where(np.isnan(x), 7, index)
        return (index | np.where(np.signbit(x) & ~np.isnan(x), 8, 0)).astype(U64)
    if kind == "ue8m0":  # towards plus infinity, as ``cvt.rp`` does
        mantissa, exponent = np.frexp(np.abs(x))
        up = exponent.astype(np.int64) - np.where(mantissa == 0.5, 1, 0)
        code = np.where(x == 0, 0, np.clip(up + 127, 0, 254))
        return np.where(np.isnan(x), 255, np.where(np.isinf(x), 254, code)).astype(U64)
    dtype = _FP8[kind]
    top = torch.finfo(dtype).max
    return torch.from_numpy(x).clamp(-top, top).to(dtype).view(torch.uint8).numpy().astype(U64)


def _round_to_tf32(value: np.ndarray) -> np.ndarray:
    """float32 with a mantissa of 10 bits, ties away from zero (``cvt.rna``)."""
    raw = np.asarray(value, dtype=np.float32, order="C").view(np.uint32)
    finite = (raw & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    return (np.where(finite, raw + np.uint32(0x1000), raw) & np.uint32(0xFFFFE000)).astype(U64)
