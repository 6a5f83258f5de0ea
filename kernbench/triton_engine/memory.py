"""Memory as kernels see it: addresses, the allocations they fall into, and typed views of those.

Pointers are real host addresses. Every access is resolved to one allocation and checked against its bounds before a
single byte moves, so that a wrong kernel is an error with a name, never a crash.
"""

from __future__ import annotations

import bisect
import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch

from .signals import Words


class HostAllocation:
    """A live block of host memory: ``[base, base + nbytes)``, and the tensor that names it in messages."""

    __slots__ = ("_flat", "base", "name", "nbytes", "rank", "shape", "storage", "words")

    def __init__(self, tensor: torch.Tensor, name: str = "", rank: int | None = None) -> None:
        self.storage = tensor.untyped_storage()
        self.base = self.storage.data_ptr()
        self.nbytes = self.storage.nbytes()
        self.name = name
        self.rank = rank
        self.shape = tuple(tensor.shape)
        #: Who wrote its words last, where launches of several ranks meet in it.
        self.words: Words | None = None
        self._flat: dict[torch.dtype, torch.Tensor] = {}

    def flat(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole block as a one-dimensional tensor of ``dtype``, sharing memory."""
        view = self._flat.get(dtype)
        if view is None:
            view = torch.empty(0, dtype=dtype)
            view.set_(self.storage, 0, (self.nbytes // dtype.itemsize,), (1,))
            self._flat[dtype] = view
        return view

    def describe(self) -> str:
        """Name, owner, shape and size, for messages."""
        owner = "" if self.rank is None else f" of rank {self.rank}"
        return f"{self.name or 'tensor'}{owner} (shape {self.shape}, {self.nbytes} bytes)"


_by_tensor: dict[tuple[int, str, int | None], tuple[weakref.ref[torch.Tensor], HostAllocation]] = {}


def allocation_of(tensor: torch.Tensor, name: str = "", rank: int | None = None) -> HostAllocation:
    """The allocation under a tensor, kept as long as the tensor object lives and keeps its storage."""
    key = (id(tensor), name, rank)
    found = _by_tensor.get(key)
    if found is not None and found[0]() is tensor:
        allocation = found[1]
        storage = tensor.untyped_storage()
        if allocation.base == storage.data_ptr() and allocation.nbytes == storage.nbytes():
            return allocation
    allocation = HostAllocation(tensor, name, rank)
    _by_tensor[key] = (weakref.ref(tensor, lambda _: _by_tensor.pop(key, None)), allocation)
    return allocation


class Checks(Protocol):
    """Receives what programs touch: all that an ``Access`` consists of, before it is done."""

    def read_piece(self, access: Any, piece: Any) -> None:
        """Elements of a piece are loaded."""

    def write_piece(self, access: Any, piece: Any) -> None:
        """Elements of a piece are stored."""

    def read_index(
        self, access: Any, allocation: HostAllocation, index: torch.Tensor, active: torch.Tensor | None
    ) -> None:
        """Elements ``index`` are loaded."""

    def write_index(
        self, access: Any, allocation: HostAllocation, index: torch.Tensor, active: torch.Tensor | None
    ) -> None:
        """Elements ``index`` are stored."""

    def reading(self, read: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        """Does the load that it has received: what ``read`` gives."""

    def words(
        self,
        info: Any,
        allocation: HostAllocation,
        keys: np.ndarray,
        offsets: np.ndarray,
        nbytes: int,
        modifiers: Sequence[str],
        *,
        reads: bool,
        writes: bool,
        failed: Any = None,
        threads: np.ndarray | None = None,
    ) -> None:
        """Programs ``keys`` read, write or update words at byte ``offsets``, in this order; of updates that ``failed`` to
        compare, only the read. ``threads``: which of each program's does it; None: the first."""

    def fence(self, keys: np.ndarray, threads: np.ndarray | None = None) -> None:
        """Programs ``keys`` have come to a fence; ``threads``: which of each program's; None: all."""

    def meet(self, batch: Any) -> None:
        """The threads of each program of a batch have met since the access before this one."""

    def history(self, allocation: HostAllocation, offset: int) -> str:
        """The last writer of the word at a byte offset, for people; empty: not known."""

    def ended(self) -> None:
        """All programs have run."""


class AllocationMap(Protocol):
    """Finds the live allocation that an address falls into. A runtime with its own memory store supplies its own."""

    def find(self, address: int) -> HostAllocation | None:
        """The allocation whose bytes include ``address``, or None."""

    def words(self, address: int) -> Words | None:
        """Who wrote what lies at ``address`` last, if ranks meet there."""

    def multicast_range(self, address: int) -> tuple[int, tuple[int, ...], int] | None:
        """Of a multicast address: where its range starts, the buffers it stands for, and their bytes."""

    def checks(self, execution: Any) -> Checks | None:
        """The listener for every access of an execution; None: no listener."""


class RegisteredAllocations:
    """Allocations by address: the tensors of launches, and whatever :meth:`register` was given.

    Tensors are held weakly, so that the registry does not keep a program's memory alive; an entry whose tensor is gone
    is dropped when it is met.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], int, str, int | None]] = {}
        self._written: dict[int, torch.Tensor] = {}

    def register(self, tensor: torch.Tensor, name: str = "", rank: int | None = None, *, fresh: bool = False) -> None:
        """Make ``tensor``'s storage known, so that pointers to it that come from memory (tables of peers' buffers)
        resolve. ``fresh``: nothing has been written to it yet (see :mod:`.checks`)."""
        storage = tensor.untyped_storage()
        base = storage.data_ptr()
        if base == 0:
            return
        if base not in self._entries:
            bisect.insort(self._bases, base)
        self._entries[base] = (weakref.ref(tensor), storage.nbytes(), name, rank)
        self._written.pop(base, None)
        if fresh:
            self._written[base] = torch.zeros(storage.nbytes(), dtype=torch.bool)

    def written(self, base: int) -> torch.Tensor | None:
        """Which bytes of a fresh allocation have been written by kernels; None if it was not registered as fresh."""
        return self._written.get(base)

    def knows(self, tensor: torch.Tensor) -> bool:
        """True if the tensor's storage is registered, and the tensor it was registered with still lives."""
        entry = self._entries.get(tensor.untyped_storage().data_ptr())
        return entry is not None and entry[0]() is not None and entry[1] == tensor.untyped_storage().nbytes()

    def unregister(self, tensor: torch.Tensor) -> None:
        """Forget the allocation under a tensor."""
        self._drop(tensor.untyped_storage().data_ptr())

    def _drop(self, base: int) -> None:
        if self._entries.pop(base, None) is not None:
            self._bases.remove(base)
        self._written.pop(base, None)

    def find(self, address: int) -> HostAllocation | None:
        """The live allocation that an address is in."""
        at = bisect.bisect_right(self._bases, address) - 1
        while at >= 0:
            base = self._bases[at]
            ref, nbytes, name, rank = self._entries[base]
            tensor = ref()
            if tensor is None:
                self._drop(base)
                at = bisect.bisect_right(self._bases, address) - 1
                continue
            if address < base + nbytes:
                return HostAllocation(tensor, name, rank)
            return None
        return None

    def words(self, address: int) -> Words | None:
        """None: the ends of these launches are not watched."""
        return None

    def multicast_range(self, address: int) -> None:
        """None: there is no switch."""

    def checks(self, execution: object) -> None:
        """None: no listener."""

    def clear(self) -> None:
        """Forget all."""
        self._bases.clear()
        self._written.clear()
        self._entries.clear()


#: Allocations known beyond the arguments of a launch.
registry = RegisteredAllocations()


@functools.cache
def _least_address() -> int:
    """Where the memory of this process begins; 0 where the system does not say."""
    try:
        with open("/proc/self/maps") as maps:
            return int(maps.readline().partition("-")[0], 16)
    except (OSError, ValueError):
        return 0


def find_live(address: int) -> HostAllocation | None:
    """The storage of any live tensor of this process that includes ``address``.

    The last resort for pointers that a plain script put into a table itself. Walking all objects takes tens of
    milliseconds: young ones are searched first, and every tensor met is registered. Objects that the program has taken from
    the garbage collector (``gc.freeze``) are searched last; what lives then is frozen, too. Small numbers, which tables of
    indices have, are no addresses.
    """
    if address < _least_address():
        return None
    for generation in range(3):
        found = _find_in_generation(address, generation)
        if found is not None:
            return found
    if not gc.get_freeze_count():
        return None
    gc.unfreeze()
    found = _find_in_generation(address, 2)
    gc.freeze()
    return found


def find_all(addresses: Sequence[int], memory: AllocationMap) -> list[HostAllocation]:
    """The allocations that addresses are in, each once; those that are in none are left out."""
    found: dict[int, HostAllocation] = {}
    looked = False
    for address in addresses:
        there = memory.find(address) or registry.find(address)
        if there is None and address and not looked:
            there, looked = find_live(address), True  # which has met all tensors that there are
        if there is not None:
            found.setdefault(there.base, there)
    return list(found.values())


def _find_in_generation(address: int, generation: int) -> HostAllocation | None:
    kinds = (torch.Tensor, torch.nn.Parameter)
    for obj in [o for o in gc.get_objects(generation) if type(o) in kinds]:
        if obj.layout is not torch.strided or obj.is_meta:
            continue  # it has no memory
        with suppress(NotImplementedError):  # nor has what a transform of torch.func has wrapped
            if not registry.knows(obj):
                registry.register(obj)
    return registry.find(address)


class MulticastRanges:
    """Addresses that stand for the same place in several buffers: what ``multimem`` instructions take.

    They lie where no allocation can be, so that any other access to them is out of bounds.
    """

    FIRST = 1 << 62
    _SPACING = 1 << 40

    def __init__(self) -> None:
        self._number: dict[tuple[int, ...], int] = {}
        self._ranges: list[tuple[tuple[int, ...], int]] = []

    def address_of(self, bases: Sequence[int], nbytes: int) -> int:
        """The first address of the range for buffers at ``bases``; the same one every time."""
        key = tuple(bases)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self._ranges)
            self._ranges.append((key, nbytes))
        return self.FIRST + number * self._SPACING

    def bases_of(self, address: int) -> tuple[int, tuple[int, ...], int] | None:
        """Start of the range that ``address`` is in, the buffers it stands for, and their bytes."""
        number, offset = divmod(address - self.FIRST, self._SPACING)
        if address < self.FIRST or number >= len(self._ranges) or offset >= self._ranges[number][1]:
            return None
        return address - offset, *self._ranges[number]


class WriteEpoch:
    """Counts effective writes to memory. A parked kernel resumes when the count has moved."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def bump(self) -> None:
        """Memory has been written."""
        self.count += 1


#: Bumped by kernels' stores and atomics; any other writer of memory that kernels may wait for calls ``bump`` too.
write_epoch = WriteEpoch()
