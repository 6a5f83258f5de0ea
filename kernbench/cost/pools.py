"""How long pools and changes of an image's size take: kernels that compute one element after the other, not bytes.

A pool has a thread for each element of its result, which finds the pixels that it sees; the gradient of a pool over two
dimensions has one for each pixel, that of one over three puts what comes back into zeros. Adaptive pools have a block for each
channel of each image. Readings of an H100 [H] (kernbench.programs.gpu_times, ADR 0253); layouts differ where filters of sizes
read neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from kernbench.cost.estimate import Estimate
from kernbench.cost.memory_bound import OPS, traffic_time
from kernbench.cost.operands import Operand, Operands, everything
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES

_LANES = 132 * 1.83e9
_PIXEL = (7.5e-12, 1.5e-12)  # of an element of a pool's result, and of each pixel that there is for one
_OVERLAPPING = 1.4  # of the largest of windows that overlap: 3 x 3 at a stride of 2
_BACK = {
    "largest": 10e-12,
    "average": 19e-12,
}  # of a pixel: in which windows it is, and which of them it was the largest of
_PUT = 18.5e-12  # of an element of the gradient of a result, of volumes; of adaptive pools of the largest twice as long
_SPREAD_OUT = (11e-12, 4e-12)  # of a pixel, of the gradient of adaptive averages, channels first and last
_PLANE = 4.0e-9  # of a channel of an image, of adaptive pools
_ATOMIC_16 = 2.0  # adding up in 16 bits, in units of 32

SIZES: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "nearest": ((2.7e-12, 6.0e-12), (2.6e-12, 3.3e-12)),
    "bilinear": ((86e-12, 9.0e-12), (10.5e-12, 10e-12)),
    "bicubic": ((155e-12, 155e-12), (510e-12, 510e-12)),
    "trilinear": ((7.4e-12, 7.4e-12), (18e-12, 18e-12)),
    "grid": ((9e-12, 9e-12), (58e-12, 58e-12)),
}
"""Of an element of the larger image (of a grid, of the result), on an H100's PEs: forward and backward, channels first and
last. An image of 16 bits is added up in them, which takes twice as long; ``nearest`` adds nothing up."""


def pool_time(
    spec: DeviceSpec, kind: str, given: Operands, made: Operands, *, gradient: bool = False, channels_last: bool = False,
    overlaps: bool = False,
) -> Estimate:  # fmt: skip
    """How long an operator on images takes.

    Args:
        kind: ``"largest"``, ``"average"``, ``"adaptive largest"``, ``"adaptive average"``, or one of :data:`SIZES`.
        given, made: its tensors: an image first, or the gradient of a result and then an image.
        gradient: whether it is a gradient.
        overlaps: whether windows of a pool overlap.
    """
    few, many = (made[0], given[0]) if made else (given[0], given[0])
    if gradient:
        few, many = (given[0], made[0]) if made else (given[0], given[0])
    width = many.values * ITEM_BYTES[many.format]
    if kind in SIZES:
        largest = few if kind == "grid" else max(few, many, key=lambda each: prod(each.shape))
        seconds = prod(largest.shape) * SIZES[kind][gradient][channels_last]
        if gradient and width < 4 and kind != "nearest":
            seconds *= _ATOMIC_16
    else:
        seconds = _pooled(kind, few, many, gradient, channels_last)
        if overlaps and kind == "largest" and not gradient:
            seconds *= _OVERLAPPING
    found = traffic_time(spec, OPS["copy"], many.shape, everything(given, made))
    start = traffic_time(spec, OPS["copy"], (), 0.0).seconds
    computing = start + seconds * _LANES / (spec.pes * spec.clock)
    if computing <= found.seconds:
        return found
    factor = computing / found.seconds
    return replace(found, seconds=computing, low=found.low * factor, high=found.high * factor, algorithm="kernel")


def _pooled(kind: str, few: Operand, many: Operand, gradient: bool, channels_last: bool) -> float:
    results, pixels = prod(few.shape), prod(many.shape)
    adaptive = kind.startswith("adaptive")
    if gradient:
        if kind == "adaptive average":
            return pixels * _SPREAD_OUT[channels_last]
        if adaptive or len(many.shape) == 5:
            return results * _PUT * (2 if adaptive else 1)
        return pixels * _BACK["average" if kind == "average" else "largest"]
    element, seen = _PIXEL
    seconds = results * (element + seen * pixels / max(results, 1))
    return max(seconds, prod(many.shape[:2]) * _PLANE) if adaptive else seconds
