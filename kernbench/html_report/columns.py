"""Columns of whole numbers, as small as a page can hold them: planes of bytes, deflated, in base64.

A column is cut into planes: the lowest bytes of all its numbers, then the next ones, as many as its largest number has. Numbers
of one column are alike, so most planes repeat themselves, and deflate makes little of them. A browser undoes both quickly:
it inflates by itself (``DecompressionStream``), and puts planes together by addition.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.input_files import MOST_OF_A_TRACE, parse_json


class Columns:
    """Columns by name, one behind the other.

    Args:
        index, data: what is there already.

    Attributes:
        index: of each column, where it begins (bytes), how many planes it has, and how many numbers.
    """

    def __init__(self, index: dict[str, tuple[int, int, int]] | None = None, data: bytes = b"") -> None:
        self.index: dict[str, tuple[int, int, int]] = index or {}
        self._parts = [data]
        self._size = len(data)

    def add(self, name: str, values: NDArray[np.int64] | Iterable[int]) -> None:
        """Add a column. Raises ValueError if a number is negative."""
        array = values if isinstance(values, np.ndarray) else np.fromiter(values, np.int64)
        if array.size and int(array.min()) < 0:
            raise ValueError(f"column {name!r}: {int(array.min())} is negative")
        width = max((int(array.max()).bit_length() + 7) // 8, 1) if array.size else 1
        planes = np.ascontiguousarray(array.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T)
        self.index[name] = self._size, width, array.size
        self._parts.append(planes.tobytes())
        self._size += planes.nbytes

    def column(self, name: str) -> NDArray[np.int64]:
        """A column's numbers."""
        offset, width, count = self.index[name]
        data = np.frombuffer(b"".join(self._parts), np.uint8)[offset : offset + width * count].reshape(width, count)
        return sum((plane.astype(np.int64) << 8 * place for place, plane in enumerate(data)), np.zeros(count, np.int64))

    def packed(self, header: dict[str, Any]) -> str:
        """``header`` and the columns as one text of base64: four bytes say how long the header's JSON is."""
        text = json.dumps({**header, "columns": self.index}, separators=(",", ":"), default=str).encode()
        whole = b"".join((len(text).to_bytes(4, "little"), text, *self._parts))
        return base64.b64encode(zlib.compress(whole, 6)).decode("ascii")


def unpacked(text: str) -> tuple[dict[str, Any], Columns]:
    """The header and the columns of what :meth:`Columns.packed` gave. Raises ValueError if it is damaged."""
    try:
        whole = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_OF_A_TRACE)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    end = 4 + int.from_bytes(whole[:4], "little")
    header = parse_json(whole[4:end], "its header")
    try:
        index = {
            name: (int(offset), int(width), int(count)) for name, (offset, width, count) in header["columns"].items()
        }
    except (AttributeError, KeyError, TypeError):
        raise ValueError("its header names no columns") from None
    if any(min(place) < 0 or place[0] + place[1] * place[2] > len(whole) - end for place in index.values()):
        raise ValueError("it ends before its columns do")
    return header, Columns(index, whole[end:])


def folded(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Differences from number to number, without signs: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    steps = np.diff(values, prepend=0)
    return np.where(steps < 0, -2 * steps - 1, 2 * steps)


def unfolded(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """What :func:`folded` was given."""
    steps = np.where(values & 1, -(values + 1) // 2, values // 2)
    return np.cumsum(steps)
