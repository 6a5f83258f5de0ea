"""Numbers of eight bits with a scale for each tensor, block of 128, or 32 elements: encoding and decoding by definition.

A tensor is a matrix ``[M, K]`` here: its first dimensions together, and its last. Each kind says the elements that
share a scale, by rows and by columns, and how the package stores scales and the data by columns:

- ``tensor``: one scale in float32; by columns it is the transposed data.
- ``block1``: 1 x 128 by rows, 128 x 1 by columns, of transposed data; scales in float32, by rows transposed.
- ``block2``: 128 x 128; by columns data and scales are transposed.
- ``mx``: 1 x 32 and 32 x 1; a scale is a power of two in eight bits (OCP Microscaling Formats 1.0), nothing is transposed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernbench.compiled_operators.transformer_engine.names import torch_format

Tensor = torch.Tensor


@dataclass(frozen=True)
class BlockScaling:
    """How one kind is stored.

    Attributes:
        rows, columns: the block that shares a scale, by rows and by columns; None: all of it.
        transposed: data by columns is.
        scales_transposed: scales are, by rows and by columns.
        padded: to multiples of which the scales' dimensions are rounded up, by rows and by columns.
        powers: scales are powers of two in eight bits.
    """

    rows: tuple[int, int] | None
    columns: tuple[int, int] | None
    transposed: bool
    scales_transposed: tuple[bool, bool]
    padded: tuple[tuple[int, int], tuple[int, int]]
    powers: bool = False


KINDS = {
    "tensor": BlockScaling(None, None, True, (False, False), ((1, 1), (1, 1))),
    "block1": BlockScaling((1, 128), (128, 1), True, (True, False), ((1, 4), (1, 4))),
    "block2": BlockScaling((128, 128), (128, 128), True, (False, True), ((1, 4), (1, 4))),
    "mx": BlockScaling((1, 32), (32, 1), False, (False, False), ((128, 4), (4, 128)), powers=True),
}
_LARGEST = 3.4028234663852886e38  # of float32


def upwards(size: int, step: int) -> int:
    """The next multiple."""
    return -(-size // step) * step


def scale_shape(kind: BlockScaling, rows: int, width: int, by_columns: bool) -> tuple[int, int]:
    """Of the scales of ``[rows, width]``."""
    block = kind.columns if by_columns else kind.rows
    assert block is not None
    shape = -(-rows // block[0]), -(-width // block[1])
    first, second = shape[::-1] if kind.scales_transposed[by_columns] else shape
    by = kind.padded[by_columns]
    return upwards(first, by[0]), upwards(second, by[1])


def scale_of(amax: Tensor, largest: float, powers: bool, epsilon: float) -> Tensor:
    """``largest / amax``, by which elements are multiplied; one where there is nothing but zeros, or no finite maximum."""
    amax = amax.clamp(min=epsilon)
    scale = (largest / amax).clamp(max=_LARGEST)
    scale = torch.where((amax == 0) | ~torch.isfinite(amax), torch.ones_like(scale), scale)
    if powers:  # the next power of two below
        mantissa, exponent = torch.frexp(scale)
        scale = torch.ldexp(torch.full_like(mantissa, 0.5), exponent)
    return scale


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to a format of eight bits, cut at its largest number, as bytes."""
    most = torch.finfo(dtype).max
    return x.clamp(-most, most).to(dtype).view(torch.uint8)


def _blocks(x: Tensor, block: tuple[int, int]) -> Tensor:
    """``[rows of blocks, rows, columns of blocks, columns]``, filled up with zeros."""
    rows, width = x.shape
    filled = torch.zeros(upwards(rows, block[0]), upwards(width, block[1]))
    filled[:rows, :width] = x
    return filled.view(filled.shape[0] // block[0], block[0], filled.shape[1] // block[1], block[1])


def encode(
    x: Tensor, kind: BlockScaling, dtype: torch.dtype, by_columns: bool, powers: bool, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Bytes and inverse scales of a matrix in float32, as they are stored, of blocks."""
    block = kind.columns if by_columns else kind.rows
    assert block is not None
    rows, width = x.shape
    parts = _blocks(x, block)
    amax, most = parts.abs().amax((1, 3)), torch.finfo(dtype).max
    if kind.powers:
        exponent = exponents_above(amax * torch.tensor(1 / most))
        scale, stored = torch.ldexp(torch.ones_like(amax), 127 - exponent), exponent.to(torch.uint8)
    else:
        scale = scale_of(amax, most, powers, epsilon)
        stored = 1 / scale
    data = cast((parts * scale[:, None, :, None]).view(parts.shape[0] * block[0], -1)[:rows, :width], dtype)
    scales = torch.zeros(scale_shape(kind, rows, width, by_columns), dtype=stored.dtype)
    stored = stored.t() if kind.scales_transposed[by_columns] else stored
    scales[: stored.shape[0], : stored.shape[1]] = stored
    return (data.t() if by_columns and kind.transposed else data), scales


def exponents_above(x: Tensor) -> Tensor:
    """Exponents, biased by 127, of the least powers of two that are not below ``x``."""
    mantissa, exponent = torch.frexp(x)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.where(x == 0, torch.zeros_like(exponent), (exponent + 127).clamp(0, 254))


def decode(data: Tensor, scales: Tensor, kind: BlockScaling, dtype: torch.dtype, by_columns: bool) -> Tensor:
    """The matrix ``[M, K]`` in float32 of what is stored."""
    transposed = by_columns and kind.transposed
    matrix = data.view(torch.uint8).reshape(data.shape[0], -1) if transposed else data.reshape(-1, data.shape[-1])
    values = matrix.contiguous().view(dtype).float()
    values = values.t() if transposed else values
    block = kind.columns if by_columns else kind.rows
    if block is None:
        return values * scales.reshape(-1)[0]
    rows, width = values.shape
    stored = scales.t() if kind.scales_transposed[by_columns] else scales
    stored = stored[: -(-rows // block[0]), : -(-width // block[1])]
    factors = torch.ldexp(torch.ones(stored.shape), stored.int() - 127) if kind.powers else stored
    return (_blocks(values, block) * factors[:, None, :, None]).view(upwards(rows, block[0]), -1)[:rows, :width]


@dataclass(frozen=True)
class StoredOperand:
    """How an operand of a kernel is stored: of a quantized tensor, by rows or by columns; a plain one has no kind."""

    kind: str = ""
    by_columns: bool = False
    dtype: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{int(self.by_columns)}:{self.dtype}"

    @classmethod
    def of(cls, text: str) -> StoredOperand:
        """From what a kernel is given."""
        kind, by_columns, dtype = text.split(":")
        return cls(kind, bool(int(by_columns)), int(dtype))

    def matrix(self, data: Tensor, scales: Tensor | None) -> Tensor:
        """The operand ``[M, K]`` in float32."""
        if not self.kind:
            return data.reshape(-1, data.shape[-1]).float() if data.dim() else data.reshape(1, 1).float()
        assert scales is not None
        return decode(data, scales, KINDS[self.kind], torch_format(self.dtype), self.by_columns)
