"""Blocks of numbers with a scale each: in eight bits by a table of 256 values, in four by NF4's or FP4's sixteen.

A block is so many numbers one after the other, the last one as many as are left; its scale is the largest magnitude in it.
A number is the place, in its table, of the value that is nearest to it over the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

Tensor = torch.Tensor

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""NormalFloat of four bits (Dettmers et al., "QLoRA", appendix E)."""

_FP4 = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
FP4 = (*_FP4, *(-each for each in _FP4))
"""A sign, two bits of an exponent and one more, over the largest (bitsandbytes, ``csrc/kernels.cu``)."""


def table_of(kind: str) -> Tensor:
    """The values of ``"nf4"`` or ``"fp4"``."""
    return torch.tensor(NF4 if kind == "nf4" else FP4)


def in_blocks(numbers: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Numbers over the scales of their blocks, in float32, flat; and the scales."""
    flat = numbers.reshape(-1).float()
    scales = spread(flat, size).abs().amax(-1)
    return flat / each_of(scales.clamp(min=torch.finfo(torch.float32).tiny), size, flat.numel()), scales


def spread(flat: Tensor, size: int) -> Tensor:
    """``[blocks, size]``, filled up with zeros."""
    return torch.nn.functional.pad(flat, (0, -flat.numel() % size)).view(-1, size)


def each_of(scales: Tensor, size: int, count: int) -> Tensor:
    """The scale of each of so many numbers."""
    return scales.reshape(-1).repeat_interleave(size)[:count]


def places_of(scaled: Tensor, table: Tensor) -> Tensor:
    """For each number the place of the nearest value of a table."""
    order = table.argsort(stable=True)
    ordered = table[order]
    return order[torch.bucketize(scaled, (ordered[1:] + ordered[:-1]) / 2)]


def packed(places: Tensor, storage: torch.dtype) -> Tensor:
    """Two places of four bits in each byte, the first one above, seen as ``storage``."""
    halves = torch.nn.functional.pad(places, (0, places.numel() % 2)).to(torch.uint8).view(-1, 2)
    together = halves[:, 0] * 16 + halves[:, 1]
    return torch.nn.functional.pad(together, (0, -together.numel() % storage.itemsize)).view(storage)


def from_four_bits(stored: Tensor, scales: Tensor, size: int, kind: str, shape: Sequence[int]) -> Tensor:
    """What is packed, in float32."""
    octets = stored.contiguous().reshape(-1).view(torch.uint8)
    places = torch.stack((octets // 16, octets % 16), -1).view(-1)[: prod(shape)].long()
    return (table_of(kind)[places] * each_of(scales, size, places.numel())).view(*shape)


def from_eight_bits(stored: Tensor, scales: Tensor, table: Tensor, size: int) -> Tensor:
    """Places of a table as numbers, in float32."""
    return table[stored.long()] * each_of(scales, size, stored.numel()).view(stored.shape)
