"""Modelled memories: address spaces, an allocator, bounds and poison.

Every SIP has an ``hbm``, ``sram`` and ``tcm`` space; the host has one. An allocation may be *backed* by host memory
(the storage of a tensor), in which case it can be read and written by its modelled address, and found by the host
address that a kernel's pointer holds.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.errors import MemoryAccessError, OutOfMemoryError
from kernbench.topology import Topology

Bytes = NDArray[np.uint8]

ALIGNMENT = 256
"""Every allocation starts at a multiple of this many bytes, as device allocators do."""


@dataclass(eq=False, slots=True)
class Allocation:
    """A live range of one address space.

    Attributes:
        space: ``"hbm"``, ``"sram"``, ``"tcm"`` or ``"host"``.
        sip: owner, 0 for the host.
        address: first byte, in that space.
        nbytes: length asked for, bytes.
        name: what the user calls it.
        rank: who allocated it, None for main.
        backing: ``[nbytes]`` host memory that holds the values, None if only time is modelled.
        host_address: where that is in this process; 0 if there is none.
        live: False once freed.
        words: who wrote its words last, where ranks meet in it (:mod:`kernbench.triton_engine.signals`).
        shadow: its last accesses, where it is watched (:mod:`kernbench.order`).
    """

    space: str
    sip: int
    address: int
    nbytes: int
    name: str = ""
    rank: int | None = None
    backing: Bytes | None = None
    host_address: int = 0
    live: bool = True
    words: Any = None
    shadow: Any = None

    def __str__(self) -> str:
        owner = "main" if self.rank is None else f"rank {self.rank}"
        return f"{self.name or 'unnamed tensor'} ({self.nbytes} bytes at {self.space}[{self.sip}]+{self.address:#x}, {owner})"


class AddressSpace:
    """One memory of one SIP: a first-fit allocator over ``[0, size)`` bytes that merges what is freed."""

    def __init__(self, name: str, sip: int, size: int) -> None:
        self.name = name
        self.sip = sip
        self.size = size
        self.used = 0
        self.peak = 0
        self._holes: list[tuple[int, int]] = [(0, size)]  # (address, length), by address, never adjacent
        self._starts: list[int] = []
        self._live: dict[int, Allocation] = {}

    def allocate(self, nbytes: int, *, name: str = "", rank: int | None = None) -> Allocation:
        """Reserve ``nbytes`` (zero is fine). Raises :class:`OutOfMemoryError` if no hole is large enough."""
        length = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        index = next((i for i, (_, hole) in enumerate(self._holes) if hole >= length), None)
        if index is None:
            largest = max((hole for _, hole in self._holes), default=0)
            raise OutOfMemoryError(
                f"out of memory on SIP {self.sip} ({self.name}): {nbytes:,} bytes asked for"
                f"{f' for {name}' if name else ''}, {self.used:,} of {self.size:,} in use, largest hole {largest:,}. "
                "Use smaller tensors, more ranks, or a system with more memory."
            )
        address, hole = self._holes[index]
        if hole == length:
            del self._holes[index]
        else:
            self._holes[index] = (address + length, hole - length)
        allocation = Allocation(self.name, self.sip, address, nbytes, name, rank)
        self._live[address] = allocation
        insort(self._starts, address)
        self.used += length
        self.peak = max(self.peak, self.used)
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back; freeing twice is an error."""
        if self._live.get(allocation.address) is not allocation:
            raise MemoryAccessError(f"{allocation} is not live: freed twice, or of another memory")
        del self._live[allocation.address]
        del self._starts[bisect_right(self._starts, allocation.address) - 1]
        allocation.live = False
        begin = allocation.address
        length = max(ALIGNMENT, -(-allocation.nbytes // ALIGNMENT) * ALIGNMENT)
        self.used -= length
        index = bisect_right(self._holes, (begin, 0))
        if index < len(self._holes) and self._holes[index][0] == begin + length:
            length += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == begin:
            begin, previous = self._holes[index - 1]
            length += previous
            self._holes[index - 1] = (begin, length)
        else:
            self._holes.insert(index, (begin, length))

    def find(self, address: int) -> Allocation | None:
        """The live allocation that contains ``address``, if any."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        allocation = self._live[self._starts[index]]
        return allocation if address < allocation.address + max(allocation.nbytes, 1) else None

    def nearest(self, address: int) -> Allocation | None:
        """The live allocation that starts last at or before ``address``, if any."""
        index = bisect_right(self._starts, address) - 1
        return self._live[self._starts[index]] if index >= 0 else None

    def allocations(self) -> list[Allocation]:
        """Every live allocation, by address."""
        return [self._live[start] for start in self._starts]


class MemoryStore:
    """All memories of a system."""

    def __init__(self, topology: Topology) -> None:
        device = topology.device
        sram = device.cubes.sram.size * device.cubes.count if device.cubes is not None else 0
        if device.cubes is None and device.l2 is not None:
            sram = device.l2.size
        self._sizes = {"hbm": device.hbm.size, "sram": sram, "tcm": device.pe.tcm.size * device.pes, "host": 1 << 48}
        self._sip_count = topology.sip_count
        self._spaces: dict[tuple[str, int], AddressSpace] = {}
        self._host_starts: list[int] = []
        self._by_host: dict[int, Allocation] = {}

    def enlarge(self, name: str, size: int) -> None:
        """Let memories called ``name`` that have not been used yet have ``size`` bytes."""
        self._sizes[name] = size

    def space(self, name: str, sip: int) -> AddressSpace:
        """The memory called ``name`` of a SIP, created on first use."""
        key = (name, sip)
        space = self._spaces.get(key)
        if space is None:
            if name not in self._sizes or not 0 <= sip < self._sip_count:
                raise MemoryAccessError(
                    f"there is no memory {name!r} on SIP {sip}: spaces are {', '.join(self._sizes)}; "
                    f"SIPs are 0..{self._sip_count - 1}"
                )
            space = self._spaces[key] = AddressSpace(name, sip, self._sizes[name])
        return space

    def spaces(self) -> list[AddressSpace]:
        """The memories in use, by name and SIP."""
        return [self._spaces[key] for key in sorted(self._spaces)]

    def allocate(
        self,
        space: str,
        sip: int,
        nbytes: int,
        *,
        name: str = "",
        rank: int | None = None,
        backing: Bytes | None = None,
    ) -> Allocation:
        """Reserve ``nbytes`` of a memory; ``backing`` is the ``[nbytes]`` host memory that will hold the values."""
        allocation = self.space(space, sip).allocate(nbytes, name=name, rank=rank)
        if backing is not None:
            self.back(allocation, backing)
        return allocation

    def back(self, allocation: Allocation, backing: Bytes) -> None:
        """Let an allocation that holds no values hold those of ``backing``, host memory of as many bytes."""
        allocation.backing = backing
        host = allocation.host_address = int(backing.ctypes.data)
        if allocation.nbytes and host not in self._by_host:
            self._by_host[host] = allocation
            insort(self._host_starts, host)

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back."""
        host = allocation.host_address
        if self._by_host.get(host) is allocation:
            del self._by_host[host]
            del self._host_starts[bisect_right(self._host_starts, host) - 1]
        self.space(allocation.space, allocation.sip).free(allocation)
        allocation.backing, allocation.host_address = None, 0

    def find_host(self, host_address: int) -> Allocation | None:
        """The live allocation whose values are at this address of the process, if any."""
        index = bisect_right(self._host_starts, host_address) - 1
        if index < 0:
            return None
        start = self._host_starts[index]
        allocation = self._by_host[start]
        return allocation if host_address < start + allocation.nbytes else None

    def read(self, space: str, sip: int, address: int, nbytes: int) -> Bytes:
        """``[nbytes]`` copy of memory. Raises :class:`MemoryAccessError` outside a live, backed allocation."""
        view, offset = self._locate(space, sip, address, nbytes, "read")
        return view[offset : offset + nbytes].copy()

    def write(self, space: str, sip: int, address: int, data: Bytes) -> None:
        """Write ``[n]`` bytes. Raises :class:`MemoryAccessError` outside a live, backed allocation."""
        view, offset = self._locate(space, sip, address, len(data), "write")
        view[offset : offset + len(data)] = data

    def _locate(self, space: str, sip: int, address: int, nbytes: int, what: str) -> tuple[Bytes, int]:
        memory = self.space(space, sip)
        allocation = memory.find(address)
        if allocation is None or address + nbytes > allocation.address + allocation.nbytes:
            nearest = memory.nearest(address)
            near = f"the allocation before it is {nearest}" if nearest else "nothing is allocated before it"
            raise MemoryAccessError(
                f"{what} of {nbytes} bytes at {space}[{sip}]+{address:#x} is outside every live allocation; {near}"
            )
        if allocation.backing is None:
            raise MemoryAccessError(
                f"{what} of {allocation}: it holds no values (the context was made with enable_data=False)"
            )
        return allocation.backing, address - allocation.address
