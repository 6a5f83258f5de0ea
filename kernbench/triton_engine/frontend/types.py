"""Types of TTIR values: an element type and a tile shape.

A scalar is a tile of rank 0. Element types are spelled as MLIR spells them (``i32``, ``f16``, ``bf16``,
``f8E4M3FN``); a pointer is ``ptr`` with a ``pointee``; a tensor descriptor is ``desc`` whose shape is its block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch

TORCH_DTYPE: dict[str, torch.dtype] = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "index": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
}


def memory_dtype(elem: str) -> torch.dtype:
    """How an element type lies in memory: addresses take 64 bits, booleans a byte."""
    return {"ptr": torch.int64, "i1": torch.int8}.get(elem) or TORCH_DTYPE[elem]


#: The floats of one byte, which much of torch and numpy cannot compute with: they are moved as bytes.
FLOAT8: frozenset[torch.dtype] = frozenset(
    d for d in vars(torch).values() if isinstance(d, torch.dtype) and d.is_floating_point and d.itemsize == 1
)

#: Bits of each integer element type.
INT_BITS: dict[str, int] = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}


@dataclass(frozen=True)
class Ty:
    """Element type ``elem`` and tile ``shape`` (``()`` for a scalar)."""

    elem: str
    shape: tuple[int, ...] = ()
    pointee: str = ""

    @property
    def is_int(self) -> bool:
        return self.elem in INT_BITS

    @property
    def is_ptr(self) -> bool:
        return self.elem == "ptr"

    @property
    def is_float(self) -> bool:
        return self.elem in TORCH_DTYPE and self.elem not in INT_BITS

    @property
    def bits(self) -> int:
        return INT_BITS[self.elem]

    @property
    def dtype(self) -> torch.dtype:
        return TORCH_DTYPE[self.elem]

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return 8 if self.elem == "ptr" else self.dtype.itemsize

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        elem = f"*{self.pointee}" if self.is_ptr else self.elem
        return f"{elem}[{'x'.join(map(str, self.shape))}]" if self.shape else elem


_PTR = re.compile(r"!tt\.ptr<(.*?)(?:,\s*\d+)?>$")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$")


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Ty:
    """``tensor<64x32x!tt.ptr<f16>>`` -> ``Ty("ptr", (64, 32), "f16")``."""
    text = text.strip()
    if match := _TENSOR.match(text):
        dims = tuple(int(d) for d in match[1].split("x") if d)
        elem = parse_type(match[2].split(",", 1)[0] if not match[2].startswith("!") else match[2])
        return Ty(elem.elem, dims, elem.pointee)
    if match := _PTR.match(text):
        inner = match[1]
        return Ty("ptr", (), "ptr" if inner.startswith("!tt.ptr") else inner)
    if text.startswith("!tt.tensordesc<"):
        block = parse_type(_desc_body(text))
        return Ty("desc", block.shape, block.elem)
    return Ty(text)


def _desc_body(text: str) -> str:
    body = text[len("!tt.tensordesc<") : -1]
    if body.startswith("tensor<"):
        return body[: body.rindex(">") + 1]
    return f"tensor<{body}>"  # newer spelling: !tt.tensordesc<32x64xf16>
