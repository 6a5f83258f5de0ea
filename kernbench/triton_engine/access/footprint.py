"""What an affine access touches, relative to its address: worked out once per instruction and layout, then only placed.

A loop executes the same load many times; only the address moves. Sizes, strides, the range of bytes and the number of
elements are kept in a :class:`Footprint`; a :class:`Piece` is a footprint at an address of one allocation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from torch import Tensor
from torch import dtype as Dtype

from kernbench.triton_engine.memory import HostAllocation

Cell = tuple[tuple[int, int], ...]


@final
@dataclass(slots=True, eq=False)
class Footprint:
    """A rectangle of lanes and tile elements whose address is affine, relative to the address of lane and element zero.

    ``sizes``/``strides`` are in elements over lane then tile dimensions; ``at`` is where the rectangle lies in the tile value
    (None: the address does not vary along this dimension, which has size 1). ``least``/``most``: byte offsets of the first
    element and past the last. ``shift``: bytes to the element that is first in index order, ``flip`` elements from there to
    the one first in memory. ``steps`` are the strides without their signs; ``backwards`` the dimensions that had one.
    """

    sizes: list[int]
    strides: list[int]
    at: tuple[slice | None, ...]
    shift: int
    least: int
    most: int
    active: int
    #: No two elements share an address.
    distinct: bool = field(init=False)
    flip: int = field(init=False)
    backwards: list[int] = field(init=False)
    steps: list[int] = field(init=False)

    def __post_init__(self) -> None:
        sizes, strides = self.sizes, self.strides
        self.distinct = _distinct(sizes, strides)
        self.steps = [abs(s) for s in strides]  # torch has no negative strides
        self.backwards = [d for d, s in enumerate(strides) if s < 0]
        self.flip = sum(strides[d] * (sizes[d] - 1) for d in self.backwards)


def _distinct(sizes: list[int], strides: list[int]) -> bool:
    """Whether no two elements share an address (sufficient test: strides nest)."""
    reach = 0
    for s, n in sorted((abs(s), n) for s, n in zip(strides, sizes, strict=True) if n > 1):
        if s <= reach:
            return False
        reach += s * (n - 1)
    return True


def footprint(
    strides: tuple[int, ...],
    sizes: tuple[int, ...],
    bounds: tuple[tuple[int, ...], tuple[int, ...]],
    cell: Cell,
    item: int,
) -> Footprint | None:
    """The footprint of lanes ``cell`` and tile elements between ``bounds``; None if that is empty.

    ``strides`` in elements of ``item`` bytes; ``sizes`` 1 marks dimensions along which nothing changes.
    """
    at: list[slice | None] = []
    out_sizes: list[int] = []
    steps: list[int] = []
    shift = least = most = 0
    active = 1
    nl = len(cell)
    for k, (start, stop) in enumerate((*cell, *zip(*bounds, strict=True))):
        n = stop - start
        if n <= 0:
            return None
        active *= n
        if sizes[k] == 1:
            at.append(None)
            out_sizes.append(1)
            steps.append(0)
            continue
        at.append(slice(start, stop))
        out_sizes.append(n)
        s = strides[k]
        steps.append(s)
        if k >= nl:  # a cell's lanes count from its first, a mask's elements from the tile's
            shift += start * s * item
        span = s * (n - 1) * item
        if span > 0:
            most += span
        else:
            least += span
    return Footprint(out_sizes, steps, tuple(at), shift, least + shift, most + shift + item, active)


@final
@dataclass(slots=True, eq=False)
class Piece:
    """A footprint in an allocation. ``offset``: its first element; ``lanes``: the lanes it belongs to."""

    allocation: HostAllocation
    offset: int
    foot: Footprint
    at: tuple[slice | None, ...]
    lanes: Cell

    @property
    def sizes(self) -> list[int]:
        return self.foot.sizes

    @property
    def strides(self) -> list[int]:
        return self.foot.strides

    def view(self, dtype: Dtype) -> tuple[Tensor, list[int]]:
        """The memory of the piece, and the dimensions that run backwards."""
        foot = self.foot
        view = self.allocation.flat(dtype).as_strided(foot.sizes, foot.steps, self.offset + foot.flip)
        return view, foot.backwards

    def read(self, dtype: Dtype) -> Tensor:
        """What it holds: a view of memory where no dimension runs backwards."""
        view, backwards = self.view(dtype)
        return view.flip(backwards) if backwards else view

    @property
    def where(self) -> tuple[slice, ...]:
        return tuple([slice(None) if a is None else a for a in self.at])
