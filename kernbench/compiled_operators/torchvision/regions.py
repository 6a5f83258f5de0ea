"""Pooling of regions of interest, ``[regions, 5]``: an image of the batch, and left, top, right, bottom in its coordinates.

Each region has ``pooled_height`` times ``pooled_width`` bins. Three of the four are linear and separable: a bin is a sum over
rows and columns, whose weights are known from the region alone, so that a gradient is the same sum the other way round.
``ps_`` (position-sensitive): each bin has channels of its own.

Costs: bytes that are read and written once, where each sample of ``roi_align`` reads four pixels, or all pixels are read once
if that is less; and the operations of the samples. How large a region is, is not known to a cost: where a bin has as many
samples as pixels, four are counted. UNVERIFIED against measured kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernbench.compiled_operators.torchvision.schemas import computed_in, operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.work import StatedWork

Tensor = torch.Tensor

_LOWEST = torch.finfo(torch.float32).min
"""What the greatest of no pixel is compared with."""


@dataclass(frozen=True)
class Pooling:
    """What the bins of each region take along one axis.

    Attributes:
        weights: ``[regions, bins, pixels]``.
        samples: of a bin, ``[regions]``.
    """

    weights: Tensor
    samples: Tensor

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first pixel of each region with a weight, and the one behind the last."""
        pixels = self.weights.shape[-1]
        used = (self.weights != 0).any(1).int()
        first, last = used.argmax(-1), pixels - used.flip(-1).argmax(-1)
        some = used.any(-1)
        return list(zip((first * some).tolist(), (last * some).tolist(), strict=True))


def sampled(begins: Tensor, sizes: Tensor, bins: int, pixels: int, ratio: int) -> Pooling:
    """Samples within each bin, ``ratio`` or as many as its pixels, each from the two pixels that it lies between.

    Up to one pixel outside of the image it is the pixel at the edge, beyond that zero.
    """
    per_bin = sizes / bins
    grid = torch.full_like(per_bin, ratio) if ratio > 0 else per_bin.ceil()
    most = max(int(grid.max()), 0) if len(grid) else 0
    at = torch.arange(most)
    step, number = (each[:, None, None] for each in (per_bin, grid))
    places = begins[:, None, None] + torch.arange(bins)[:, None] * step + (at + 0.5).to(sizes.dtype) * step / number
    live = (at < number) & (places >= -1) & (places <= pixels)
    places = places.where(live, 0).clamp(min=0, max=pixels - 1)
    low = places.long()
    share = places - low
    weights = torch.zeros(len(begins), bins, pixels, dtype=sizes.dtype)
    weights.scatter_add_(-1, low, (1 - share) * live)
    weights.scatter_add_(-1, (low + 1).clamp(max=pixels - 1), share * live)
    return Pooling(weights, grid)


def windows(begins: Tensor, sizes: Tensor, bins: int, end: int) -> tuple[Tensor, Tensor]:
    """The first pixel of each bin, and the one behind the last, ``[regions, bins]``, before ``end``."""
    per_bin, at = sizes[:, None] / bins, torch.arange(bins)
    first, behind = (at * per_bin).floor(), ((at + 1) * per_bin).ceil()
    low, high = (begins[:, None] + each for each in (first, behind))
    return low.clamp(0, end).long(), high.clamp(0, end).long()


def averaged(begins: Tensor, sizes: Tensor, bins: int, pixels: int, end: int) -> Pooling:
    """All pixels of each bin with the same weight."""
    first, behind = (each[..., None] for each in windows(begins, sizes, bins, end))
    at = torch.arange(pixels)
    inside = ((at >= first) & (at < behind)).to(sizes.dtype)
    return Pooling(inside / (behind - first).clamp(min=1), torch.ones_like(sizes))


def corners_of(rois: Tensor, scale: float, shift: float = 0.0) -> tuple[Tensor, ...]:
    """Left, top, right and bottom of the regions in pixels."""
    return tuple((rois[:, 1:].to(computed_in(rois)) * scale - shift).unbind(1))


def rounded(rois: Tensor, scale: float) -> tuple[Tensor, ...]:
    """The corners as whole pixels; a half is away from zero."""
    return tuple((each.sign() * (each.double().abs() + 0.5).floor()).to(each.dtype) for each in corners_of(rois, scale))


def _aligned(rois: Tensor, scale: float, bins: tuple[int, int], size: tuple[int, int], ratio: int, aligned: bool,
             whole: bool) -> tuple[Pooling, Pooling]:  # fmt: skip
    """``whole``: a region has a pixel at least."""
    left, top, right, bottom = corners_of(rois, scale, 0.5 if aligned else 0.0)
    heights, widths = (each.clamp(min=1) if whole else each for each in (bottom - top, right - left))
    return sampled(top, heights, bins[0], size[0], ratio), sampled(left, widths, bins[1], size[1], ratio)


def _averaged(
    rois: Tensor, scale: float, bins: tuple[int, int], size: tuple[int, int], less: int
) -> tuple[Pooling, Pooling]:
    left, top, right, bottom = rounded(rois, scale)
    heights, widths = ((each).clamp(min=1) for each in (bottom - top, right - left))
    return (
        averaged(top, heights, bins[0], size[0], size[0] - less),
        averaged(left, widths, bins[1], size[1], size[1] - less),
    )


def pooled(images: Tensor, rois: Tensor, axes: tuple[Pooling, Pooling], samples: Tensor, *, positions: bool) -> Tensor:
    """The bins ``[regions, channels, rows, columns]`` of images ``[batch, channels, height, width]``, sums over ``samples``
    of each region ``[regions]``; ``positions``: of each bin's own channels."""
    rows, columns = axes
    found = []
    for at, (image, (top, bottom), (left, right)) in enumerate(
        zip(rois[:, 0].long().tolist(), rows.spans, columns.spans, strict=True)
    ):
        part = images[image, :, top:bottom, left:right].to(samples.dtype)
        down, across = rows.weights[at, :, top:bottom], columns.weights[at, :, left:right]
        if positions:
            part = part.unflatten(0, (-1, len(down), len(across)))
            found.append(torch.einsum("ph,cpqhw,qw->cpq", down, part, across) / samples[at])
        else:
            found.append(down @ part @ across.T / samples[at])
    bins = (rows.weights.shape[1], columns.weights.shape[1])
    channels = images.shape[1] // (bins[0] * bins[1]) if positions else images.shape[1]
    return (torch.stack(found) if found else images.new_zeros(0, channels, *bins)).to(images.dtype)


def spread(grad: Tensor, rois: Tensor, axes: tuple[Pooling, Pooling], samples: Tensor, size: tuple[int, int, int, int], *,
           positions: bool) -> Tensor:  # fmt: skip
    """The gradient of the images, of that of the bins."""
    rows, columns = axes
    out = torch.zeros(size, dtype=samples.dtype)
    for at, (image, (top, bottom), (left, right)) in enumerate(
        zip(rois[:, 0].long().tolist(), rows.spans, columns.spans, strict=True)
    ):
        given = grad[at].to(samples.dtype) / samples[at]
        down, across = rows.weights[at, :, top:bottom], columns.weights[at, :, left:right]
        if positions:
            part = torch.einsum("ph,cpq,qw->cpqhw", down, given, across).flatten(0, 2)
        else:
            part = down.T @ given @ across
        out[image, :, top:bottom, left:right] += part
    return out.to(grad.dtype)


# -- samples between pixels -----------------------------------------------------------------------------------------------


@operators.value
def roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    aligned: bool,
) -> Tensor:  # fmt: skip
    """Each bin: the mean of its samples."""
    _check(input, rois)
    bins, size = (pooled_height, pooled_width), (input.shape[2], input.shape[3])
    axes = _aligned(rois, spatial_scale, bins, size, sampling_ratio, aligned, not aligned)
    return pooled(input, rois, axes, _samples(axes).clamp(min=1), positions=False)


@operators.value
def _roi_align_backward(
    grad: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, batch_size: int, channels: int,
    height: int, width: int, sampling_ratio: int, aligned: bool,
) -> Tensor:  # fmt: skip
    axes = _aligned(
        rois, spatial_scale, (pooled_height, pooled_width), (height, width), sampling_ratio, aligned, not aligned
    )
    size = (batch_size, channels, height, width)
    return spread(grad, rois, axes, _samples(axes).clamp(min=1), size, positions=False)


@operators.value
def ps_roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> tuple[Tensor, Tensor]:
    """The same of each bin's own channels, and which these are."""
    _check(input, rois, pooled_height * pooled_width)
    bins, size = (pooled_height, pooled_width), (input.shape[2], input.shape[3])
    axes = _aligned(rois, spatial_scale, bins, size, sampling_ratio, True, False)
    return _with_channels(pooled(input, rois, axes, _samples(axes), positions=True))


@operators.value
def _ps_roi_align_backward(
    grad: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    batch_size: int, channels: int, height: int, width: int,
) -> Tensor:  # fmt: skip
    axes = _aligned(rois, spatial_scale, (pooled_height, pooled_width), (height, width), sampling_ratio, True, False)
    return spread(grad, rois, axes, _samples(axes), (batch_size, channels, height, width), positions=True)


def _samples(axes: tuple[Pooling, Pooling]) -> Tensor:
    return axes[0].samples * axes[1].samples


# -- whole pixels ---------------------------------------------------------------------------------------------------------


@operators.value
def ps_roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Each bin: the mean of its pixels in its own channels, and which these are; zero where there are none.

    The package's kernel leaves the last row and the last column of an image out, and that of its gradient does not.
    """
    _check(input, rois, pooled_height * pooled_width)
    axes = _averaged(rois, spatial_scale, (pooled_height, pooled_width), (input.shape[2], input.shape[3]), less=1)
    return _with_channels(pooled(input, rois, axes, _samples(axes), positions=True))


@operators.value
def _ps_roi_pool_backward(
    grad: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, batch_size: int, channels: int,
    height: int, width: int,
) -> Tensor:  # fmt: skip
    axes = _averaged(rois, spatial_scale, (pooled_height, pooled_width), (height, width), less=0)
    return spread(grad, rois, axes, _samples(axes), (batch_size, channels, height, width), positions=True)


@operators.value
def roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Each bin: the greatest of its pixels, and where it is in the image (-1, and zero: there are none)."""
    _check(input, rois)
    (height, width), bins = input.shape[2:], (pooled_height, pooled_width)
    left, top, right, bottom = rounded(rois, spatial_scale)
    heights, widths = ((each + 1).clamp(min=1) for each in (bottom - top, right - left))
    rows, columns = (
        torch.stack(windows(*each), -1).tolist()
        for each in ((top, heights, pooled_height, height), (left, widths, pooled_width, width))
    )
    best = torch.zeros(len(rois), input.shape[1], *bins, dtype=computed_in(input))
    where = torch.full(best.shape, -1, dtype=torch.int32)
    for at, image in enumerate(rois[:, 0].long().tolist()):
        for i, (above, below) in enumerate(rows[at]):
            for j, (first, behind) in enumerate(columns[at]):
                if below <= above or behind <= first:
                    continue
                part = (
                    input[image, :, above:below, first:behind]
                    .to(best.dtype)
                    .nan_to_num(nan=-torch.inf, posinf=torch.inf)
                )
                value, index = part.flatten(1).max(-1)
                across = behind - first
                place = (index // across + above) * width + index % across + first
                best[at, :, i, j] = value.clamp(min=_LOWEST)
                where[at, :, i, j] = place.where(value > _LOWEST, -1).int()
    return best.to(input.dtype), where


@operators.value
def _roi_pool_backward(
    grad: Tensor, rois: Tensor, argmax: Tensor, batch_size: int, channels: int, height: int, width: int
) -> Tensor:
    out = torch.zeros(batch_size * channels, height * width, dtype=computed_in(grad))
    image = rois[:, 0].long()[:, None] * channels + torch.arange(channels)
    where, given = argmax.flatten(2).long(), grad.flatten(2).to(out.dtype)
    out.index_put_((image[..., None].expand_as(where), where.clamp(min=0)), given * (where >= 0), accumulate=True)
    return out.view(batch_size, channels, height, width).to(grad.dtype)


def _check(images: Tensor, rois: Tensor, bins: int = 1) -> None:
    if rois.dim() != 2 or rois.shape[1] != 5:
        raise RuntimeError(f"Tensor rois should have shape as Tensor[K, 5], it has {list(rois.shape)}")
    if images.dtype != rois.dtype:
        raise RuntimeError(f"input is {images.dtype}, and rois are {rois.dtype}: they must have one type")
    if images.shape[1] % bins:
        raise RuntimeError("input channels must be a multiple of pooling height * pooling width")


def _of_regions(input: Tensor, rois: Tensor, pooled_height: int, pooled_width: int) -> Tensor:
    return input.new_empty(len(rois), input.shape[1], pooled_height, pooled_width)


def _of_images(grad: Tensor, batch_size: int, channels: int, height: int, width: int) -> Tensor:
    return grad.new_empty(batch_size, channels, height, width)


def _with_places(input: Tensor, rois: Tensor, pooled_height: int, pooled_width: int) -> tuple[Tensor, Tensor]:
    found = _of_regions(input, rois, pooled_height, pooled_width)
    return found, torch.empty_like(found, dtype=torch.int32)


def _of_positions(input: Tensor, rois: Tensor, pooled_height: int, pooled_width: int) -> tuple[Tensor, Tensor]:
    channels = input.shape[1] // (pooled_height * pooled_width)
    return _with_places(input[:, :channels], rois, pooled_height, pooled_width)


for _name, _shape in (
    ("roi_align", _of_regions), ("roi_pool", _with_places), ("ps_roi_align", _of_positions), ("ps_roi_pool", _of_positions),
):  # fmt: skip
    operators.shape(_name)(_shape)
    operators.shape(f"_{_name}_backward")(_of_images)


def _with_channels(found: Tensor) -> tuple[Tensor, Tensor]:
    """The bins, and the input's channel of each."""
    return found, torch.arange(found[0].numel() if len(found) else 0, dtype=torch.int32).expand(len(found), -1).reshape(
        found.shape
    )


# -- costs ----------------------------------------------------------------------------------------------------------------

_OF_A_SAMPLE = 24
"""Operations: four pixels with four weights, and where it lies."""


def _cost_of_samples(operands: CallOperands) -> StatedWork:
    """Of the bins of ``roi_align``, or of a gradient, whose pixels are read and written."""
    given, rois = operands.tensors[:2]
    (made, *_), back = operands.results, "grad" in operands
    bins, pixels = (given, made) if back else (made, given)
    ratio = operands["sampling_ratio"]
    samples = bins.elements * (ratio * ratio if ratio > 0 else 4)
    width = pixels.nbytes // max(pixels.elements, 1)
    touched = 4 * samples * width
    moved = pixels.nbytes + 2 * touched if back else min(touched, pixels.nbytes)
    rest = sum(each.nbytes for each in operands.tensors[2:]) + sum(each.nbytes for each in operands.results[1:])
    return StatedWork(bins.nbytes + rois.nbytes + rest + moved, _OF_A_SAMPLE * samples)


def _cost_of_pixels(operands: CallOperands) -> StatedWork:
    """Every pixel is read once, or set to zero before others are added to it."""
    return StatedWork(sum(each.nbytes for each in (*operands.tensors, *operands.results)), operands.tensors[0].elements)


for _name in ("roi_align", "ps_roi_align"):
    operators.cost(_name)(_cost_of_samples)
    operators.cost(f"_{_name}_backward")(_cost_of_samples)
for _name in ("roi_pool", "ps_roi_pool"):
    operators.cost(_name)(_cost_of_pixels)
    operators.cost(f"_{_name}_backward")(_cost_of_pixels)
