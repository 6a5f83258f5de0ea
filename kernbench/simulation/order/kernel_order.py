"""What the programs of a launch touch, and what they tell each other: for the order of events, where it is watched.

Each program is a strand that begins with what its stream knew, learns from others by what it acquires, and has ended when what
follows on the stream begins. Affine accesses pass as they are, one region per program; those at looked-up addresses as the
runs of bytes that they consist of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernbench.order import SCOPES, ByteRegion, MemoryAccess, Moment, Place, Shadow, Strand, kernel_ended, region_of
from kernbench.sim_engine import MemoryStore
from kernbench.simulation.order.shadow_memory import SHADOW
from kernbench.simulation.order.thread_order import ThreadOrder
from kernbench.simulation.order.weak_memory import OlderView, about_to_write, as_before
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.ranks.locations import Location
from kernbench.triton_engine.access import Access, Piece
from kernbench.triton_engine.binding import Binding, program_of
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.signals import WORD

MOST_PROGRAMS = 1 << 10
"""Programs of all launches of an execution up to which each is a strand of its own; of more, those of a launch are one."""

_MOST_RUNS = 256
"""Runs of bytes up to which a program's access at looked-up addresses is reported; one of more is not."""

Words = Sequence[str]


def shadow_at(memory: MemoryStore, hosts: Hosts, address: int, storage: object = None) -> Shadow | None:
    """The shadow of the memory at an address of this process, a new one where there is none; None if it is not watched.

    ``storage``: of torch, which may have one.
    """
    placed = memory.find_host(address)
    kept = getattr(storage, SHADOW, None)
    if placed is None:  # it was never given to a launch: its address stands in a table
        return None if kept is None else kept.shadow
    if placed.shadow is not None:
        known: Shadow = placed.shadow
        return known
    order = hosts.of_rank[placed.rank].order if placed.rank in hosts.of_rank else None
    if kept is not None:
        placed.shadow = kept.shadow
    elif order is not None:
        placed.shadow = Shadow(order.report, placed.nbytes, shared=True)
    found: Shadow | None = placed.shadow
    return found


class SignalOrder:
    """The strand of an operation that signals, word by word.

    Args:
        moment: its end.
        name, at: of the operation, and where the program asked for it.
    """

    def __init__(self, memory: MemoryStore, hosts: Hosts, moment: Moment, name: str, at: Location) -> None:
        self._memory = memory
        self._hosts = hosts
        self._moment = moment
        self._name = name
        self._at = at
        self._strand: Strand | None = None

    def swapped(self, address: int, *, sem: str) -> None:
        """It has updated the word at an address of this process, as ``"release"`` or ``"acquire"`` of the system."""
        self._access(address, sem, reads=True)

    def stored(self, address: int) -> None:
        """It has overwritten a word, after all that its stream had done."""
        self._access(address, "release", reads=False)

    def _access(self, address: int, sem: str, *, reads: bool) -> None:
        word = self._word(address)
        if word is None:
            return
        shadow, offset = word
        strand = self._strand
        if strand is None:
            of = self._moment.strand
            strand = self._strand = Strand(f"{self._name} on {of.called}", of.rank, of.world, launch=self._moment)
            strand.n = 1
        told = MemoryAccess(strand, strand.n, self._name, self._at, atomic=True)
        shadow.write(told, ByteRegion(offset, offset + WORD))
        shadow.words.access(told, offset, sem=sem, scope="sys", reads=reads, writes=True)

    def history(self, address: int) -> str:
        """The last writer of a word, for people; empty: not known."""
        word = self._word(address)
        return "" if word is None else word[0].history(word[1])

    def _word(self, address: int) -> tuple[Shadow, int] | None:
        """The shadow of the memory at an address of this process, and the byte of it; None: not watched."""
        shadow, placed = shadow_at(self._memory, self._hosts, address), self._memory.find_host(address)
        return None if shadow is None or placed is None else (shadow, address - placed.host_address)

    def ended(self) -> None:
        """All its words have been swapped."""
        kernel_ended(self._moment, [] if self._strand is None else [self._strand])


class _Read(NamedTuple):
    """What programs load of one allocation: the first access, and each of their regions."""

    allocation: HostAllocation
    shadow: Shadow
    access: MemoryAccess
    by: list[tuple[ByteRegion, tuple[Strand, ...]]]


class KernelOrder:
    """The strands of one execution.

    Args:
        execution: whose launches have been put in the order of events.
    """

    def __init__(self, execution: Binding, hosts: Hosts, memory: MemoryStore) -> None:
        # not the execution itself, which has this: in a circle, what the kernel was given would live until the collector runs
        self._moments = [launch.moment for launch in execution.launches]
        self._launched = {launch.moment: launch.where for launch in execution.launches}
        self._programs = execution.programs
        self._grid = execution.grid
        self._name = execution.program.name
        self._hosts = hosts
        self._memory = memory
        self._each = execution.programs * execution.n_ranks <= MOST_PROGRAMS
        self._strands: dict[int, Strand | None] = {}
        self._accesses: dict[tuple[Strand, int, int, bool], MemoryAccess] = {}
        self._shadows: dict[int, Shadow | None] = {}
        self._weak = None if hosts.order is None else hosts.order.weak
        self._readers: dict[int, _Read] = {}
        program = execution.program
        self._threads = ThreadOrder() if program.threads > program.warp_size and not program.by_thread else None

    # -- strands -----------------------------------------------------------------------------------------------------

    def _strand(self, key: int) -> Strand | None:
        """Of the program with this number, those of all launches counted one after the other; None: it is main's."""
        launch, linear = divmod(key, self._programs)
        if not self._each:
            key, linear = launch, -1
        if key in self._strands:
            return self._strands[key]
        moment: Moment | None = self._moments[launch]
        made = None
        if moment is not None:
            which = f"program {program_of(linear, self._grid)}" if linear >= 0 else "programs"
            made = Strand(f"{which} of {self._name}", moment.strand.rank, moment.strand.world, launch=moment)
        self._strands[key] = made
        return made

    def _access(self, strand: Strand, info: OpInfo, *, atomic: bool = False) -> MemoryAccess:
        key = (strand, strand.n, info.index, atomic)
        found = self._accesses.get(key)
        if found is None:
            if strand.n == 0:
                strand.n = 1
                key = (strand, 1, info.index, atomic)
            user = info.loc.user
            where: Place = Location(user.file, user.line, info.kernel)
            launch = strand.launch
            if launch is not None and launch.replayed is not None:
                where = launch.replayed._replace(at=where, launched=self._launched[launch])
            name = info.name.removeprefix("tt.")
            found = self._accesses[key] = MemoryAccess(strand, strand.n, name, where, atomic=atomic)
            strand.recent.append(found)
        return found

    def ended(self) -> None:
        """All programs have run."""
        by_launch: dict[Moment, list[Strand]] = {moment: [] for moment in self._moments if moment is not None}
        for strand in self._strands.values():
            if strand is not None and strand.launch is not None:
                by_launch[strand.launch].append(strand)
        for moment, strands in by_launch.items():
            kernel_ended(moment, strands)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _shadow(self, allocation: HostAllocation) -> Shadow | None:
        base = allocation.base
        if base not in self._shadows:
            self._shadows[base] = shadow_at(self._memory, self._hosts, base, allocation.storage)
        return self._shadows[base]

    # Affine accesses

    def read_piece(self, access: Access, piece: Piece) -> None:
        """Elements of a piece are loaded. Raises RaceError."""
        self._piece(access, piece, writes=False)

    def write_piece(self, access: Access, piece: Piece) -> None:
        """Elements of a piece are stored. Raises RaceError."""
        self._piece(access, piece, writes=True)

    def _piece(self, access: Access, piece: Piece, *, writes: bool) -> None:
        shadow = self._shadow(piece.allocation)
        if shadow is None:
            return
        volatile = bool(access.info.attrs.get("isVolatile"))
        batch = access.batch
        keys = batch.program_keys().reshape(batch.lanes)[tuple(slice(a, b) for a, b in piece.lanes)]
        spreads = self._threads is not None and not volatile
        if spreads:
            self._among_threads(shadow, access, piece, keys, writes=writes)
        for strand, region in self._regions(access, piece, keys):
            told = self._access(strand, access.info, atomic=volatile)
            if spreads:
                self._spread(told, access.info)
            if shadow.made is None:
                shadow.made = told
            if writes:
                self._stored(shadow, piece.allocation, region, told)
            else:
                self._loaded(shadow, piece.allocation, region, told)

    def _among_threads(self, shadow: Shadow, access: Access, piece: Piece, keys: np.ndarray, *, writes: bool) -> None:
        """Threads of a program touch what others of it have touched since they met? Raises RaceError."""
        assert self._threads is not None
        for found in self._threads.touched(access, piece, keys, writes=writes):
            strand = self._strand(found.key)
            order = None if strand is None else self._hosts.of_rank[strand.rank].order
            if strand is not None and order is not None:
                old, new = self._access(strand, found.first), self._access(strand, access.info)
                order.report(shadow, found.region, old, found.first_writes, new, writes)

    def _spread(self, access: MemoryAccess, info: OpInfo) -> None:
        if self._threads is not None and self._each and max(prod(t.shape) for t in info.operand_types) > 1:
            self._threads.spread(access)

    def meet(self, batch: Any) -> None:
        """The threads of each program of a batch have met."""
        if self._threads is not None:
            self._threads.met(batch.program_keys(), self._strands)

    def _regions(self, access: Access, piece: Piece, keys: np.ndarray) -> Iterator[tuple[Strand, ByteRegion]]:
        """What each program touches."""
        item, foot = access.item, piece.foot
        lanes = len(piece.lanes)
        tile_sizes, tile_steps = foot.sizes[lanes:], foot.steps[lanes:]
        first = piece.offset + sum(
            s * (n - 1) for s, n in zip(foot.strides[lanes:], tile_sizes, strict=True) if s < 0
        )  # fmt: skip
        if not self._each and keys.size > 1 and len(np.unique(keys // self._programs)) == 1:
            strand = self._strand(int(keys.flat[0]))
            region = region_of(foot.sizes, foot.steps, piece.offset + foot.flip, item)
            if strand is not None and region is not None:
                yield strand, region
            return
        strides = [s if n > 1 else 0 for s, n in zip(foot.strides[:lanes], foot.sizes[:lanes], strict=True)]
        seen: set[tuple[int, int]] = set()
        for place, key in np.ndenumerate(keys):
            offset = first + sum(at * stride for at, stride in zip(place, strides, strict=True))
            if (int(key), offset) in seen:
                continue  # threads of one program
            seen.add((int(key), offset))
            strand = self._strand(int(key))
            region = region_of(tile_sizes, tile_steps, offset, item)
            if strand is not None and region is not None:
                yield strand, region

    # Gathered accesses

    def read_index(self, access: Access, allocation: HostAllocation, index: Tensor, active: Tensor | None) -> None:
        """Elements ``index`` are loaded. Raises RaceError."""
        self._index(access, allocation, index, active, writes=False)

    def write_index(self, access: Access, allocation: HostAllocation, index: Tensor, active: Tensor | None) -> None:
        """Elements ``index`` are stored. Raises RaceError."""
        self._index(access, allocation, index, active, writes=True)

    def _index(
        self, access: Access, allocation: HostAllocation, index: Tensor, active: Tensor | None, *, writes: bool
    ) -> None:
        batch = access.batch
        shape = np.broadcast_shapes(batch.lanes + (1,) * len(access.tile), tuple(index.shape))
        if active is not None:
            shape = np.broadcast_shapes(shape, tuple(active.shape))
        keys = np.broadcast_to(batch.program_keys().reshape(batch.lanes + (1,) * len(access.tile)), shape)
        where = index.expand(shape).numpy()
        if active is not None:
            keep = active.expand(shape).numpy()
            keys, where = keys[keep], where[keep]
        self._runs(
            access.info, allocation, keys.reshape(-1), where.reshape(-1) * access.item, access.item, writes=writes
        )

    def _runs(
        self,
        info: OpInfo,
        allocation: HostAllocation,
        keys: np.ndarray,
        offsets: np.ndarray,
        item: int,
        *,
        writes: bool,
    ) -> None:
        """Programs ``keys`` touch ``item`` bytes at each of the ``offsets``."""
        shadow = self._shadow(allocation)
        if shadow is None:
            return
        for key in np.unique(keys):
            strand = self._strand(int(key))
            if strand is None:
                continue
            mine = np.unique(offsets[keys == key])
            edges = np.nonzero(np.diff(mine) > item)[0] + 1
            if len(edges) >= _MOST_RUNS:
                if writes:
                    shadow.define(ByteRegion(int(mine[0]), int(mine[-1]) + item))
                continue
            told = self._access(strand, info)
            self._spread(told, info)
            begins, ends = mine[np.r_[0, edges]], mine[np.r_[edges - 1, -1]] + item
            for lo, hi in zip(begins.tolist(), ends.tolist(), strict=True):
                region = ByteRegion(lo, hi)
                if writes:
                    self._stored(shadow, allocation, region, told)
                else:
                    self._loaded(shadow, allocation, region, told)

    # Atomics and signals

    def words(
        self, info: OpInfo, allocation: HostAllocation, keys: np.ndarray, offsets: np.ndarray, nbytes: int, modifiers: Words, *,
        reads: bool, writes: bool, failed: Any = None, threads: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Programs ``keys`` read, write or update the words at byte ``offsets``, one after the other; what has ``failed`` to
        compare has only read, and releases nothing. ``threads``: which of each program's does it; None: the first.

        ``modifiers``: how, with the words of TTIR or PTX; without any of an order, an update or volatile access is relaxed, and
        another one touches memory like all others do. Raises RaceError.
        """
        known = {"acq_rel", "acquire", "release", "relaxed"}.intersection(modifiers)
        if not known and not (reads and writes) and "volatile" not in modifiers:
            self._runs(info, allocation, keys, offsets, nbytes, writes=writes)
            return
        shadow = self._shadow(allocation)
        if shadow is None:
            return
        sem = next(iter(known), "relaxed")
        scope = next((each for each in modifiers if each in SCOPES), "gpu" if sem == "relaxed" else "sys")
        seen: set[tuple[int, int, bool]] = set()
        one_thread = info.row.atomic and not any(each.shape for each in info.operand_types)
        only_read = [False] * len(keys) if failed is None else failed.tolist()
        who = [0] * len(keys) if threads is None else threads.tolist()
        for key, offset, fails, thread in zip(keys.tolist(), offsets.tolist(), only_read, who, strict=True):
            if (key, offset, fails) in seen:
                continue  # threads of one program
            seen.add((key, offset, fails))
            strand = self._strand(key)
            if strand is None:
                continue
            told = self._access(strand, info, atomic=True)
            region = ByteRegion(offset, offset + nbytes)
            changes = writes and not fails
            undefined = shadow.undefined
            if undefined is not None and reads and writes and not undefined.zeros and "exch" not in modifiers:
                self._looked(shadow, region, told, "updates")
            if changes:
                shadow.write(told, region)
            else:
                shadow.read(told, region)
            if self._threads is not None and changes and one_thread and sem in ("release", "acq_rel"):
                self._threads.releases(strand)
            shadow.words.access(told, offset, sem=sem, scope=scope, reads=reads, writes=changes, thread=thread)

    def history(self, allocation: HostAllocation, offset: int) -> str:
        """The last writer of the word at a byte offset, for people; empty: not known."""
        shadow = self._shadow(allocation)
        return "" if shadow is None else shadow.history(offset)

    def _looked(self, shadow: Shadow, region: ByteRegion, access: MemoryAccess, does: str) -> None:
        """What a program does depends on what is there. Raises UndefinedMemoryError."""
        order = self._hosts.of_rank[access.strand.rank].order
        if order is not None:
            order.looked(shadow, region, access, does)

    def _stored(self, shadow: Shadow, allocation: HostAllocation, region: ByteRegion, access: MemoryAccess) -> None:
        """Elements are about to be stored."""
        if self._weak is not None:
            about_to_write(shadow, allocation.flat(torch.uint8), region).written(access)
        shadow.write(access, region)
        shadow.words.wipe(region.lo, region.hi)

    def _loaded(self, shadow: Shadow, allocation: HostAllocation, region: ByteRegion, access: MemoryAccess) -> None:
        """Elements are loaded. Raises UndefinedMemoryError if they are another rank's and it has written none of them."""
        undefined = shadow.undefined
        if (
            undefined is not None and undefined.through is None and undefined.origin.strand.rank != access.strand.rank
            and shadow.shared and not access.atomic and undefined.whole(region)
        ):  # fmt: skip
            self._looked(shadow, region, access, "reads")
        if shadow.earlier is not None and not access.atomic:
            readers = self._readers.setdefault(allocation.base, _Read(allocation, shadow, access, []))
            readers.by.append((region, (access.strand,)))
        shadow.read(access, region)

    def reading(self, read: Callable[[], Tensor | None]) -> Tensor | None:
        """Does the load that it has received: memory is as the programs see it."""
        readers, self._readers = self._readers, {}
        older = []
        for each in readers.values():
            may = each.shadow.older(each.by)
            if may and self._weak is not None:
                seen = self._weak.seen(each.access, may)
                older += [OlderView(each.allocation.flat(torch.uint8), each.shadow, one) for one in seen]
        if not older:
            return read()
        with as_before(older):
            found = read()
            return None if found is None else found.clone()  # it may be a view

    def fence(self, keys: np.ndarray, threads: np.ndarray | None = None) -> None:
        """Programs ``keys`` have come to a fence; ``threads``: which of each program's; None: all."""
        for key in np.unique(keys):
            strand = self._strand(int(key))
            if strand is not None:
                strand.fence(None if threads is None else set(threads[keys == key].tolist()))
