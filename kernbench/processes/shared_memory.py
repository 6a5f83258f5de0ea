"""Memory that a rank shares with the simulation: what collectives and messages read and write.

It is an anonymous shared mapping that a child inherits, or a file without a name that a rank which joins hands over: nothing is
left behind, however the processes end. The rank alone hands out regions of it; the simulation learns where they are. Address
space is reserved, pages come with use.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kernbench.errors import KernbenchError

RESERVED = (1 << 36, 1 << 33, 1 << 30)
"""Bytes of address space per rank: the first that the system lets us reserve."""

_ALIGNMENT = 256
_MAP_NORESERVE = 0x4000
_KEPT = 1 << 26
"""A freed region of more bytes than these gives its pages back to the system; asking for pages again takes time."""

_TENSORS_KEPT = 256
"""Tensors over regions that are kept for calls to come."""


NO_BYTES = -1
"""The offset of a tensor that has no values (a simulation without data)."""


class SharedRegion(NamedTuple):
    """A contiguous tensor in shared memory.

    Attributes:
        offset: bytes; :data:`NO_BYTES`: it is not there, and only has a shape.
        shape: of the tensor.
        dtype: of the tensor.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class SharedMemory:
    """The shared memory of one rank. Made before the fork, or over the file that :func:`unnamed_file` has made.

    Raises OSError if the system has no address space for it.
    """

    def __init__(self, sizes: Sequence[int] = RESERVED, file: int | None = None) -> None:
        self._map = _reserve(sizes) if file is None else mmap.mmap(file, os.fstat(file).st_size)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._reserved = len(self._map)
        self._top = 0
        self._free: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        self._uses: dict[int, int] = {}
        self._tensors: dict[SharedRegion, torch.Tensor] = {}

    def tensor(self, region: SharedRegion) -> torch.Tensor:
        """The tensor in a region, on either side: calls that follow one another use the same regions."""
        found = self._tensors.get(region)
        if found is None:
            if len(self._tensors) >= _TENSORS_KEPT:
                self._tensors.clear()
            found = self._tensors[region] = self._made(region)
        return found

    def _made(self, region: SharedRegion) -> torch.Tensor:
        if region.offset == NO_BYTES:
            return torch.empty(region.shape, dtype=region.dtype, device="meta")
        count = region.dtype.itemsize
        for size in region.shape:
            count *= size
        flat = self._bytes[region.offset : region.offset + count]
        return flat.view(region.dtype).view(region.shape)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, numel: int) -> SharedRegion:
        """In the rank: a region for a tensor. Raises :class:`KernbenchError` if there is no room."""
        nbytes = max(numel * dtype.itemsize, 1)
        size = _ALIGNMENT if nbytes <= _ALIGNMENT else 1 << (nbytes - 1).bit_length()
        if size > 1 << 20:  # large ones in steps of an eighth: a power of two may waste nearly half
            step = size >> 4
            size = -(-nbytes // step) * step
        free = self._free.get(size)
        if free:
            offset = free.pop()
        else:
            offset = self._top
            if offset + size > self._reserved:
                raise KernbenchError(
                    f"a rank's collectives that are under way take more than {self._reserved >> 30} GiB of shared memory: wait "
                    "for some of them before posting more"
                )
            self._top += size
        self._sizes[offset], self._uses[offset] = size, 1
        return SharedRegion(offset, shape, dtype)

    def keep(self, region: SharedRegion) -> SharedRegion:
        """In the rank: another user has a region, too."""
        self._uses[region.offset] += 1
        return region

    def give_back(self, region: SharedRegion) -> None:
        """In the rank: who took or kept the region does not use it any more."""
        self._uses[region.offset] -= 1
        if self._uses[region.offset]:
            return
        size = self._sizes.pop(region.offset)
        self._free.setdefault(size, []).append(region.offset)
        if size > _KEPT and hasattr(mmap, "MADV_REMOVE"):
            self._map.madvise(mmap.MADV_REMOVE, region.offset, size & -mmap.PAGESIZE)


def _reserve(sizes: Sequence[int]) -> mmap.mmap:
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    for size in sizes[:-1]:
        with contextlib.suppress(OSError):
            return mmap.mmap(-1, size, flags=flags)
    return mmap.mmap(-1, sizes[-1], flags=flags)


def unnamed_file(sizes: Sequence[int] = RESERVED) -> int:
    """A descriptor of memory that processes without a common parent can share: a file that no folder has."""
    file = os.memfd_create("kernbench-shared")
    for size in sizes:
        try:
            os.ftruncate(file, size)
            mmap.mmap(file, size).close()
        except OSError:
            if size == sizes[-1]:
                os.close(file)
                raise
        else:
            break
    return file
