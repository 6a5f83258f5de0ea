"""Which memory a tensor's storage is in, and what is still to happen to it.

A tensor on a simulated GPU is a CPU tensor (or, where only time is modelled, a meta tensor) whose storage carries a
:class:`Block`. Tensors of the host get a :class:`Stored` when ranks communicate with them, or kernels take
them. What it takes on the SIP is given back when the storage dies, because the note dies with it.

Relies on: a storage's Python object living as long as the storage itself, with attributes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernbench.sim_engine.memory_store import Allocation, MemoryStore
from kernbench.sim_engine.op_log import MemoryRange
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.hosts import Host
from kernbench.simulation.tensors import plain, storage_of

SMALL_BYTES = 8192
"""Where no data is computed, storages on SIPs of up to this many bytes have values nevertheless: they steer the program."""

NOTE = "_kernbench"
"""The attribute of a storage (of a tensor without one) that is its :class:`Stored`."""


class DeviceMemory:
    """Bytes that programs have allocated on one SIP.

    Args:
        table: of the simulation.
        sip: whose memory it is.
        index: of the SIP, as torch counts devices.
        capacity: bytes.
    """

    def __init__(self, table: StorageTable, sip: int, index: int, capacity: int) -> None:
        self.table = table
        self.sip = sip
        self.index = index
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self.fraction = 1.0
        self.limited = False

    def hold(self, nbytes: int, *, shared: bool = False) -> Block:
        """A block of ``nbytes``, which are counted until it is gone.

        Raises ``torch.OutOfMemoryError`` if the SIP is full and the program asked for limits.
        """
        used = self.used + nbytes
        if self.limited and used > self.capacity * self.fraction:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {nbytes / 2**20:.2f} MiB. GPU {self.index} has a total capacity "
                f"of {self.capacity / 2**30:.2f} GiB of which {(self.capacity - self.used) / 2**30:.2f} GiB is free "
                f"(simulated; {self.used / 2**30:.2f} GiB is allocated by PyTorch)."
            )
        self.used = used
        if used > self.peak:
            self.peak = used
        if self.table.noted is not None:
            self.table.noted(self.sip, nbytes)
        return Block(self, nbytes, shared)

    def release(self, nbytes: int) -> None:
        """Count ``nbytes`` less."""
        self.used -= nbytes
        if self.table.noted is not None:
            self.table.noted(self.sip, -nbytes)


class Stored:
    """What a simulation knows about one storage of the host.

    Attributes:
        table: of the simulation.
        allocation: its place among the addresses of a SIP, None until somebody needs one.
        last: the last launch or collective on it.
        hollow: whether its bytes mean nothing: nobody computes or touches them (a simulation without data).
        stand_in: what each element is taken to be, or is on average, where that is assumed; None: its values are known, or,
            of a hollow one, nothing better is known than the default of its dtype.
    """

    __slots__ = ("_whole", "allocation", "hollow", "last", "stand_in", "table")

    def __init__(self, table: StorageTable) -> None:
        self.table = table
        self.hollow = False
        self.stand_in: float | None = None
        self.allocation: Allocation | None = None
        self.last: Operation | None = None
        self._whole: tuple[MemoryRange] | None = None

    def __del__(self) -> None:
        if self.allocation is not None:
            self.table.memory_store.free(self.allocation)

    @property
    def unknown(self) -> bool:
        """Whether its values were not computed from known ones."""
        return self.hollow or self.stand_in is not None

    def operand(self, tensor: torch.Tensor, access: str = "rw") -> MemoryRange:
        """The part of the allocation that ``tensor`` covers."""
        allocation = self.allocation
        assert allocation is not None
        itemsize = tensor.element_size()
        address = allocation.address + int(tensor.storage_offset()) * itemsize
        return MemoryRange(
            allocation.space, allocation.sip, address, tensor.numel() * itemsize, access, allocation.name
        )

    def operands_in_place(self, tensor: torch.Tensor) -> tuple[MemoryRange]:
        """What an operation that reads and writes ``tensor`` alone touches: made once if that is the whole storage."""
        assert self.allocation is not None
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes != self.allocation.nbytes or not nbytes:
            return (self.operand(tensor),)
        if self._whole is None:
            self._whole = (self.operand(tensor),)
        return self._whole


class Block(Stored):
    """What a simulation knows about one storage on a SIP; made by :meth:`DeviceMemory.hold`.

    Attributes:
        memory: where it is.
        nbytes: that it takes there.
        shared: whether other ranks address it too, each as memory of its own device (symmetric memory).
    """

    __slots__ = ("memory", "nbytes", "shared")

    def __init__(self, memory: DeviceMemory, nbytes: int, shared: bool) -> None:
        self.table = memory.table  # and what a Stored has: each operation's result gets one
        self.hollow = nbytes > self.table.most_bytes
        self.stand_in = None
        self.allocation = None
        self.last = None
        self._whole = None
        self.memory = memory
        self.nbytes = nbytes
        self.shared = shared

    def __del__(self) -> None:
        if self.allocation is not None:
            self.table.memory_store.free(self.allocation)
        self.memory.release(self.nbytes)


class StorageTable:
    """The storages of one simulation.

    Args:
        memory_store: addresses, by SIP.
        sips: of the simulation, in torch's order.
        capacity: of a SIP's memory, bytes.
        noted: told, as ``noted(sip, bytes)``, of what programs allocate and give back, until :meth:`close`.
        has_data: whether values are computed; else storages of more than :data:`SMALL_BYTES` on SIPs are hollow.
    """

    def __init__(
        self,
        memory_store: MemoryStore,
        sips: Sequence[int],
        capacity: int,
        noted: Callable[[int, int], None],
        *,
        has_data: bool = True,
    ) -> None:
        self.memory_store = memory_store
        self.has_data = has_data
        self.most_bytes: float = math.inf if has_data else SMALL_BYTES
        self.noted: Callable[[int, int], None] | None = noted
        self._capacity = capacity
        self._sips = sips
        self._memories: dict[int, DeviceMemory] = {}

    def close(self) -> None:
        """Nobody is told any more, and nothing is held in a circle: what tensors are left keep alive what they need."""
        self.noted = None
        self._memories.clear()

    def memory(self, sip: int) -> DeviceMemory:
        """Memory of a SIP."""
        found = self._memories.get(sip)
        if found is None:
            found = self._memories[sip] = DeviceMemory(self, sip, self._sips.index(sip), self._capacity)
        return found

    def of(self, tensor: torch.Tensor) -> Stored | None:
        """What is known about a tensor's storage, None if nothing."""
        stored: Stored | None = getattr(storage_of(tensor), NOTE, None)
        return stored if stored is not None and stored.table is self else None

    def adopt(self, tensor: torch.Tensor, owner: Host, name: str = "") -> Stored:
        """What is known about a tensor's storage, which has an address now: on its SIP, or on its owner's."""
        stored = self.note(tensor)
        if stored.allocation is None:
            storage = storage_of(tensor)
            nbytes = storage.nbytes()
            there = not (stored.hollow or plain(tensor).is_meta)
            backing = _borrowed_bytes(storage.data_ptr(), nbytes) if there else None
            sip = stored.memory.sip if isinstance(stored, Block) else owner.sip
            stored.allocation = self.memory_store.allocate(
                "hbm", sip, nbytes, name=name, rank=owner.rank, backing=backing
            )
        return stored

    def note(self, tensor: torch.Tensor) -> Stored:
        """What is known about a tensor's storage; a new note for one of the host of which nothing is."""
        storage: Any = storage_of(tensor)
        stored: Stored | None = getattr(storage, NOTE, None)
        if stored is None or stored.table is not self:
            stored = Stored(self)
            setattr(storage, NOTE, stored)
        return stored

    def put(self, tensor: torch.Tensor, memory: DeviceMemory) -> None:
        """Put a fresh tensor's storage on a SIP."""
        storage: Any = storage_of(tensor)
        setattr(storage, NOTE, memory.hold(storage.nbytes()))

    def allocation_of(self, tensor: torch.Tensor, owner: Host, name: str = "") -> Allocation:
        """Where a tensor's storage is among the addresses of a SIP: of its own, or of its owner's."""
        allocation = self.adopt(tensor, owner, name).allocation
        assert allocation is not None
        return allocation


def _borrowed_bytes(address: int, nbytes: int) -> NDArray[np.uint8]:
    """``[nbytes]`` of this process's memory at ``address``, without keeping its owner alive."""
    if not nbytes:
        return np.empty(0, dtype=np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
