"""Deformable convolution: each tap of each result lies where an offset puts it, between four pixels, and may have a factor.

``offset [batch, groups * taps * 2, rows, columns]`` has how far down and how far right; ``mask [batch, groups * taps, ...]``
has the factors. What is outside of the image is zero.

The cost is that of the package's two kernels: samples are written as columns, and multiplied by the weights; in a gradient
there are two products, and the columns are written and read twice. UNVERIFIED against measured kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from kernbench.compiled_operators.torchvision.schemas import computed_in, operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.work import StatedWork

Tensor = torch.Tensor


@dataclass(frozen=True)
class Corner:
    """One of four pixels: where each tap has it in the image, ``[batch, groups, 1, taps * results]``, its share of the tap's
    value, and how that grows downwards and to the right."""

    at: Tensor
    share: Tensor
    down: Tensor
    right: Tensor
    inside: Tensor

    def of(self, pixels: Tensor) -> Tensor:
        """The pixels, zero outside: ``[batch, groups, channels, taps * results]``."""
        return pixels.gather(-1, self.at.expand(-1, -1, pixels.shape[2], -1)) * self.inside


@dataclass(frozen=True)
class Taps:
    """One call's operands, all in the format of the computation."""

    input: Tensor
    weight: Tensor
    offset: Tensor
    mask: Tensor | None
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    offset_groups: int

    @property
    def size(self) -> tuple[int, int]:
        """Of the results."""
        return self.offset.shape[-2], self.offset.shape[-1]

    @property
    def pixels(self) -> Tensor:
        """``[batch, groups of offsets, channels of each, pixels]``."""
        return self.input.flatten(2).unflatten(1, (self.offset_groups, -1))

    def factors(self) -> Tensor | float:
        """``[batch, groups of offsets, 1, taps * results]``."""
        return 1.0 if self.mask is None else self.mask.unflatten(1, (self.offset_groups, -1)).flatten(2)[:, :, None]

    def corners(self) -> list[Corner]:
        """Of each tap of each result."""
        (height, width), taps = self.input.shape[2:], self.weight.shape[2:]
        offset = self.offset.unflatten(1, (self.offset_groups, *taps, 2))
        places = []
        for axis in (0, 1):
            result = torch.arange(self.size[axis]) * self.stride[axis] - self.pad[axis]
            tap = torch.arange(taps[axis]) * self.dilation[axis]
            whole = tap.view((-1, 1, 1, 1) if axis == 0 else (-1, 1, 1)) + result.view((-1, 1) if axis == 0 else (-1,))
            places.append((offset.select(4, axis) + whole).flatten(2)[:, :, None])
        lows = [each.floor() for each in places]
        (down, right) = (each - low for each, low in zip(places, lows, strict=True))
        found = []
        for below in (0, 1):
            for beyond in (0, 1):
                row, column = lows[0] + below, lows[1] + beyond
                inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
                vertical, horizontal = down if below else 1 - down, right if beyond else 1 - right
                found.append(Corner(
                    (row * width + column).where(inside, 0).long(), vertical * horizontal,
                    horizontal if below else -horizontal, vertical if beyond else -vertical, inside,
                ))  # fmt: skip
        return found

    def columns(self, values: Tensor) -> Tensor:
        """The taps' values ``[batch, groups of offsets, channels, taps * results]`` as the products take them, ``[batch,
        groups, channels * taps, results]``."""
        taps = prod(self.weight.shape[2:])
        flat = values.flatten(1, 2).unflatten(-1, (taps, -1)).flatten(1, 2)
        return flat.unflatten(1, (self.groups, -1))

    def taps(self, columns: Tensor) -> Tensor:
        """The other way round."""
        taps = prod(self.weight.shape[2:])
        flat = columns.flatten(1, 2).unflatten(1, (-1, taps)).flatten(2)
        return flat.unflatten(1, (self.offset_groups, -1))

    @property
    def matrices(self) -> Tensor:
        """The weights, ``[groups, results' channels, channels * taps]``."""
        return self.weight.flatten(1).unflatten(0, (self.groups, -1))


def _call(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, stride: tuple[int, int], pad: tuple[int, int],
    dilation: tuple[int, int], groups: int, offset_groups: int,
) -> Taps:  # fmt: skip
    taps = (weight.shape[2], weight.shape[3])
    size = tuple(
        (input.shape[2 + axis] + 2 * pad[axis] - dilation[axis] * (taps[axis] - 1) - 1) // stride[axis] + 1
        for axis in (0, 1)
    )
    wanted = (input.shape[0], offset_groups * 2 * prod(taps), *size)
    if tuple(offset.shape) != wanted:
        raise RuntimeError(f"the shape of the offset is not valid: {list(offset.shape)}, expected {list(wanted)}")
    if mask is not None and mask.shape[1] != offset_groups * prod(taps):
        raise RuntimeError(f"mask.shape[1] is not valid: {mask.shape[1]}, expected {offset_groups * prod(taps)}")
    if mask is not None and tuple(mask.shape) != (input.shape[0], mask.shape[1], *size):
        raise RuntimeError(f"the shape of the mask is not valid: {list(mask.shape)}, expected results of {list(size)}")
    if weight.shape[1] * groups != input.shape[1] or weight.shape[0] % groups or input.shape[1] % offset_groups:
        raise RuntimeError(f"weights {list(weight.shape)} in {groups} groups do not fit {input.shape[1]} channels")
    wide = computed_in(input)
    return Taps(
        input.to(wide), weight.to(wide), offset.to(wide), None if mask is None else mask.to(wide), stride, pad, dilation,
        groups, offset_groups,
    )  # fmt: skip


@operators.value
def deform_conv2d(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int, pad_h: int,
    pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Tensor:  # fmt: skip
    """``[batch, results' channels, rows, columns]``."""
    window = (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w)
    call = _call(input, weight, offset, mask if use_mask else None, *window, groups, offset_groups)
    pixels = call.pixels
    values = sum((each.share * each.of(pixels) for each in call.corners()), torch.zeros(())) * call.factors()
    out = (call.matrices @ call.columns(values)).flatten(1, 2) + bias.to(pixels.dtype)[:, None]
    return out.unflatten(-1, call.size).to(input.dtype)


@operators.value
def _deform_conv2d_backward(
    grad: Tensor, input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int,
    pad_h: int, pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    window = (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w)
    call = _call(input, weight, offset, mask if use_mask else None, *window, groups, offset_groups)
    pixels, factors = call.pixels, call.factors()
    given = grad.to(pixels.dtype).flatten(2).unflatten(1, (groups, -1))
    of_values = call.taps(call.matrices.transpose(1, 2) @ given)
    of_samples = of_values * factors
    values, of_pixels = torch.zeros(()), torch.zeros_like(pixels)
    down = right = torch.zeros(())
    for corner in call.corners():
        there = corner.of(pixels)
        values = values + corner.share * there
        down, right = down + corner.down * there, right + corner.right * there
        at = corner.at.expand(-1, -1, pixels.shape[2], -1)
        of_pixels.scatter_add_(-1, at, of_samples * corner.share * corner.inside)
    of_weight = (given @ call.columns(values * factors).transpose(-1, -2)).sum(0)
    of_offset = torch.stack([(of_samples * each).sum(2) for each in (down, right)], -1)
    of_offset = of_offset.unflatten(2, (-1, prod(call.size))).transpose(-1, -2)
    of_mask = torch.zeros_like(mask)
    if use_mask:
        of_mask = (of_values * values).sum(2).reshape(mask.shape).to(mask.dtype)
    return (
        of_pixels.reshape(input.shape).to(input.dtype), of_weight.reshape(weight.shape).to(weight.dtype),
        of_offset.reshape(offset.shape).to(offset.dtype), of_mask, grad.sum((0, 2, 3)).expand_as(bias).to(bias.dtype),
    )  # fmt: skip


@operators.shape("deform_conv2d")
def _of_results(input: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    return input.new_empty(len(input), len(weight), *offset.shape[-2:])


@operators.shape("_deform_conv2d_backward")
def _of_gradients(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return tuple(map(torch.empty_like, (input, weight, offset, mask, bias)))


def _cost(operands: CallOperands, products: int, passes: int) -> StatedWork:
    """``products`` of the columns with the weights or the gradient, ``passes`` over the columns."""
    weight, offset, data = operands["weight"], operands["offset"], operands["input"]
    results = offset.shape[0] * prod(offset.shape[-2:])
    columns = results * data.shape[1] * prod(weight.shape[2:])
    moved = sum(each.nbytes for each in (*operands.tensors, *operands.results))
    return StatedWork(
        moved + passes * columns * (data.nbytes // max(data.elements, 1)), products * 2 * results * weight.elements,
        data.format in ("fp16", "bf16"), data.format,
    )  # fmt: skip


operators.cost("deform_conv2d")(lambda operands: _cost(operands, 1, 2))
operators.cost("_deform_conv2d_backward")(lambda operands: _cost(operands, 2, 4))
