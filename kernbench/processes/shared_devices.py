"""Memory of a device of which several processes have some: what is left of it is known to the simulation.

A rank that is a process has its allocator there (:class:`DeviceShare`), and the simulation an account of it
(:class:`DeviceAccounts`). As long as a rank is alone on its device it says what it reserves, and goes on; once it has heard
that another process uses the device it asks, in its turn. So ranks that have a device each do not wait for each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from kernbench.memory.limits import format_size
from kernbench.memory.physical_memory import PhysicalMemory
from kernbench.processes.channel import Wire
from kernbench.processes.uplink import SHARED, Uplink
from kernbench.simulation.memory.process_memory import OtherProcess, ProcessMemory
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.locations import Location, user_location
from kernbench.simulation.simulation import Simulation


class DeviceShare(PhysicalMemory):
    """In a rank's process: the memory of a SIP.

    Args:
        side: the way to the simulation.
        sip: whose memory.
        stock: what the process that it is a copy of knew of it.

    Attributes:
        told: whether the simulation has an account of it.
        shared: whether other processes are known to use the SIP.
    """

    def __init__(self, side: Uplink, sip: int, stock: PhysicalMemory) -> None:
        super().__init__(stock.capacity, stock.next_address)
        self.reserved = stock.reserved
        self.told = self.shared = False
        self._side = side
        self._sip = sip

    def take(self, nbytes: int) -> bool:
        """See :class:`PhysicalMemory`."""
        if self.shared and self._may_ask:
            if not self._side.call("reserve", self._sip, nbytes):
                return False
            self.reserved += nbytes
            return True
        if not super().take(nbytes):
            return False
        self._side.cast("reserved", self._sip, nbytes, tuple(user_location()))
        return True

    def give_back(self, nbytes: int) -> None:
        """See :class:`PhysicalMemory`."""
        super().give_back(nbytes)
        self._side.cast("reserved", self._sip, -nbytes, None)

    def occupy(self, name: str, nbytes: int) -> None:
        """See :class:`PhysicalMemory`."""
        super().occupy(name, nbytes)
        self._side.cast("occupied", self._sip, name, nbytes)

    @property
    def free(self) -> int:
        """See :class:`PhysicalMemory`."""
        return int(self._side.call("unreserved", self._sip)) if self._may_ask else super().free

    def others(self) -> list[OtherProcess]:
        """See :meth:`kernbench.simulation.memory.process_memory.ProcessMemories.others`."""
        return list(self._side.call("others", self._sip)) if self._may_ask else []

    @property
    def _may_ask(self) -> bool:
        return self.told and self._side.has_turn and not self._side.apart


class DeviceAccounts:
    """In the simulation: what a rank that is a process has of the memory of SIPs.

    Args:
        simulation: whose.
        host: of the rank.
        wire: to its process.
        late: takes an error that the rank gets with its next reply.
    """

    def __init__(
        self, simulation: Simulation, host: Host, wire: Wire, late: Callable[[BaseException | None], None]
    ) -> None:
        self._memories = simulation.memories
        self._host = host
        self._wire = wire
        self._late = late
        self._of_sip: dict[int, ProcessMemory] = {}

    def open(self, sip: int, index: int) -> None:
        """The rank uses a SIP from now on."""
        made = self._of_sip[sip] = self._memories.open(self._host, sip, index)

        def shared() -> None:
            made.when_shared = lambda: None
            with contextlib.suppress(OSError):  # it has died, and fails in its turn
                self._wire.send((SHARED, sip))

        made.when_shared = shared
        if self._memories.is_shared(made):
            shared()

    def reserve(self, sip: int, nbytes: int) -> bool:
        """Whether there is room."""
        made = self._of_sip[sip]
        if not made.device.take(nbytes):
            return False
        made.allocator.reserved += nbytes
        return True

    def reserved(self, sip: int, nbytes: int, place: Any) -> None:
        """The rank, which does not know of others there, has reserved memory, or given some back."""
        made = self._of_sip[sip]
        made.device.give_back(-nbytes)
        made.allocator.reserved += nbytes
        if made.device.reserved <= made.device.capacity:
            self._late(None)
        elif nbytes > 0:
            self._memories.reclaim()
            if made.device.reserved > made.device.capacity:
                self._late(self._overdrawn(made, nbytes, Location(*place)))

    def _overdrawn(self, made: ProcessMemory, nbytes: int, place: Location) -> torch.OutOfMemoryError:
        others = ", ".join(
            f"{'main' if each.rank is None else f'rank {each.rank}'} has {format_size(each.on_device)}"
            for each in self._memories.others(made)
        )
        return torch.OutOfMemoryError(
            f"out of memory on rank {self._host.rank}: at {place} it reserved {format_size(nbytes)} of GPU {made.index}, which "
            f"has {format_size(made.total)}, beside its own {format_size(made.on_device - nbytes)}; {others}. It had not heard "
            "of them then, so the error comes at its next call that waits"
        )

    def occupied(self, sip: int, name: str, nbytes: int) -> None:
        """A library of the rank has taken memory."""
        self._of_sip[sip].occupy(name, nbytes)

    def unreserved(self, sip: int) -> int:
        """Bytes that all leave."""
        self._memories.reclaim()
        return self._of_sip[sip].free

    def others(self, sip: int) -> list[OtherProcess]:
        """What other processes have."""
        return self._memories.others(self._of_sip[sip])
