"""Which memory a tensor is in, and what is still to happen to it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from kernbench.runtime_api.rank_state import RankState
from kernbench.runtime_api.tensor import Tensor, plain, storage_of
from kernbench.sim_engine.memory_store import Allocation, MemoryStore
from kernbench.sim_engine.op_log import Operand
from kernbench.sim_engine.operation import Operation


def _borrowed_bytes(address: int, nbytes: int) -> NDArray[np.uint8]:
    """``[nbytes]`` of this process's memory at ``address``, without keeping its owner alive."""
    if not nbytes:
        return np.empty(0, dtype=np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class StorageState:
    """One storage: its allocation, and the last operation enqueued on it."""

    __slots__ = ("_whole", "allocation", "last")

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self.last: Operation | None = None
        self._whole: tuple[Operand] | None = None

    def operand(self, tensor: torch.Tensor, access: str = "rw") -> Operand:
        """The part of the allocation that ``tensor`` covers."""
        allocation = self.allocation
        itemsize = tensor.element_size()
        address = allocation.address + int(tensor.storage_offset()) * itemsize
        return Operand(allocation.space, allocation.sip, address, tensor.numel() * itemsize, access, allocation.name)

    def operands_in_place(self, tensor: torch.Tensor) -> tuple[Operand]:
        """What an operation that reads and writes ``tensor`` alone touches: made once if that is the whole storage."""
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes != self.allocation.nbytes or not nbytes:
            return (self.operand(tensor),)
        if self._whole is None:
            self._whole = (self.operand(tensor),)
        return self._whole


class StorageTable:
    """The storages that the simulation knows. Memory is given back when a storage dies.

    Args:
        memory: where they are.
        noted: told, as ``noted(sip, bytes)``, of what programs allocate and give back.
    """

    def __init__(self, memory: MemoryStore, noted: Callable[[int, int], None]) -> None:
        self._memory = memory
        self._noted = weakref.WeakMethod(noted)
        self._programs: set[int] = set()
        self._states: dict[int, StorageState] = {}  # by identity: a storage's object lives as long as the storage

    def known(self, tensor: torch.Tensor) -> StorageState | None:
        """State of a tensor's storage, None if no operation has met it."""
        return self._states.get(id(storage_of(tensor)))

    def allocate(self, tensor: torch.Tensor, owner: RankState, name: str = "", *, noted: bool = False) -> StorageState:
        """Give ``tensor``'s storage a place in the HBM of its owner's SIP; ``noted``: its program asked for that."""
        storage = storage_of(tensor)
        nbytes = storage.nbytes()
        backing = None if tensor.is_meta else _borrowed_bytes(storage.data_ptr(), nbytes)
        allocation = self._memory.allocate("hbm", owner.sip, nbytes, name=name, rank=owner.rank, backing=backing)
        state = self._states[id(storage)] = StorageState(allocation)
        if noted:
            self._programs.add(id(storage))
            self._note(allocation.sip, nbytes)
        weakref.finalize(storage, _release, weakref.ref(self), id(storage), allocation).atexit = False
        return state

    def adopt(self, tensor: torch.Tensor, owner: RankState) -> StorageState:
        """State of a tensor's storage; a tensor that comes from elsewhere gets a place now."""
        state = self._states.get(id(storage_of(tensor)))
        if state is None:
            state = self.allocate(plain(tensor), owner, noted=isinstance(tensor, Tensor))
        return state

    def _note(self, sip: int, change: int) -> None:
        noted = self._noted()
        if noted is not None:
            noted(sip, change)

    def release(self, key: int, allocation: Allocation) -> None:
        """A storage has died."""
        state = self._states.get(key)
        if state is not None and state.allocation is allocation:
            del self._states[key]
            if key in self._programs:
                self._programs.remove(key)
                self._note(allocation.sip, -allocation.nbytes)
        self._memory.free(allocation)


def _release(table: weakref.ref[StorageTable], key: int, allocation: Allocation) -> None:
    known = table()
    if known is not None:  # else its simulation is gone, and its memory with it
        known.release(key, allocation)
