"""The sizes of a convolution, how its images lie, and what it copies for that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from kernbench.cost.operands import Shape


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution.

    Attributes:
        image: ``[images, channels, ...]``.
        weight: ``[results, channels of a group, ...]``.
        result: ``[images, results, ...]``.
        channels_last: whether the channels of a pixel are beside each other in memory.
        spread: whether filters are dilated by more than 8.
    """

    image: Shape
    weight: Shape
    result: Shape
    channels_last: bool
    spread: bool = False

    @classmethod
    def of(
        cls, image: Shape, weight: Shape, result: Shape, channels_last: bool, spread: bool = False
    ) -> Convolution | None:
        """That of these shapes, None if they are of none. A transposed one is the gradient of another's image."""
        if min(len(image), len(weight), len(result)) < 3 or 0 in (*image, *weight, *result):
            return None
        if weight[0] == image[1] and weight[0] != result[1]:
            image, result = result, image
        return cls(image, weight, result, channels_last, spread)

    @property
    def groups(self) -> int:
        """Groups of channels, each with filters of its own."""
        return max(self.image[1] // self.weight[1], 1)

    @property
    def depthwise(self) -> bool:
        """Whether each filter sees one channel."""
        return self.weight[1] == 1 < self.groups

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


def layout_copies(what: Convolution, width: float) -> tuple[float, ...]:
    """Bytes of the copies that a pass keeps while it runs: image, result and filters with channels last; none where the pass
    reads them as they lie."""
    if what.channels_last or what.by_pixel or what.depthwise:
        return ()
    return tuple(prod(shape) * width for shape in (what.image, what.result, what.weight))


def is_channels_last(args: Iterable[Any], *, gradient: bool = False) -> bool:
    """Whether an operand that is an image has the channels of a pixel beside each other: torch then lays out all so.

    ``gradient``: the first of several is what came back, and is copied if it lies otherwise.
    """
    tensors = [each for each in args if hasattr(each, "stride") and each.dim() > 2]
    if gradient and len(tensors) > 1:
        del tensors[0]
    return any(each.stride(1) == 1 and each.size(1) > 1 and each.stride(-1) != 1 for each in tensors)
