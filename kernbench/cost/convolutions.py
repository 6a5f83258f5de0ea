"""How long a convolution takes in the vendor's library (cuDNN, MIOpen): a product whose left operand is never written out.

A kernel multiplies ``[pixels, channels x filter]``, which it reads from the image as it goes (an implicit product), by the
filters. It wants the channels of a pixel beside each other, in pieces of 16 bytes. Images with channels first are copied there
and back for each pass, but for filters of one pixel, which are products of each image as it lies. Filters of one channel each
(depthwise) have kernels of their own, torch's for channels first and cuDNN's for channels last, that take one element of what
they make after the other, tap by tap. What has no other source was measured on an H100 [H] (ADR 0236, ADR 0247, ADR 0253).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

import numpy as np

from kernbench.cost.convolution_shapes import Convolution
from kernbench.cost.estimate import Estimate
from kernbench.cost.gemm import gemm_time
from kernbench.cost.memory_bound import OPS, traffic_time
from kernbench.cost.uncertainty import band_interval
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES

_PIECE = 16  # bytes of channels that are loaded at once
_PADDED = 0.08  # of the matrix peak, with channels that are no multiple of that: filled up, by kernels of older generations [H]
_PADDED_IN_FP16 = 0.3  # by cuDNN's own kernel for the first layer of a network [H]
_SPREAD = 0.03  # of the matrix peak, of the gradient of filters in TF32 whose taps are more than 8 pixels apart [H]
_WEIGHTS_COPY = 0.3  # of the copy bandwidth, to channels last: filters are many, and narrow [H]
_TO_LAST = {4: 0.97, 2: 0.70}
"""Shares of the copy bandwidth of a copy from channels first to channels last, or back, by bytes of an element [H]."""
_UNROLLED = (1, 3, 5)
"""Sides of the depthwise filters that torch has kernels of a fixed size for (DepthwiseConv2d.cu)."""
_DEPTHWISE_FIRST = {
    "result": ((5.0e-12, 0.48e-12), (7.9e-12, 0.56e-12)), "image": ((14.7e-12, 0.17e-12), (5.8e-12, 0.80e-12)),
    "weight": ((0.0, 1.55e-12), (0.0, 1.55e-12)),
}  # fmt: skip
"""Seconds of an element, and of a tap of it, of torch's depthwise kernels on an H100, by pass; of those sides and of others.

Elements are those of the result, of the image for its gradient; formats do not matter: sums are of 32 bits [H]."""
_DEPTHWISE_LAST = {"result": (0.8e-12, 0.15e-12), "image": (0.5e-12, 0.15e-12), "weight": (1.8e-12, 0.075e-12)}
"""The same of cuDNN's, for each two bytes of an element [H]; gradients of images take as long in 16 bits as in 32."""
_LANES = 132 * 1.83e9  # PEs times clocks of that H100


def convolution_time(
    spec: DeviceSpec, what: Convolution, dtype: str, passes: tuple[str, ...] = ("result",)
) -> Estimate:
    """How long the ``passes`` take: of the ``"result"``, or of the gradient of the ``"image"``, of the ``"weight"``."""
    width = ITEM_BYTES[dtype]
    if what.depthwise:
        return _depthwise(spec, what, width, passes)
    parts = [_pass(spec, what, dtype, each) for each in passes]
    found = parts[0]
    for part in parts[1:]:
        found = _added(found, part.seconds)
    if what.channels_last or spec.target.backend != "cuda":
        return found
    moved = _added(found, len(passes) * _copied(spec, what, width))
    if not what.by_pixel:
        return moved
    batch, each = what.image[0], prod(what.result[2:])
    kernel = gemm_time(
        spec, what.weight[0] // what.groups, each, what.weight[1], dtype=dtype, batch=batch * what.groups
    )
    plain = _times(kernel, len(passes))
    return min(plain, moved, key=lambda estimate: estimate.seconds)


def _copied(spec: DeviceSpec, what: Convolution, width: float) -> float:
    """Seconds of the copies to channels last and back of one pass: of image, result and filters."""
    share = _TO_LAST.get(int(width), 1.0)
    return sum(
        traffic_time(
            spec,
            replace(OPS["copy"], pace=each * OPS["copy"].pace, ceiling=each),
            (prod(shape),),
            2 * prod(shape) * width,
        ).seconds
        for shape, each in ((what.image, share), (what.result, share), (what.weight, _WEIGHTS_COPY))
    )


def _depthwise(spec: DeviceSpec, what: Convolution, width: float, passes: tuple[str, ...]) -> Estimate:
    """Filters of one channel: no slower than the bytes are moved, and so long for each element and each tap."""
    images, results, taps = prod(what.image), prod(what.result), what.taps
    unrolled = len(what.weight) == 4 and all(side in _UNROLLED for side in what.weight[2:])
    moving = (images + results) * width / spec.hbm_copy_bandwidth
    seconds = 0.0
    for each in passes:
        made = images if each == "image" else results
        if what.channels_last:
            wide = 2.0 if each == "image" else width / 2
            element, tap = (wide * part for part in _DEPTHWISE_LAST[each])
        else:
            element, tap = _DEPTHWISE_FIRST[each][not unrolled]
        computing = made * (element + tap * taps) * _LANES / (spec.pes * spec.clock)
        seconds += spec.launch.latency + max(moving, computing)
    low, high = (float(each) for each in band_interval("memory_bound", np.asarray(seconds), np.asarray(seconds)))
    moved = (images + results) * width * len(passes)
    limit = "memory" if moving * len(passes) > 0.5 * seconds else "kernel"
    return Estimate(seconds, low, high, limit, "", moved / seconds, moved / seconds)


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
    if what.spread and wanted == "weight" and dtype == "tf32" and spec.target.backend == "cuda":
        operations = 2.0 * what.groups * prod(dims)
        found = _times(found, max(1.0, operations / (_SPREAD * spec.matrix_rate(dtype)) / found.seconds))
    if unpadded and spec.target.backend == "cuda":
        share = _PADDED_IN_FP16 if dtype == "fp16" and what.channels_last else _PADDED
        filled = 2.0 * what.groups * prod(dims) / (share * spec.matrix_rate(dtype))
        found = _times(found, (spec.launch.latency + filled) / found.seconds)
    return found


def _added(found: Estimate, seconds: float) -> Estimate:
    return _times(found, (found.seconds + seconds) / found.seconds)


def _times(found: Estimate, factor: float) -> Estimate:
    return replace(found, seconds=found.seconds * factor, low=found.low * factor, high=found.high * factor)
