"""How long a convolution takes in the vendor's library (cuDNN, MIOpen): a product whose left operand is never written out.

A kernel multiplies ``[pixels, channels x filter]``, which it reads from the image as it goes (an implicit product), by the
filters. It wants the channels of a pixel beside each other, in pieces of 16 bytes. Images with channels first are copied there
and back, but for filters of one pixel, which are products of each image as it lies. Filters of one channel each (depthwise)
have kernels of their own that move bytes. What has no other source was measured on an H100 [H] (ADR 0236, ADR 0247).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

import numpy as np

from kernbench.cost.estimate import Estimate
from kernbench.cost.gemm import gemm_time
from kernbench.cost.memory_bound import OPS, traffic_time
from kernbench.cost.operands import Shape
from kernbench.cost.uncertainty import band_interval
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES

_PIECE = 16  # bytes of channels that are loaded at once
_PADDED = 0.08  # of the matrix peak, with channels that are no multiple of that: filled up, by kernels of older generations [H]
_DEPTHWISE = {True: (0.66, 0.49), False: (0.29, 0.18)}
"""Shares of the copy bandwidth, forward and backward, by whether channels are last [H]."""


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution.

    Attributes:
        image: ``[images, channels, ...]``.
        weight: ``[results, channels of a group, ...]``.
        result: ``[images, results, ...]``.
        channels_last: whether the channels of a pixel are beside each other in memory.
    """

    image: Shape
    weight: Shape
    result: Shape
    channels_last: bool

    @classmethod
    def of(cls, image: Shape, weight: Shape, result: Shape, channels_last: bool) -> Convolution | None:
        """That of these shapes, None if they are of none. A transposed one is the gradient of another's image."""
        if min(len(image), len(weight), len(result)) < 3 or 0 in (*image, *weight, *result):
            return None
        if weight[0] == image[1] and weight[0] != result[1]:
            image, result = result, image
        return cls(image, weight, result, channels_last)

    @property
    def groups(self) -> int:
        """Groups of channels, each with filters of its own."""
        return max(self.image[1] // self.weight[1], 1)

    @property
    def taps(self) -> int:
        """Pixels of a filter."""
        return prod(self.weight[2:])

    @property
    def pixels(self) -> int:
        """Pixels of the results of all images."""
        return self.result[0] * prod(self.result[2:])

    @property
    def by_pixel(self) -> bool:
        """Whether each result is of one pixel of the image, and each pixel has one."""
        return self.taps == 1 and self.image[2:] == self.result[2:]


def convolution_time(
    spec: DeviceSpec, what: Convolution, dtype: str, passes: tuple[str, ...] = ("result",)
) -> Estimate:
    """How long the ``passes`` take: of the ``"result"``, or of the gradient of the ``"image"``, of the ``"weight"``."""
    width = ITEM_BYTES[dtype]
    tensors = (prod(what.image) + prod(what.result)) * width
    if what.weight[1] == 1 < what.groups:
        share = _DEPTHWISE[what.channels_last]["result" not in passes]
        seconds = spec.launch.latency + len(passes) * tensors / (share * spec.hbm_copy_bandwidth)
        low, high = (float(each) for each in band_interval("memory_bound", np.asarray(seconds), np.asarray(seconds)))
        return Estimate(seconds, low, high, "memory", "", tensors / seconds, tensors / seconds)
    parts = [_pass(spec, what, dtype, each) for each in passes]
    found = parts[0]
    for part in parts[1:]:
        found = _added(found, part.seconds)
    if what.channels_last or spec.target.backend != "cuda":
        return found
    # to channels last and back: the image and the result, and of gradients these two once more
    copied = _copied(spec, what, width)
    moved = _added(found, copied if passes == ("result",) else 2 * copied)
    if not what.by_pixel:
        return moved
    batch, each = what.image[0], prod(what.result[2:])
    kernel = gemm_time(
        spec, what.weight[0] // what.groups, each, what.weight[1], dtype=dtype, batch=batch * what.groups
    )
    plain = _times(kernel, len(passes))
    return min(plain, moved, key=lambda estimate: estimate.seconds)


def _copied(spec: DeviceSpec, what: Convolution, width: float) -> float:
    return sum(
        traffic_time(spec, OPS["copy"], (prod(shape),), 2 * prod(shape) * width).seconds
        for shape in (what.image, what.result)
    )


def _pass(spec: DeviceSpec, what: Convolution, dtype: str, wanted: str) -> Estimate:
    """One product, or one for each group."""
    width = ITEM_BYTES[dtype]
    step = max(round(_PIECE / width), 1)
    channels, results = what.weight[1], what.weight[0] // what.groups
    unpadded = channels % step != 0
    channels = ceil(channels / step) * step
    pixels, taps = what.pixels, what.taps
    seen = (
        prod(what.image[2:]) * what.image[0] / (pixels * taps)
    )  # of the pixels that the products have, those there are
    if wanted == "image":
        dims, distinct = (pixels, channels, results * taps), (1 / taps, 1.0)
    elif wanted == "weight":
        dims, distinct = (results, channels * taps, pixels), (1.0, min(seen, 1.0))
    else:
        dims, distinct = (pixels, results, channels * taps), (min(seen, 1.0), 1.0)
    found = gemm_time(spec, *dims, dtype=dtype, batch=what.groups, distinct=distinct)
    if unpadded and spec.target.backend == "cuda":
        filled = 2.0 * what.groups * prod(dims) / (_PADDED * spec.matrix_rate(dtype))
        found = _times(found, (spec.launch.latency + filled) / found.seconds)
    return found


def _added(found: Estimate, seconds: float) -> Estimate:
    return _times(found, (found.seconds + seconds) / found.seconds)


def _times(found: Estimate, factor: float) -> Estimate:
    return replace(found, seconds=found.seconds * factor, low=found.low * factor, high=found.high * factor)
