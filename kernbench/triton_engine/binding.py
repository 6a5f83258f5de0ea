"""Launches bound to memory: arguments, the allocations under them, addresses, and what is moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import MemoryAccessError

from .affine import aff_add
from .contention import UpdateCounter
from .counts import Counts, TensorTraffic
from .frontend.program import OpInfo, Program
from .lanes import Lanes
from .memory import AllocationMap, Checks, HostAllocation, allocation_of, find_live, registry
from .ops.registry import UnsupportedOpError
from .shares import Shares
from .signals import MOST_BYTES, WORD, Party, may_signal
from .values import Affine, Desc, Ptr, dense_int, exact_bounds, from_lane_array, host_descriptor, wrap

_KEPT_PRODUCTS = 64
_NULL = HostAllocation(torch.empty(0), "null pointer")


@dataclass
class Launch:
    """One ``kernel[grid](...)``: what to run, for which rank, and where the user asked for it.

    ``args`` are the run-time arguments in the order of the program's arguments: numbers, tensors (anything with
    ``data_ptr``), tensor descriptors.
    """

    program: Program
    grid: tuple[int, int, int]
    args: Sequence[Any]
    rank: int | None = None
    name: str = ""
    where: str = ""
    arg_names: Sequence[str] = ()
    kernel: Any = None
    counts: Counts | None = None
    blind: bool = False
    """Whether what its tensors hold was not computed: a kernel that goes by it is not to blame."""
    assumed: Sequence[torch.Tensor] = ()
    """Tensors that it may write to whose values are assumed from now on."""
    cold: bool = False
    """Whether it finds nothing of its own in the caches."""
    in_graph: bool = False
    """Whether it belongs to the replay of a captured graph."""
    moment: Any = None
    """Its end in the order of events, if that is watched."""


@dataclass
class RankRoots:
    """One pointer argument of several ranks: each rank's allocation and byte offset, and what holds for all of them.

    An access from byte ``least`` up to byte ``most`` relative to the pointer is inside every rank's allocation.
    """

    root: int
    order: tuple[int, ...]
    bases: list[tuple[HostAllocation, int]]
    least: int
    most: int
    aligned: bool
    item: int

    _flats: dict[torch.dtype, list[tuple[Tensor, int]]] = field(default_factory=dict)

    def memory(self, dtype: torch.dtype) -> list[tuple[Tensor, int]]:
        """Every rank's allocation as a flat tensor of ``dtype``, and the element that its pointer points to."""
        found = self._flats.get(dtype)
        if found is None:
            found = self._flats[dtype] = [(a.flat(dtype), start // self.item) for a, start in self.bases]
        return found


Snapshot = tuple[dict[int, int], list[dict[int, TensorTraffic]]]
"""Bytes by operation, and what :meth:`Binding.traffic` gives."""


class Binding:
    """The launches of an execution, their arguments as values, and memory as their lanes see it.

    Args:
        launches: of one program on one grid, by rank.
        memory: where their pointers point; None: all that is registered.
        dry: no value is computed: accesses are found and checked.
        wave: program ids of the wave that is sampled, of which floats are not read; None: everything is run.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        memory: AllocationMap | None,
        *,
        dry: bool = False,
        wave: range | None = None,
    ) -> None:
        first = launches[0]
        self.launches = launches
        self.program: Program = first.program
        self.grid = first.grid
        if any(launch.program is not self.program or launch.grid != self.grid for launch in launches):
            raise ValueError("launches of one batch must be of one compiled kernel and one grid")
        self.n_ranks = len(launches)
        self.programs = prod(self.grid)
        self.memory: AllocationMap = memory if memory is not None else registry
        self.dry = dry
        self.wave = wave
        #: Distinct bytes that the wave has read so far.
        self.distinct = 0
        #: Of the wave's loads of tiles, which of the last two dimensions lies in rows of memory.
        self.contiguous: dict[int, int] = {}
        #: Whether what tensors of a launch hold was not computed (:attr:`Launch.blind`).
        self.blind = any(launch.blind for launch in launches)
        #: Per pointer argument: allocation and byte offset of each launch's pointer.
        self.roots: dict[int, list[tuple[HostAllocation, int]]] = {}
        #: Bytes moved, for each launch by base address of the allocation, and by operation.
        self._traffic: list[dict[int, TensorTraffic]] = [{} for _ in launches]
        self.bytes: dict[int, int] = {}
        #: Elements that each launch updated atomically.
        self.atomics = [0] * len(launches)
        #: Where they go, of each launch; None where it is not looked at.
        self.updates: list[UpdateCounter | None] = [None] * len(launches)
        self._known: dict[int, HostAllocation] = {}
        #: What readers of its signals see; None where there is no reader.
        self.party: Party | None = None
        #: Receives every access, if there is a listener.
        self.checks: Checks | None = None
        #: By identity of the array, which is held so that nothing else gets its place.
        self._scaled: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._rank_roots: dict[tuple[int, tuple[int, ...], int], RankRoots] = {}
        #: What all ranks moved alike, not yet in ``traffic``: instruction, roots, bytes of each rank, range of offsets.
        self._alike: dict[tuple[int, int, tuple[int, ...]], tuple[OpInfo, RankRoots, list[int]]] = {}

    def bind(self) -> tuple[list[Any], tuple[Any, ...], list[tuple[int, list[Any]]]]:
        """Slots with constants and arguments, the key of the lane grid, and the arguments that differ between ranks."""
        program = self.program
        env: list[Any] = [None] * program.n_slots
        for slot, value in program.constants.items():
            env[slot] = value
        key: list[Any] = [self.grid, self.n_ranks > 1 and self.n_ranks]
        keyed = set(program.key_args)
        lane_args: list[tuple[int, list[Any]]] = []
        for i, (slot, ty) in enumerate(program.args):
            values = [launch.args[i] for launch in self.launches]
            if ty.is_ptr:
                self.roots[i] = [self._root(v, i, r) for r, v in enumerate(values)]
                env[slot] = Ptr(i, 0)
            elif ty.elem == "desc":
                self.roots[i] = [self._root(v.base, i, r) for r, v in enumerate(values)]
                env[slot] = self._descriptor([host_descriptor(v, i, ty.pointee) for v in values])
            elif ty.is_int:
                ints = [bool(v) if ty.elem == "i1" else wrap(int(v), ty.bits) for v in values]
                if i in keyed:
                    key.append(tuple(ints))
                if len(set(ints)) > 1:
                    lane_args.append((slot, ints))
                env[slot] = ints[0]
            else:
                floats = [
                    float(torch.tensor(float(v), dtype=torch.float64).to(ty.dtype))
                    if ty.elem != "f32"
                    else float(np.float32(v))
                    for v in values
                ]
                if len({repr(v) for v in floats}) > 1:
                    lane_args.append((slot, floats))
                env[slot] = floats[0]
        return env, tuple(key), lane_args

    def _descriptor(self, of_ranks: Sequence[Desc]) -> Desc:
        """The descriptor of all ranks: shapes and strides are arguments of their own, the rest is one for all of them."""
        first = of_ranks[0]
        if len({(d.block, repr(d.padding), d.tf32) for d in of_ranks}) > 1:
            raise UnsupportedOpError(
                f"kernel {self.program.name}: ranks that launch it together give tensor descriptors of other block shapes, "
                "padding or round_f32_to_tf32: give all of them the same"
            )
        return first

    def _root(self, value: Any, arg: int, rank: int) -> tuple[HostAllocation, int]:
        if isinstance(value, Tensor):
            tensor = value
            launch = self.launches[rank]
            name = launch.arg_names[arg] if arg < len(launch.arg_names) else f"argument {arg}"
            allocation = allocation_of(tensor, name, launch.rank)
            allocation = self._known.setdefault(allocation.base, allocation)
            allocation.words = self.memory.words(allocation.base)
            return allocation, tensor.data_ptr() - allocation.base
        address = value if isinstance(value, int) else value.data_ptr()
        inner = getattr(value, "base", None)  # triton's TensorWrapper (reinterpret)
        if isinstance(inner, Tensor):
            return self._root(inner, arg, rank)
        if address == 0:
            return _NULL, 0
        found = self.find(address)
        if found is None:
            raise MemoryAccessError(
                f"kernel {self.program.name}: argument {arg} points to {address:#x}, which belongs to no live tensor"
            )
        return found, address - found.base

    # Memory services for operations

    def scaled(self, arr: np.ndarray, factor: int) -> np.ndarray:
        """``arr * factor``; the same array again for the same operands, so that what was made of it can be kept."""
        key = (id(arr), factor)
        found = self._scaled.get(key)
        if found is None:
            if len(self._scaled) >= _KEPT_PRODUCTS:
                self._scaled.clear()
            found = self._scaled[key] = (arr, arr * factor)
        return found[1]

    def find(self, address: int) -> HostAllocation | None:
        """The allocation that an address is in."""
        for allocation in self._known.values():
            if allocation.base <= address < allocation.base + allocation.nbytes:
                return allocation
        found = self.memory.find(address)
        if found is None and self.memory is not registry:
            found = registry.find(address)
        if found is None:
            found = find_live(address)
        if found is not None:
            self._known[found.base] = found
        return found

    def offsets(self, lanes: Lanes, p: Ptr, tile: tuple[int, ...]) -> Tensor:
        """Byte offsets from the root as an int64 tensor broadcastable to lanes + tile."""
        off = dense_int(p.offset, lanes.lanes, tile, torch.int64)
        if not isinstance(off, Tensor):
            off = torch.full((1,) * (len(lanes.lanes) + len(tile)), off, dtype=torch.int64)
        return off if p.scattered is None else off + p.scattered

    def addresses(self, lanes: Lanes, p: Ptr, tile: tuple[int, ...]) -> Tensor:
        """Absolute byte addresses, as :meth:`offsets`."""
        out = self.offsets(lanes, p, tile)
        if p.root is None:
            return out
        bases = self.roots[p.root]
        if lanes.rank_index is None:
            allocation, start = bases[lanes.rank]
            return out + (allocation.base + start)
        base = np.array([a.base + s for a, s in bases], dtype=np.int64)[lanes.rank_index]
        return out + torch.from_numpy(base).reshape(base.shape + (1,) * len(tile))

    def absolute(self, lanes: Lanes, p: Ptr, tile: tuple[int, ...]) -> Ptr:
        """The same pointers without a root, as lanes need whose pointers come from different arguments."""
        if p.root is None:
            return p
        bases = [a.base + start for a, start in self.roots[p.root]]
        if lanes.rank_index is None:
            return Ptr(None, aff_add(p.offset, bases[lanes.rank]), p.scattered)
        base = from_lane_array(np.array(bases, dtype=np.int64)[lanes.rank_index], len(tile))
        return Ptr(None, aff_add(p.offset, base), p.scattered)

    def whole_in_bounds(self, lanes: Lanes, p: Ptr, tile: tuple[int, ...], item: int) -> bool:
        """True if every element of an affine access, masked or not, lies inside one allocation."""
        off = p.offset
        lo, hi = exact_bounds(off, lanes.lanes, tile) if type(off) is Affine else (off, off)
        if p.root is None:
            allocation = self.find(lo)
            return allocation is not None and hi + item <= allocation.base + allocation.nbytes
        ranks = [lanes.rank] if lanes.rank_index is None else range(self.n_ranks)
        for r in ranks:
            allocation, start = self.roots[p.root][r]
            if lo + start < 0 or hi + start + item > allocation.nbytes:
                return False
        return True

    def touch(
        self, info: OpInfo, allocation: HostAllocation, shares: Shares, low: int, high: int, *, signals: bool = True
    ) -> None:
        """Account for bytes, by launch, moved between byte offsets ``low`` and ``high`` of an allocation.

        ``signals``: every word in between may be one; else the caller says which are (:meth:`signal`).
        """
        for launch, nbytes in shares.items():
            by_base = self._traffic[launch]
            t = by_base.get(allocation.base)
            if t is None:
                t = by_base[allocation.base] = TensorTraffic(allocation.name)
            if info.result_types:
                t.read += nbytes
                if low < t.read_low:
                    t.read_low = low
                if high > t.read_high:
                    t.read_high = high
            if not info.result_types or info.row.atomic:
                t.written += nbytes
                if low < t.write_low:
                    t.write_low = low
                if high > t.write_high:
                    t.write_high = high
            self.bytes[info.index] = self.bytes.get(info.index, 0) + nbytes
        if signals and allocation.words is not None and high - low <= MOST_BYTES and may_signal(info):
            self.signal(allocation, range(low - low % WORD, high, WORD), not info.result_types)

    def signal(self, allocation: HostAllocation, offsets: Iterable[int], wrote: bool) -> None:
        """Note that lanes have read words of shared memory, or (``wrote``) changed them."""
        if allocation.words is not None and self.party is not None:
            (allocation.words.write if wrote else allocation.words.read)(self.party, offsets)

    def rank_roots(self, root: int, order: tuple[int, ...], item: int) -> RankRoots:
        """Argument ``root`` of the ranks ``order``, for accesses of ``item`` bytes."""
        found = self._rank_roots.get((root, order, item))
        if found is None:
            bases = [self.roots[root][r] for r in order]
            found = RankRoots(
                root,
                order,
                bases,
                max(-start for _, start in bases),
                min(allocation.nbytes - start for allocation, start in bases),
                all(start % item == 0 for _, start in bases),
                item,
            )
            self._rank_roots[root, order, item] = found
        return found

    def touch_alike(self, info: OpInfo, roots: RankRoots, nbytes: int, low: int, high: int) -> None:
        """``nbytes`` moved by each launch of ``roots`` in its own allocation; offsets are relative to the pointers."""
        key = (info.index, roots.root, roots.order)
        entry = self._alike.get(key)
        if entry is None:
            self._alike[key] = (info, roots, [nbytes, low, high])
            return
        moved = entry[2]
        moved[0] += nbytes
        if low < moved[1]:
            moved[1] = low
        if high > moved[2]:
            moved[2] = high

    def traffic(self) -> list[dict[int, TensorTraffic]]:
        """Bytes moved, for each launch by base address of the allocation."""
        for info, roots, (nbytes, low, high) in self._alike.values():
            for launch, (allocation, start) in zip(roots.order, roots.bases, strict=True):
                self.touch(info, allocation, {launch: nbytes}, low + start, high + start)
        self._alike.clear()
        return self._traffic

    def snapshot_counts(self) -> Snapshot:
        """What has been counted so far, for :meth:`restore_counts`."""
        return dict(self.bytes), [
            {base: copy(traffic) for base, traffic in by_base.items()} for by_base in self.traffic()
        ]

    def restore_counts(self, saved: Snapshot) -> None:
        """Count from there again."""
        self._alike.clear()
        self.bytes, self._traffic = saved

    def program_of(self, linear: int) -> tuple[int, int, int]:
        """Program id of the program with this number."""
        return program_of(linear, self.grid)


def program_of(linear: int, grid: Sequence[int]) -> tuple[int, int, int]:
    """Program id of the program with this number in a grid."""
    gx, gy = grid[:2]
    return linear % gx, linear // gx % gy, linear // (gx * gy)
