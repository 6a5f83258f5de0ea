"""What one process has of one SIP's memory: its allocator, and the ledger of what it allocated.

Everything that a program allocates is counted here, once, for any caller. What only a report needs is computed when there
is one.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple

import torch

from kernbench.memory.caching_allocator import CachingAllocator, NoRoomError
from kernbench.memory.history import AllocationHistory
from kernbench.memory.ledger import (
    DEATH_PHASE,
    DIED,
    EXTENT,
    KEPT,
    PHASES,
    STEP,
    Composition,
    Entry,
    Ledger,
)
from kernbench.memory.limits import (
    NCCL_CONNECTION,
    NCCL_RING_CHANNELS,
    Overhead,
    out_of_memory_message,
    platform_of,
    process_overhead,
)
from kernbench.memory.modules import ModuleUse
from kernbench.memory.physical_memory import PhysicalMemory
from kernbench.memory.remedies import ProgramState
from kernbench.memory.report import OutOfMemoryReport
from kernbench.memory.settings import AllocatorSettings
from kernbench.memory.workspaces import Workspaces
from kernbench.sim_engine import GraphEngine
from kernbench.sim_engine.data_executor import Pick
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.memory.library_workspaces import LibraryWorkspaces
from kernbench.simulation.memory.memory_limit import Limit
from kernbench.simulation.memory.memory_owners import MemoryOwners, SettledPool
from kernbench.simulation.memory.stream_use import StreamUse
from kernbench.simulation.ranks.failures import pid_of
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.ranks.locations import Location, location_of

_BASE = 0x7F00_0000_0000
_PER_SIP = 1 << 44
"""Addresses that programs receive: each SIP has a range of its own."""

_PLACED_SHARE = 12
"""An allocation is looked for in the program if it is at least 2^-12 of the most that was in use: a walk along the stack takes
as long as the allocation itself."""

_UNLIMITED = sys.maxsize >> 1

OutOfMemoryObserver = Callable[[int, int, int, int], object]
"""Takes the number of a SIP, bytes that were asked for, bytes allocated there, and bytes free."""


class OtherProcess(NamedTuple):
    """Another process that has memory of a SIP.

    Attributes:
        rank: its rank; None: main.
        on_device: bytes that it has there, whatever for.
        reserved: bytes that its allocator has there.
    """

    rank: int | None
    on_device: int
    reserved: int


class ProcessMemory:
    """One process's memory on one SIP.

    Attributes:
        host: of the process.
        allocator: its allocator there.
        ledger: of its allocations.
        overhead: what it has there besides, stated.
        index: number of the SIP, as torch counts devices.
        total: bytes of the SIP.
        fraction: share of the SIP that the program allows itself.
        history: of the allocator, if the program records it.
        graph_pools: memory of its CUDA graphs, by the pool's number.
        seeds: what generators that such graphs draw from have there, by the generator's identity.
        workspaces: of the libraries that the process calls.
        left: whether the process has ended.
        when_shared: called when another process begins to use the SIP, too.
    """

    def __init__(self, memories: ProcessMemories, host: Host, sip: int, index: int) -> None:
        self.host = host
        self.index = index
        self.fraction = 1.0
        self.overhead = memories.new_overhead()
        self.device = memories.device(sip)
        self.device.capacity -= self.overhead.total
        self.allocator = CachingAllocator(self.device, memories.settings_of(host))
        self.ledger = Ledger(host.rank, sip)
        self.total = memories.capacity
        self._beyond = memories.beyond
        self._memories = weakref.ref(memories)  # which has this: what tensors are left must not be held in a circle
        self._platform = memories.platform
        self._counts_overhead = memories.counts_overhead
        self._most = memories.process_limit
        self.history: AllocationHistory | None = None
        self.graph_pools: dict[int, SettledPool] = {}
        self.seeds: dict[int, object] = {}
        self.workspaces = LibraryWorkspaces(memories.workspace_sizes)
        self._closed = False
        self.left = False
        self._room_at_end: int | None = None
        self._noticeable = 1
        self._now = memories.main_clock if host.rank is None else None
        self._refresh = memories.refresh
        self.when_shared: Callable[[], object] = _not_told
        self.set_limit()

    def take(self, nbytes: int) -> Entry | None:
        """Memory for ``nbytes``; None for none. Raises ``torch.OutOfMemoryError``."""
        host, allocator, ledger = self.host, self.allocator, self.ledger
        if not nbytes or not host.takes_memory:
            return None
        pool = host.memory_pool
        if pool and self.graph_pools:
            self.settle()
        try:
            stream = host.stream if host.sip == ledger.sip else host.stream_on(ledger.sip)
            extent = allocator.allocate(nbytes, stream, pool)
        except NoRoomError as error:
            raise self._out_of_memory(nbytes, error.requested) from None
        place, module = self._origin(sys._getframe(1)) if nbytes >= self._noticeable else (None, None)
        entry: Entry = [
            extent, extent.size, nbytes, host.clock if self._now is None else self._now(), host.phase, place,
            None, None, None, None, module,
        ]  # fmt: skip
        events = ledger.events
        events.append(entry)
        if allocator.allocated > ledger.peak and self.graph_pools:
            self.settle()
        if allocator.allocated > ledger.peak:
            ledger.reach(allocator.allocated)
            ledger.peak_time, ledger.peak_step = entry[3], host.step
            ledger.peak_place = place or location_of(sys._getframe(1))
            self._noticeable = ledger.peak >> _PLACED_SHARE
        elif len(events) >= KEPT:
            ledger.forget()
        if host.watcher is not None:
            host.watcher.allocated(extent.size, allocator.allocated, allocator.reserved, ledger.sip)
        return entry

    def settle(self) -> None:
        """Give back what recordings of CUDA graphs alone hold."""
        for pool in list(self.graph_pools.values()):
            pool.settle()

    def use(self, sizes: Sequence[int]) -> None:
        """A kernel has this memory while it runs, bytes each. Raises ``torch.OutOfMemoryError``."""
        entries = [self.take(nbytes) for nbytes in sizes]
        for entry in entries:
            if entry is not None:
                self.give_back(entry)

    def _origin(self, frame: FrameType) -> tuple[Location, ModuleUse | None]:
        """Line and module of the program that allocates in a frame or its callers."""
        memories = self._memories()
        owners = None if memories is None else memories.owners
        return location_of(frame), None if owners is None else owners.module(self.host, frame)

    def give_back(self, entry: Entry) -> None:
        """What :meth:`take` gave is not needed any more."""
        if self._closed:
            return
        extent = entry[EXTENT]
        entry[EXTENT] = None
        host, size = self.host, extent.size
        if extent.streams is None:
            self.allocator.free(extent)
        else:
            tails = (host.tails.get(name) for name in sorted(extent.streams))
            extent.streams = None
            memories = self._memories()
            pick = None if memories is None or host.rank is None else memories.pick
            uses = [StreamUse(host, tail, self._refresh, pick) for tail in tails if tail is not None]
            self.allocator.free(extent, uses)
        entry[DIED] = host.clock if self._now is None else self._now()
        entry[DEATH_PHASE] = host.phase
        self.ledger.events.append(entry)
        if host.watcher is not None:
            host.watcher.allocated(-size, self.allocator.allocated, self.allocator.reserved, self.ledger.sip)

    def close(self) -> None:
        """The simulation has ended. What dies later is not noted: it may die in the middle of a garbage collection, which would
        take the notes for a sign of life."""
        self._closed = True
        self.graph_pools.clear()
        self.seeds.clear()
        self._now = None
        self._refresh = _nothing_newer
        self.host = Host(self.host.rank, self.ledger.sip, 0)  # a block leads here; it is to lead to no operation

    def portable(self) -> dict[str, Any]:
        """What reports need of it, for another process."""
        allocator = self.allocator
        return {
            "ledger": self.ledger, "peak_reserved": allocator.peak_reserved, "statistics": allocator.statistics,
            "limit": allocator.limit, "overhead": dict(self.overhead.parts),
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Be what another process's was (:meth:`portable`), whose program has ended."""
        allocator = self.allocator
        vars(self.ledger).update(vars(state["ledger"]))
        allocator.peak_reserved, allocator.statistics, allocator.limit = (
            state["peak_reserved"], state["statistics"], state["limit"],
        )  # fmt: skip
        before = self.overhead.total
        self.overhead.parts.update(state["overhead"])
        self.device.capacity -= self.overhead.total - before

    # -- limits ------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int | None:
        """Bytes that the process may reserve if it has the SIP to itself, or could when it ended; None: there is no limit."""
        if self.left:
            return self._room_at_end
        device = None if self.device.capacity > _UNLIMITED else self.device.capacity
        limits = [each for each in (device, self.allocator.limit) if each is not None]
        return min(limits) if limits else None

    @property
    def free(self) -> int:
        """Bytes that are unreserved there."""
        return self.device.free

    @property
    def told(self) -> tuple[int, int]:
        """Bytes that are free, and all, as shown to a program that sizes its caches by them: of a SIP that has just what the
        simulation lets each process reserve, besides what CUDA and its libraries take. Where more may be reserved than the
        SIP has, what it has."""
        memories = self._memories()
        if memories is not None:
            memories.reclaim()
        free = max(0, self.free - self._beyond)
        if self._most is None:
            return free, self.total
        return max(0, min(free, self._most - self.allocator.reserved)), min(
            self.total, self._most + self.overhead.total
        )

    def set_fraction(self, fraction: float) -> None:
        """Allow the process a share of the SIP's memory."""
        self.fraction = fraction
        self.set_limit(int(fraction * self.total))

    def set_limit(self, nbytes: int | None = None) -> None:
        """Allow it so many bytes, and no more than the simulation does."""
        own = self.allocator.limit if nbytes is None else nbytes
        limits = [each for each in (own, self._most) if each is not None]
        self.allocator.limit = min(limits) if limits else None

    def connect(self) -> None:
        """A communicator makes its buffers."""
        name, nbytes = (
            "NCCL buffers" if self._platform == "CUDA" else "RCCL buffers",
            NCCL_CONNECTION * NCCL_RING_CHANNELS,
        )
        if self._counts_overhead:
            self.occupy(name, nbytes)

    def occupy(self, name: str, nbytes: int) -> None:
        """A library takes memory, named by what it is for."""
        self.overhead.add(name, nbytes)
        self.device.occupy(name, nbytes)

    @property
    def on_device(self) -> int:
        """Bytes that the process has on the SIP, whatever for."""
        return self.allocator.reserved + self.overhead.total

    def leave(self) -> None:
        """The process has ended, and has nothing there any more. What tensors are left can still be read, and freed."""
        self._room_at_end = self.room
        self.left = True
        self.device.give_back(self.allocator.reserved)
        self.device.capacity += self.overhead.total
        self.device = PhysicalMemory(sys.maxsize, 0)
        self.device.reserved = self.allocator.reserved
        self.allocator.move_to(self.device)

    # -- reports -----------------------------------------------------------------------------------------------------

    def claim_all(self) -> None:
        """Have the ledger know whose everything is."""
        self.settle()
        memories = self._memories()
        if memories is not None and memories.owners is not None:
            memories.owners.claim_all(self.host)

    def _out_of_memory(self, nbytes: int, wanted: int) -> torch.OutOfMemoryError:
        memories, host, allocator = self._memories(), self.host, self.allocator
        assert memories is not None
        frame = sys._getframe(2)
        owners = memories.owners
        number = self.index if owners is None else owners.number(self.ledger.sip)
        free = self.free
        for observer in memories.observers_of(host):
            observer(number, nbytes, allocator.allocated, free)
        others = memories.others(self)
        error = torch.OutOfMemoryError(
            out_of_memory_message(
                wanted=wanted, capacity=self.total, free=free, device=number, mine=self.on_device,
                others={pid_of(-1 if each.rank is None else each.rank): each.on_device for each in others},
                platform=self._platform, allowed=allocator.limit, allocated=allocator.allocated, reserved=allocator.reserved,
            )
        )  # fmt: skip
        self.claim_all()
        room = free if allocator.limit is None else min(free, allocator.limit - allocator.reserved)
        report = OutOfMemoryReport(
            rank=host.rank, step=host.step, operation="" if owners is None else owners.operation(frame),
            place=location_of(frame), requested=nbytes, wanted=wanted, room=max(room, 0), allocated=allocator.allocated,
            reserved=allocator.reserved, limit=allocator.limit, capacity=self.total, overhead=dict(self.overhead.parts),
            world=memories.world_size, scales=host.phase % PHASES != STEP, settings=allocator.settings.text,
            composition=Composition.of(self.ledger.alive()),
            others={each.rank: each.reserved for each in others if each.rank is not None},
            pieces=tuple(allocator.pieces()), program=ProgramState() if owners is None else owners.state(host, frame),
        )  # fmt: skip
        error.memory_report = report  # type: ignore[attr-defined]
        error.__notes__ = [str(report)]  # type: ignore[attr-defined]  # what `add_note` does; Python 3.10 shows it nowhere by itself
        return error


class ProcessMemories:
    """The memories that the processes of one simulation have.

    Args:
        engine: of the simulation.
        hosts: the processes.
        limit: see :data:`Limit`.

    Attributes:
        opened: each process's memory on each SIP that it has used.
        owners: knows what they use it for; None: not known.
        capacity: bytes of a SIP.
        beyond: bytes that may be reserved on a SIP besides, as the limit is off or larger.
        process_limit: bytes that each process may reserve on a SIP; None: no limit besides the SIP's size.
        platform: what torch calls it, ``"CUDA"`` or ``"HIP"``.
        counts_overhead: whether what CUDA and its libraries take is counted.
        main_clock: virtual time of main, s.
        refresh: called before a read of the times of operations (:meth:`kernbench.simulation.time.wait_queue.Waits.refresh`).
        pick: says when memory that several streams have used is free again; None: when all have ended.
    """

    def __init__(self, engine: GraphEngine, hosts: Hosts, limit: Limit) -> None:
        self.hosts = hosts
        self.opened: list[ProcessMemory] = []
        self.owners: MemoryOwners | None = None
        self._engine = engine
        spec = engine.topology.device
        self.limit = limit
        self.process_limit = limit if isinstance(limit, int) else None
        self.capacity = spec.hbm.size
        self.counts_overhead = spec.cubes is None  # an accelerator of the project's own runs no CUDA
        larger = isinstance(limit, int) and limit >= self.capacity
        self._enforced = sys.maxsize if limit == "off" or larger else self.capacity
        self.beyond = self._enforced - self.capacity
        if self.beyond:
            engine.memory.enlarge("hbm", 1 << 48)
        self._arch = spec.target.arch
        self.platform = platform_of(self._arch)
        self._devices: dict[int, PhysicalMemory] = {}
        self._settings: dict[Host, AllocatorSettings] = {}
        self._workspaces: dict[Host, dict[str, int]] = {}
        self._observers: dict[Host, list[OutOfMemoryObserver]] = {}
        self._of_last_world: list[ProcessMemory] | None = None
        self.main_clock = functools.partial(_main_time, engine, hosts.main)
        self.refresh: Callable[[Sequence[Operation]], None] = _nothing_newer
        self.pick: Pick | None = None

    def device(self, sip: int) -> PhysicalMemory:
        """The memory that all processes on a SIP share."""
        found = self._devices.get(sip)
        if found is None:
            reclaim = functools.partial(_reclaim, weakref.ref(self))  # a device is held by what tensors are left
            found = self._devices[sip] = PhysicalMemory(self._enforced, _BASE + sip * _PER_SIP, reclaim)
        return found

    def new_overhead(self) -> Overhead:
        """What a process takes on a SIP when it begins to use it."""
        return process_overhead(self._arch) if self.counts_overhead else Overhead()

    def open(self, host: Host, sip: int, index: int) -> ProcessMemory:
        """The memory of a process that has not used this SIP before."""
        self.reclaim()
        self.opened = [each for each in self.opened if self._is_of_now(each.host)]
        made = ProcessMemory(self, host, sip, index)
        self.opened.append(made)
        self._engine.op_log.ledgers.append(made.ledger)
        for each in self.opened if self.is_shared(made) else ():
            if each.device is made.device:
                each.when_shared()
        return made

    def is_shared(self, memory: ProcessMemory) -> bool:
        """Whether processes beside that of ``memory`` use its SIP."""
        found = (each for each in self.opened if each.device is memory.device and each is not memory)
        return any(self.is_alive(each.host) for each in found)

    def reclaim(self) -> None:
        """Processes that have ended have nothing any more."""
        for each in self.opened:
            if not each.left and not self.is_alive(each.host):
                each.leave()

    def others(self, memory: ProcessMemory) -> list[OtherProcess]:
        """Processes beside that of ``memory`` that have reserved memory of its SIP."""
        return [
            OtherProcess(each.host.rank, each.on_device, each.allocator.reserved)
            for each in self.opened
            if each.device is memory.device and each is not memory and each.allocator.reserved
        ]

    def close(self) -> None:
        """The simulation has ended."""
        self._of_last_world = self.of_last_world()
        for each in self.opened:
            each.close()

    def of_last_world(self) -> list[ProcessMemory]:
        """What the ranks have that were spawned last."""
        if self._of_last_world is not None:
            return self._of_last_world
        ranks = set(self.hosts.of_rank.values())
        return [each for each in self.opened if each.host in ranks]

    @property
    def world_size(self) -> int:
        """Number of ranks, those too that others stand in for."""
        hosts = self.hosts
        return len(hosts.of_rank) or 1 if hosts.folding is None else hosts.folding.world

    def is_alive(self, host: Host) -> bool:
        """Whether a process has not ended."""
        return self._is_of_now(host) and (host.rank is None or not self.hosts.has_ended(host.rank))

    def _is_of_now(self, host: Host) -> bool:
        """Whether a process is main, or of the world that was spawned last."""
        hosts = self.hosts
        return host is hosts.main if host.rank is None else hosts.of_rank.get(host.rank) is host

    def observe(self, host: Host, observer: OutOfMemoryObserver) -> None:
        """Call ``observer`` before the process gets the error that a SIP has no room."""
        self._observers.setdefault(host, []).append(observer)

    def observers_of(self, host: Host) -> Sequence[OutOfMemoryObserver]:
        """Those that a process has."""
        return self._observers.get(host, ())

    def workspace_sizes(self, host: Host) -> Workspaces | None:
        """Of a process, which is running; None on what has no such libraries."""
        if not self.counts_overhead:
            return None
        return replace(Workspaces.of(self._arch, os.environ), **self._workspaces.get(host, {}))

    def state_workspace(self, host: Host, library: str, nbytes: int | None) -> None:
        """A process sets the size of the workspaces that are made from now on; None: its environment's again."""
        stated = self._workspaces.setdefault(host, {})
        if nbytes is None:
            stated.pop(library, None)
        else:
            stated[library] = nbytes

    def settings_of(self, host: Host) -> AllocatorSettings:
        """Settings of a process's allocators: those it has set, or those of its environment."""
        return self._settings.get(host) or AllocatorSettings.of_environment(os.environ)

    def configure(self, host: Host, settings: AllocatorSettings) -> None:
        """Have a process's allocators behave otherwise from now on."""
        self._settings[host] = settings
        for each in self.of(host):
            each.allocator.configure(settings)

    def of(self, host: Host) -> Sequence[ProcessMemory]:
        """What a process has."""
        return [each for each in self.opened if each.host is host]


def _not_told() -> None:
    """Its allocator sees what others have."""


def _reclaim(memories: weakref.ref[ProcessMemories]) -> None:
    if (found := memories()) is not None:
        found.reclaim()


def _nothing_newer(operations: Sequence[Operation]) -> None:
    """What is known of their times is in them."""


def _main_time(engine: GraphEngine, main: Host) -> float:
    return max(main.clock, engine.now)
