"""Scales of blocks of an operand that is multiplied: which blocks they are of, and which scale an element has.

A scale is of 128 elements along the sum, of as many of 128 rows, or, as tensor cores since Blackwell take them, of 16 or 32.
The latter are padded to whole tiles of 128 rows and 4 scales and stored tile by tile; a tile has rows 0, 32, 64 and 96 first,
side by side (cuBLAS, "Block Scaling Factors Layout").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernbench.torch_backend.relies_on import Reliance
from kernbench.triton_engine.four_bits import unpacked

BY_16, BY_32, ALONG, SQUARE = 2, 3, 4, 5
"""Kinds of scales, by torch's numbers: for 16, 32 and 128 elements along the sum, and for 128 of 128 rows."""

_NAMES = ("BlockWise1x16", "BlockWise1x32", "BlockWise1x128", "BlockWise128x128")

RELIES_ON = (
    Reliance("torch.nn.functional.ScalingType", "numbers of the kinds of scales", has=_NAMES,
             holds=lambda kinds: [getattr(kinds, name).value for name in _NAMES] == [BY_16, BY_32, ALONG, SQUARE]),
    Reliance("torch.nn.functional.SwizzleType", "scales in tiles have another number", has=("NO_SWIZZLE",),
             holds=lambda kinds: kinds.NO_SWIZZLE.value == 0),
)  # fmt: skip

BLOCK = 128
FINE = {BY_16: 16, BY_32: 32}
"""Elements of a scale that tensor cores apply."""

_TILE_ROWS, _TILE_SCALES, _STRIPES = 128, 4, 4


def up(count: int, step: int) -> int:
    """``count`` as a multiple of ``step``, rounded up."""
    return -(-count // step) * step


def kind_of(operand: torch.Tensor, scale: torch.Tensor) -> int | None:
    """Of which blocks of ``operand`` ``[rows, K]`` a scale of ``_scaled_mm`` is, by its shape; None: of none."""
    rows, columns = operand.shape
    if operand.dtype is torch.float4_e2m1fn_x2 and scale.dtype is torch.float8_e4m3fn:
        kind, length = BY_16, 2 * columns
    elif scale.dtype is torch.float8_e8m0fnu:
        kind, length = BY_32, columns
    elif scale.dtype is torch.float32 and scale.dim() == 2:
        blocks = -(-columns // BLOCK)
        if scale.shape == (rows, 1):  # of a row, however short
            return None
        return {(rows, blocks): ALONG, (-(-rows // BLOCK), blocks): SQUARE}.get((scale.shape[0], scale.shape[1]))
    else:
        return None
    padded = up(rows, _TILE_ROWS) * up(-(-length // FINE[kind]), _TILE_SCALES)
    return kind if scale.numel() == padded and scale.is_contiguous() else None


def values_of(operand: torch.Tensor) -> torch.Tensor:
    """``operand`` in 32 bits; numbers of four bits lie two in a byte, the lower half first."""
    if operand.dtype is not torch.float4_e2m1fn_x2:
        return operand.float()
    return unpacked(operand.contiguous(), operand.dim() - 1)


def spread(
    scale: torch.Tensor, kind: int, shape: Sequence[int], *, in_tiles: bool = True, across: bool = True
) -> torch.Tensor:
    """The scale of each element of an operand ``[rows, K]``.

    Args:
        in_tiles: scales of 16 or 32 lie in tiles.
        across: scales of squares have the blocks along the sum first.
    """
    rows, length = shape
    if kind in FINE:
        blocks = -(-length // FINE[kind])
        if in_tiles:
            tiles = up(blocks, _TILE_SCALES) // _TILE_SCALES
            tiled = scale.float().reshape(-1, tiles, _TILE_ROWS // _STRIPES, _STRIPES, _TILE_SCALES)
            by_row = tiled.permute(0, 3, 2, 1, 4).reshape(-1, tiles * _TILE_SCALES)
        else:
            by_row = scale.float().reshape(rows, blocks)
        return by_row[:rows].repeat_interleave(FINE[kind], 1)[:, :length]
    by_row = scale if kind == ALONG else (scale.t() if across else scale).repeat_interleave(BLOCK, 0)[:rows]
    return by_row.repeat_interleave(BLOCK, 1)[:, :length]
