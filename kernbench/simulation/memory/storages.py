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

from kernbench.errors import KernbenchError
from kernbench.memory.ledger import EXTENT, Entry
from kernbench.sim_engine.memory_store import Allocation, MemoryStore
from kernbench.sim_engine.op_log import MemoryRange
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.memory.process_memory import ProcessMemories, ProcessMemory
from kernbench.simulation.memory.tensor_queries import plain, storage_of
from kernbench.simulation.ranks.hosts import Host

SMALL_BYTES = 8192
"""Where no data is computed, storages on SIPs of up to this many bytes have values nevertheless: they steer the program."""

Span = tuple[int, int]
"""Bytes of a storage, from the first to the one behind the last."""

NOTE = "_kernbench"
"""The attribute of a storage (of a tensor without one) that is its :class:`Stored`."""


class DeviceMemory:
    """Bytes that programs have allocated on one SIP.

    Args:
        table: of the simulation.
        sip: whose memory it is.
        index: of the SIP, as torch counts devices.
        processes: what each process has of it.
    """

    def __init__(self, table: StorageTable, sip: int, index: int, processes: ProcessMemories) -> None:
        self.table = table
        self.sip = sip
        self.index = index
        self._processes: ProcessMemories | None = processes
        self._current: Callable[[], Host] = processes.hosts.current
        self._by_host: dict[Host, ProcessMemory] = {}

    @property
    def mine(self) -> ProcessMemory:
        """What the process that runs has of it."""
        host = self._current()
        found = self._by_host.get(host)
        if found is None:
            assert self._processes is not None
            is_alive = self._processes.is_alive
            self._by_host = {each: memory for each, memory in self._by_host.items() if is_alive(each)}
            found = self._by_host[host] = self._processes.open(host, self.sip, self.index)
        return found

    def close(self) -> None:
        """The simulation has ended: blocks that are left lead to nothing."""
        self._processes = None
        self._current = _nobody
        self._by_host = {}

    def hold(self, nbytes: int, *, shared: bool = False) -> Block:
        """A block of ``nbytes`` of the process that runs, which are counted until it is gone.

        Raises ``torch.OutOfMemoryError`` if neither the SIP nor what the process has cached has room.
        """
        owner = self._by_host.get(self._current()) or self.mine
        return Block(self, nbytes, shared, owner, owner.take(nbytes))

    def of(self, host: Host) -> ProcessMemory:
        """What the process has of it whose host is known, which is the one that runs."""
        return self._by_host.get(host) or self.mine

    def hold_for(self, host: Host, nbytes: int) -> Block:
        """The same of the process whose host is known, which is the one that runs."""
        owner = self._by_host.get(host) or self.mine
        return Block(self, nbytes, False, owner, owner.take(nbytes))


def _nobody() -> Host:
    raise KernbenchError("memory of a simulated device was asked for, and its simulation has ended")


class Stored:
    """What a simulation knows about one storage of the host.

    Attributes:
        table: of the simulation.
        allocation: its place among the addresses of a SIP, None until needed.
        last: the last launch or collective on it.
        hollow: whether its bytes mean nothing: they are neither computed nor touched (a simulation without data).
        stand_in: what each element is taken to be, or is on average, where that is assumed; None: its values are known, or,
            of a hollow one, nothing better is known than the default of its dtype.
        stated: whether the program itself has said what its values are (``kernbench.assume``), and it is unwritten since.
        stays_unknown: whether a captured graph has made it, whose replays will not know its values either.
        kept: whether its values stay with it on a SIP, however many they are (:mod:`kernbench.simulation.values.known_values`).
        missing: the parts of what was empty, or not known, into which nothing known has been written; None: it was not, or
            something that is assumed has been.
    """

    # Defaults of the class, and no slots: each operation's result gets one of these, and few have more to say
    hollow = False
    stand_in: float | None = None
    stated = False
    stays_unknown = False
    kept = False
    missing: tuple[Span, ...] | None = None
    allocation: Allocation | None = None
    last: Operation | None = None
    _whole: tuple[MemoryRange] | None = None

    def __init__(self, table: StorageTable) -> None:
        self.table = table

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
        mapped: whether it is memory of the host, which the SIP reads and writes over its host link; it is shared then.
        owner: the process that counts it.
        entry: what is noted of it there; None: it has no bytes.
    """

    shared = False
    mapped = False

    def __init__(
        self, memory: DeviceMemory, nbytes: int, shared: bool, owner: ProcessMemory, entry: Entry | None
    ) -> None:
        self.table = table = memory.table
        if nbytes > table.most_bytes:
            self.hollow = True
        if shared:
            self.shared = True
        self.memory = memory
        self.nbytes = nbytes
        self.owner = owner
        self.entry = entry

    def __del__(self) -> None:
        if self.allocation is not None:
            self.table.memory_store.free(self.allocation)
        if self.entry is not None:
            self.owner.give_back(self.entry)

    @property
    def own_sip(self) -> int | None:
        """The SIP on which an operation on it is; None: memory that ranks share is reached from the one that a host drives."""
        return None if self.shared else self.memory.sip

    def take_over(self, note: Stored) -> None:
        """It was known so far by ``note``: here or on the host, it has the same values."""
        self.stand_in, self.missing, self.kept = note.stand_in, note.missing, note.kept
        self.stays_unknown = note.stays_unknown
        self.hollow = self.hollow and not (note.kept and not note.hollow)

    def let_go(self) -> None:
        """The program has it no more, though the storage lives: a recording has its bytes."""
        if self.entry is not None:
            self.owner.give_back(self.entry)
            self.entry = None

    def resize(self, nbytes: int) -> None:
        """The storage has another size now. Raises ``torch.OutOfMemoryError``, and has none then."""
        if self.entry is not None:
            self.owner.give_back(self.entry)
            self.entry = None
        self.nbytes = 0
        if self.allocation is not None and nbytes > self.allocation.nbytes:
            self.table.memory_store.free(self.allocation)
            self.allocation = self._whole = None
        self.entry = self.owner.take(nbytes)
        self.nbytes = nbytes
        if nbytes > self.table.most_bytes and not self.kept:
            self.hollow = True

    def record_stream(self, name: str) -> None:
        """Work on another stream uses it."""
        extent = None if self.entry is None else self.entry[EXTENT]
        if extent is not None and extent.pool.stream != name:
            extent.streams = {*(extent.streams or ()), name}


class Mapped(Stored):
    """What is known about a storage of the host that a SIP addresses, too: what is known about it there.

    Args:
        block: that it is to the SIP.
    """

    def __init__(self, block: Block) -> None:
        super().__init__(block.table)
        self.block = block


def _of_block(name: str) -> object:
    return property(lambda note: getattr(note.block, name), lambda note, value: setattr(note.block, name, value))


for _name in ("hollow", "stand_in", "stated", "kept", "missing"):
    setattr(Mapped, _name, _of_block(_name))


class StorageTable:
    """The storages of one simulation.

    Args:
        memory_store: addresses, by SIP.
        sips: of the simulation, in torch's order.
        processes: what each process has of a SIP's memory.
        has_data: whether values are computed; else storages of more than :data:`SMALL_BYTES` on SIPs are hollow.
    """

    def __init__(
        self, memory_store: MemoryStore, sips: Sequence[int], processes: ProcessMemories, *, has_data: bool = True
    ) -> None:
        self.memory_store = memory_store
        self.has_data = has_data
        self.most_bytes: float = math.inf if has_data else SMALL_BYTES
        self._processes: ProcessMemories | None = processes
        self._sips = sips
        self._memories: dict[int, DeviceMemory] = {}

    def close(self) -> None:
        """Nothing is held in a circle: what tensors are left keep alive what they need."""
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def memory(self, sip: int) -> DeviceMemory:
        """Memory of a SIP."""
        found = self._memories.get(sip)
        if found is None:
            assert self._processes is not None
            found = self._memories[sip] = DeviceMemory(self, sip, self._sips.index(sip), self._processes)
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
            backing = borrowed_bytes(storage.data_ptr(), nbytes) if there else None
            sip = stored.memory.sip if isinstance(stored, Block) else owner.sip
            space = "host" if isinstance(stored, Block) and stored.mapped else "hbm"
            stored.allocation = self.memory_store.allocate(
                space, sip, nbytes, name=name, rank=owner.rank, backing=backing
            )
        return stored

    def note(self, tensor: torch.Tensor) -> Stored:
        """What is known about a tensor's storage; a new note for one of the host of which nothing is."""
        storage: Any = tensor.untyped_storage() if type(tensor) is torch.Tensor else storage_of(tensor)
        stored: Stored | None = getattr(storage, NOTE, None)
        if stored is None or stored.table is not self:
            stored = Stored(self)
            setattr(storage, NOTE, stored)
        return stored

    def put(self, tensor: torch.Tensor, memory: DeviceMemory) -> None:
        """Put a fresh tensor's storage on a SIP."""
        storage: Any = storage_of(tensor)
        block, note = memory.hold(storage.nbytes()), getattr(storage, NOTE, None)
        if note is not None:
            block.take_over(note)
        setattr(storage, NOTE, block)

    def allocation_of(self, tensor: torch.Tensor, owner: Host, name: str = "") -> Allocation:
        """Where a tensor's storage is among the addresses of a SIP: of its own, or of its owner's."""
        allocation = self.adopt(tensor, owner, name).allocation
        assert allocation is not None
        return allocation


def borrowed_bytes(address: int, nbytes: int) -> NDArray[np.uint8]:
    """``[nbytes]`` of this process's memory at ``address``, without keeping its owner alive."""
    if not nbytes:
        return np.empty(0, dtype=np.uint8)
    there: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(there, dtype=np.uint8)  # np.ctypeslib would be an import, in every process
