"""Numbers of PTX types in 64-bit registers."""

from __future__ import annotations

import re

import numpy as np
import torch

U64 = np.uint64


_BITS = re.compile(r"\d+")

SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def width(kind: str) -> int:
    """Bits of a type."""
    if kind.endswith("x2"):
        return 32
    match = _BITS.search(kind)
    return int(match[0]) if match else 1


def decode(raw: np.ndarray, kind: str) -> np.ndarray:
    """Registers (uint64) as numbers of a type. fp16 and bf16 become float32 (exact)."""
    bits = width(kind)
    if kind == "pred":
        return raw != 0
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
    if kind == "bf16":
        t = torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32)).to(torch.bfloat16)
        return t.view(torch.int16).numpy().view(np.uint16).astype(U64)
    if kind == "f16":
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(np.float16).view(np.uint16).astype(U64)
    bits = width(kind)
    if kind[0] == "f":
        out = np.ascontiguousarray(value, dtype=np.float32 if bits == 32 else np.float64)
        return out.view(UNSIGNED[bits]).astype(U64)
    return np.asarray(value).astype(SIGNED[bits] if kind[0] == "s" else UNSIGNED[bits]).view(UNSIGNED[bits]).astype(U64)


def encode_fp8(x: np.ndarray, kind: str) -> np.ndarray:
    """Numbers as ``e4m3`` or ``e5m2``; what is too large becomes the largest."""
    dtype = torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2
    top = torch.finfo(dtype).max
    t = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).clamp(-top, top).to(dtype)
    return t.view(torch.uint8).numpy().astype(U64)
