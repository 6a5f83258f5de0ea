"""Regions: which bytes of a storage an access touches.

Most accesses touch all bytes between two addresses. Others are kept as strides, and compared as such: the left and the right
half of a matrix lie between each other's addresses and share no byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Strides = tuple[tuple[int, int], ...]
"""(count, bytes from one to the next), the outermost first."""

_MOST_RUNS = 1 << 20
"""Runs of consecutive bytes up to which two strided regions are compared; of more, they are taken to share none."""


class ByteRegion(NamedTuple):
    """Bytes ``lo`` up to ``hi`` of a storage; with ``strides``, runs of ``run`` bytes that lie so between them."""

    lo: int
    hi: int
    strides: Strides = ()
    run: int = 0

    @property
    def dense(self) -> bool:
        """Whether it is every byte in between."""
        return not self.strides


@lru_cache(4096)
def _layout(sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, Strides, int]:
    """Bytes from first to last, the strides that leave gaps, and the bytes of a run."""
    dims = sorted(
        ((stride * itemsize, size) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride)
    )
    run = itemsize
    outer: list[tuple[int, int]] = []
    for stride, size in dims:
        if not outer and stride <= run:  # neighbours touch, or overlap
            run = stride * (size - 1) + run
        elif outer and stride == outer[-1][0] * outer[-1][1]:
            outer[-1] = (outer[-1][0], outer[-1][1] * size)
        else:
            outer.append((stride, size))
    extent = run + sum(stride * (size - 1) for stride, size in outer)
    return extent, tuple((size, stride) for stride, size in reversed(outer)), run


def region_of(sizes: Sequence[int], strides: Sequence[int], offset: int, itemsize: int) -> ByteRegion | None:
    """What a tensor touches of its storage; None for one without elements. Strides and offset are in elements."""
    if 0 in sizes:
        return None
    extent, outer, run = _layout(tuple(sizes), tuple(strides), itemsize)
    lo = offset * itemsize
    return ByteRegion(lo, lo + extent, outer, run) if outer else ByteRegion(lo, lo + extent)


def share_bytes(one: ByteRegion, other: ByteRegion) -> bool:
    """Whether two regions of one storage have a byte in common."""
    if one.hi <= other.lo or other.hi <= one.lo:
        return False
    if one.dense and other.dense:
        return True
    base = min(one.lo, other.lo)
    return _share(_moved(one, base), _moved(other, base))


def covers(one: ByteRegion, other: ByteRegion) -> bool:
    """Whether ``one`` has every byte of ``other``, as far as that is seen at a glance."""
    return one == other or (one.dense and one.lo <= other.lo and other.hi <= one.hi)


def _moved(region: ByteRegion, base: int) -> ByteRegion:
    return region._replace(lo=region.lo - base, hi=region.hi - base)


@lru_cache(4096)
def _share(one: ByteRegion, other: ByteRegion) -> bool:
    if max(_runs(one), _runs(other)) > _MOST_RUNS:
        return False
    first, second = np.sort(_starts(one)), np.sort(_starts(other))
    length, other_length = one.run or one.hi - one.lo, other.run or other.hi - other.lo
    at = np.searchsorted(
        first, second, side="right"
    )  # the last run of `first` that starts at or before one of `second`
    before = first[np.maximum(at - 1, 0)]
    behind = first[np.minimum(at, len(first) - 1)]
    meets = ((at > 0) & (before + length > second)) | ((at < len(first)) & (behind < second + other_length))
    return bool(meets.any())


def _runs(region: ByteRegion) -> int:
    count = 1
    for size, _ in region.strides:
        count *= size
    return count


def _starts(region: ByteRegion) -> NDArray[np.int64]:
    starts = np.array([region.lo], dtype=np.int64)
    for size, stride in region.strides:
        starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return starts
