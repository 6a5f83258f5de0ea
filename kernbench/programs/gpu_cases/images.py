"""What networks of images and of sound compute besides products: convolutions of other kinds, their norms, pools.

A direction is ``forward``, ``backward`` (all gradients), ``input`` or ``weight`` (the gradient of that one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from kernbench.programs.gpu_cases.inputs import BF16, FP16, FP32, SHORT, Call, Case, gradients, random

_PASSES = ("forward", "input", "weight")
_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class Filtered(NamedTuple):
    """An image, the channels that it gets, the side of the filter; groups, stride, padding, dilation; transposed."""

    image: tuple[int, ...]
    out: int
    side: int
    groups: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    transposed: bool = False

    def __str__(self) -> str:
        further = "".join(
            f" {name}{value}"
            for name, value, usual in (
                ("groups ", self.groups, 1), ("/", self.stride, 1), ("dilation ", self.dilation, 1),
            )
            if value != usual
        )  # fmt: skip
        return f"{'x'.join(map(str, self.image))}-{self.out} of {self.side}{further}"


_DEPTHWISE = tuple(Filtered((64, 192, 28, 28), 192, side, 192, padding=side // 2) for side in (3, 5, 7))
_OTHER_DEPTHWISE = (
    Filtered((64, 96, 112, 112), 96, 3, 96, 2, 1), Filtered((32, 768, 14, 14), 768, 7, 768, padding=3),
    Filtered((8, 2048, 2048), 2048, 4, 2048, padding=3),
)  # fmt: skip
_SOUND = tuple(Filtered((8, 128, 16000), 256, 3, padding=n, dilation=n) for n in (1, 2, 8, 128))
_VOLUMES = (
    Filtered((16, 3, 16, 112, 112), 64, 3, padding=1), Filtered((16, 64, 8, 56, 56), 128, 3, padding=1),
    Filtered((16, 128, 4, 28, 28), 256, 3, padding=1),
)  # fmt: skip
_MADE = tuple(
    Filtered((128, *image), out, 4, stride=stride, padding=padding, transposed=True)
    for image, out, stride, padding in (
        ((100, 1, 1), 512, 1, 0), ((512, 4, 4), 256, 2, 1), ((128, 16, 16), 64, 2, 1), ((64, 32, 32), 3, 2, 1),
    )
)  # fmt: skip
_JUDGED = tuple(
    Filtered((128, *image), out, 4, stride=stride, padding=padding)
    for image, out, stride, padding in (
        ((3, 64, 64), 64, 2, 1), ((64, 32, 32), 128, 2, 1), ((256, 8, 8), 512, 2, 1), ((512, 4, 4), 1, 1, 0),
    )
)  # fmt: skip
_GROUPED = (Filtered((64, 256, 56, 56), 256, 3, 32, padding=1), Filtered((64, 512, 14, 14), 512, 3, 4, padding=1))
_RESNET = (
    Filtered((0, 3, 224, 224), 64, 7, stride=2, padding=3), Filtered((0, 64, 56, 56), 256, 1),
    Filtered((0, 64, 56, 56), 64, 3, padding=1), Filtered((0, 256, 56, 56), 64, 1),
    Filtered((0, 256, 56, 56), 128, 1), Filtered((0, 128, 56, 56), 128, 3, stride=2, padding=1),
    Filtered((0, 128, 28, 28), 512, 1), Filtered((0, 512, 28, 28), 128, 1), Filtered((0, 128, 28, 28), 128, 3, padding=1),
    Filtered((0, 256, 14, 14), 256, 3, padding=1), Filtered((0, 256, 14, 14), 1024, 1), Filtered((0, 1024, 14, 14), 256, 1),
    Filtered((0, 512, 7, 7), 512, 3, padding=1), Filtered((0, 512, 7, 7), 2048, 1), Filtered((0, 2048, 7, 7), 512, 1),
    Filtered((0, 256, 56, 56), 512, 1, stride=2),
)  # fmt: skip
_UNET = (
    Filtered((32, 128, 64, 64), 128, 3, padding=1), Filtered((32, 384, 16, 16), 384, 3, padding=1),
    Filtered((32, 768, 16, 16), 256, 3, padding=1),
)  # fmt: skip


def kinds() -> Iterator[tuple[str, Filtered, torch.dtype, bool, tuple[str, ...]]]:
    """Kind, sizes, format, whether channels are last, directions."""
    for dtype, last in ((BF16, False), (FP32, False), (BF16, True), (FP32, True)):
        for what in _DEPTHWISE:
            yield "depthwise", what, dtype, last, _PASSES
    for what in _OTHER_DEPTHWISE:
        for dtype in (BF16, FP32):
            yield "depthwise", what, dtype, False, _PASSES
    for what in _SOUND:
        yield "sound", what, FP32, False, _PASSES
    for what in (_SOUND[0], _SOUND[2]):
        yield "sound", what, BF16, False, _PASSES
    for dtype in (BF16, FP32):
        for what in _VOLUMES[: 3 if dtype is BF16 else 2]:
            yield "volumes", what, dtype, False, _PASSES
    for dtype in (FP32, BF16):
        for what in (*_MADE, *_JUDGED):
            yield "small images", what, dtype, False, _PASSES if dtype is FP32 else _PASSES[:1]
    for batch, dtype, last in ((128, FP16, True), (1, FP32, False), (64, FP32, False), (1, FP16, True)):
        for what in _RESNET:
            yield "resnet", what._replace(image=(batch, *what.image[1:])), dtype, last, ("forward",)
    for what in _UNET:
        yield "unet", what, BF16, False, _PASSES
        yield "unet", what._replace(image=(2, *what.image[1:])), FP16, False, _PASSES[:1]
    for what in _GROUPED:
        for dtype, last in ((BF16, True), (FP32, False)):
            yield "grouped", what, dtype, last, _PASSES


def filters() -> Iterator[Case]:
    """Convolutions that the ten of :mod:`layers` are not like."""
    for kind, what, dtype, last, directions in kinds():
        for direction in directions:
            layout = "last" if last else "first"
            title = f"{SHORT[dtype]} {layout} {what}"
            yield f"{kind} {direction}", title, partial(_filtered, what, dtype, last, direction)


def _laid(x: Tensor, last: bool) -> Tensor:
    if not last:
        return x
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def _filtered(what: Filtered, dtype: torch.dtype, last: bool, direction: str) -> Call:
    dims, given = len(what.image) - 2, what.image[1]
    shape = (given, what.out // what.groups) if what.transposed else (what.out, given // what.groups)
    x = _laid(random(*what.image, dtype=dtype), last)
    weight = _laid(random(*shape, *[what.side] * dims, dtype=dtype), last)
    function: Any = (_TRANSPOSED if what.transposed else _CONVOLVE)[dims]
    options = {"stride": what.stride, "padding": what.padding, "groups": what.groups, "dilation": what.dilation}
    return gradients(lambda: function(x, weight, **options), {"input": x, "weight": weight}, direction)


# -- norms and pools -----------------------------------------------------------------------------------------------------

_NORMED = (
    (128, 64, 112, 112),
    (128, 256, 56, 56),
    (128, 512, 7, 7),
    (16, 64, 16, 112, 112),
    (16, 256, 4, 28, 28),
    (8192, 512),
)


def norms() -> Iterator[Case]:
    """Batch norms in training and not, group norms: layouts, formats, both directions."""
    for shape in _NORMED:
        for dtype, last in ((BF16, False), (BF16, True), (FP32, False), (FP32, True)):
            if last and len(shape) != 4:
                continue
            title = f"{SHORT[dtype]} {'last' if last else 'first'} {'x'.join(map(str, shape))}"
            for trains in (True, False):
                for direction in ("forward", "backward"):
                    if not trains and direction == "backward" and shape != _NORMED[1]:
                        continue
                    kind = f"batch norm {'trained' if trains else 'evaluated'} {direction}"
                    yield kind, title, partial(_batch_normed, shape, dtype, last, trains, direction)
    for shape in ((32, 128, 64, 64), (32, 384, 16, 16), (2, 128, 64, 64)):
        for dtype, last in ((BF16, False), (FP32, False), (BF16, True)):
            title = f"{SHORT[dtype]} {'last' if last else 'first'} {'x'.join(map(str, shape))}"
            for direction in ("forward", "backward"):
                yield f"group norm {direction}", title, partial(_group_normed, shape, dtype, last, direction)


def _batch_normed(shape: tuple[int, ...], dtype: torch.dtype, last: bool, trains: bool, direction: str) -> Call:
    channels = shape[1]
    x = _laid(random(*shape, dtype=dtype), last)
    weight, bias = random(channels, dtype=FP32), random(channels, dtype=FP32)
    mean, var = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
    inputs = {"input": x, "weight": weight, "bias": bias}
    return gradients(lambda: F.batch_norm(x, mean, var, weight, bias, trains), inputs, direction)


def _group_normed(shape: tuple[int, ...], dtype: torch.dtype, last: bool, direction: str) -> Call:
    x = _laid(random(*shape, dtype=dtype), last)
    weight, bias = random(shape[1], dtype=dtype), random(shape[1], dtype=dtype)
    return gradients(lambda: F.group_norm(x, 32, weight, bias), {"input": x, "weight": weight, "bias": bias}, direction)


POOLS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "max 3/2": ((128, 64, 112, 112), lambda x: F.max_pool2d(x, 3, 2, 1)),
    "max 2": ((64, 128, 56, 56), lambda x: F.max_pool2d(x, 2)),
    "max 2x2x2": ((16, 64, 16, 112, 112), lambda x: F.max_pool3d(x, 2)),
    "max 2x2x2 small": ((16, 256, 4, 28, 28), lambda x: F.max_pool3d(x, 2)),
    "max of sound 2": ((64, 128, 8192), lambda x: F.max_pool1d(x, 2)),
    "average 2": ((32, 128, 64, 64), lambda x: F.avg_pool2d(x, 2)),
    "average 3/2": ((64, 128, 56, 56), lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "average 2x2x2": ((16, 64, 16, 112, 112), lambda x: F.avg_pool3d(x, 2)),
    "average of all": ((128, 2048, 7, 7), lambda x: F.adaptive_avg_pool2d(x, 1)),
    "average to 7": ((64, 512, 28, 28), lambda x: F.adaptive_avg_pool2d(x, 7)),
    "average of volumes": ((16, 256, 2, 14, 14), lambda x: F.adaptive_avg_pool3d(x, 1)),
    "largest to 7": ((64, 512, 28, 28), lambda x: F.adaptive_max_pool2d(x, 7)),
    "nearest 2": ((32, 128, 32, 32), lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest")),
    "bilinear 2": ((32, 128, 32, 32), lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")),
    "bicubic 2": ((32, 128, 32, 32), lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic")),
    "trilinear 2": ((4, 64, 16, 32, 32), lambda x: F.interpolate(x, scale_factor=2.0, mode="trilinear")),
    "reflected": ((32, 128, 64, 64), lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "patches": ((32, 64, 64, 64), lambda x: F.unfold(x, 3, padding=1)),
    "shuffled": ((32, 256, 64, 64), lambda x: F.pixel_shuffle(x, 2)),
}


def pools() -> Iterator[Case]:
    """Pools and what changes an image's size: layouts, both directions."""
    for name, (shape, function) in POOLS.items():
        for dtype, last in ((BF16, False), (FP32, False), (BF16, True)):
            if last and (len(shape) != 4 or name in ("patches", "reflected", "bicubic 2", "shuffled")):
                continue
            title = f"{SHORT[dtype]} {'last' if last else 'first'} {'x'.join(map(str, shape))}"
            for direction in ("forward", "backward"):
                yield f"{name} {direction}", title, partial(_pooled, shape, function, dtype, last, direction)
    for direction in ("forward", "backward"):
        for dtype in (BF16, FP32):
            yield f"grid {direction}", f"{SHORT[dtype]} 32x64x64x64", partial(_sampled, dtype, direction)


def _pooled(
    shape: tuple[int, ...], function: Callable[[Tensor], Tensor], dtype: torch.dtype, last: bool, direction: str
) -> Call:
    x = _laid(random(*shape, dtype=dtype), last)
    return gradients(lambda: function(x), {"input": x}, direction)


def _sampled(dtype: torch.dtype, direction: str) -> Call:
    x = random(32, 64, 64, 64, dtype=dtype)
    grid = (torch.rand(32, 64, 64, 2, device="cuda") * 2 - 1).to(dtype)
    return gradients(lambda: F.grid_sample(x, grid, align_corners=False), {"input": x, "grid": grid}, direction)
