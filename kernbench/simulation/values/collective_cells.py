"""The cells of a collective that are one flat tensor: on thousands of ranks, thousands of parts that are not all looked at.

What a call says of memory (what is noted of a storage, whether it is on a GPU, how many bytes pass) it says of all cells alike,
and asks for the tensors *whose* cells they are (:func:`wholes`). What moves values looks at the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import torch

Tensors = Sequence[torch.Tensor]


class Cells(Sequence[torch.Tensor]):
    """Equal parts of a tensor, in order. They are made when one of them is first looked at.

    Args:
        whole: flat and contiguous.
        size: elements of each part, not 0; that of ``whole`` is a multiple.
        split: makes the parts of a tensor that have so many elements.
    """

    __slots__ = ("_parts", "_split", "size", "whole")

    def __init__(self, whole: torch.Tensor, size: int, split: Callable[[torch.Tensor, int], Tensors]) -> None:
        self.whole = whole
        self.size = size
        self._split = split
        self._parts: Tensors | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of each part."""
        return self.size * self.whole.element_size()

    @property
    def parts(self) -> Tensors:
        """All of them, always the same objects."""
        if self._parts is None:
            self._parts = self._split(self.whole, self.size)
        return self._parts

    def __len__(self) -> int:
        return self.whole.numel() // self.size

    @overload
    def __getitem__(self, at: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, at: slice) -> Tensors: ...
    def __getitem__(self, at: int | slice) -> torch.Tensor | Tensors:
        return self.parts[at]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.parts)


def wholes(tensors: Tensors) -> Tensors:
    """The tensors that have the memory of ``tensors``: of cells, the one that they are parts of."""
    return (tensors.whole,) if type(tensors) is Cells else tensors
