"""Where the atomic updates of a launch go: what they wait for one another (:mod:`kernbench.cost.contention`).

A tile's elements are dealt out as compiled code deals them: a thread has as many neighbours as fill 16 bytes where their
addresses are neighbours too, a warp's instruction one element of each of its threads, or all of them where floats are updated
as vectors.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from kernbench.cost.contention import PLACE, SECTOR, Contention, turn_clocks, visit_clocks, way_clocks

from .frontend.program import OpInfo
from .memory import HostAllocation

_MOST = 1 << 18  # elements of one access that are sampled; of more, those of programs at even distances
_MOST_WORDS = 1 << 22  # of an allocation whose words are distinguished
_RUN = 16  # elements that are known to be neighbours where any are: arguments are known to be multiples of as many
_VECTOR = 16  # bytes that a thread has next to one another
_AT_ONCE = 128  # bytes of a vector instruction that the cache sees together
_SCATTER = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)  # odd: their multiples, folded, fall as random numbers do


class _Updates:
    """Updates by one instruction in one allocation: clocks by place, numbers by word."""

    def __init__(self, allocation: HostAllocation, item: int, floating: bool) -> None:
        words = -(-allocation.nbytes // item)
        self.floating = floating
        self.number = 0.0
        self.way = 0.0
        self.places = np.zeros(-(-allocation.nbytes // PLACE))
        self.words = np.zeros(words if words <= _MOST_WORDS else 0)
        self.touched: dict[int, set[int]] = {}
        """Places by program, of the first two programs."""

    def contention(self, factor: float) -> Contention:
        """Of all programs of which what was added is one in ``factor``.

        Where programs update the same places, all do; else the launch goes through all that there is, evenly.
        """
        total, turn = float(self.places.sum()) * factor, turn_clocks(self.floating)
        way = self.way * factor
        busiest, hottest = float(self.places.max()), float(self.words.max(initial=0.0)) * turn
        if factor > 1 and self._apart():
            spread = self.number * factor * turn / max(self.words.size, 1) if self.words.size else 0.0
            return Contention(way, max(busiest, total / self.places.size), max(hottest, spread))
        return Contention(way, busiest * factor, hottest * factor)

    def _apart(self) -> bool:
        if len(self.touched) < 2:
            return False
        one, other = self.touched.values()
        return 2 * len(one & other) < min(len(one), len(other))


class UpdateCounter:
    """Counts the updates of one launch by some of its instructions.

    Args:
        which: their numbers.
        scattered: their addresses depend on values that are not there, and are taken to be spread evenly over what is updated.
    """

    def __init__(self, which: frozenset[int], scattered: bool) -> None:
        self._which = which
        self._scattered = scattered
        self._updates: dict[tuple[int, int], _Updates] = {}
        self._seen = 0

    def note(
        self, info: OpInfo, allocation: HostAllocation, index: np.ndarray, lanes: np.ndarray, within: np.ndarray,
        elements: int,
    ) -> None:  # fmt: skip
        """Elements ``index`` of an allocation are updated: those ``within`` the tiles, of so many ``elements``, of programs
        ``lanes``."""
        if info.index not in self._which or not index.size:
            return
        ty = info.operand_types[1]
        key = (info.index, allocation.base)
        found = self._updates.get(key)
        if found is None:
            found = self._updates[key] = _Updates(allocation, ty.itemsize, not ty.is_int)
        step = -(-index.size // _MOST)
        weight = 1.0
        if step > 1:
            some = lanes % step == 0
            if some.any():
                weight = index.size / int(some.sum())
                index, lanes, within = index[some], lanes[some], within[some]
        if self._scattered:
            words = allocation.nbytes // ty.itemsize
            index = _scattered(self._seen, index.size, words)
            self._seen += index.size
        for lane in np.unique(lanes)[:2].tolist():
            if len(found.touched) < 2 or lane in found.touched:
                there = np.unique(index[lanes == lane] * ty.itemsize // PLACE)
                found.touched.setdefault(lane, set()).update(there.tolist())
        group = lanes * elements + _instructions(info, index, within, elements)
        if info.uniform and ty.is_int and ty.itemsize == 4:  # the compiler adds up what a warp has for one word
            group, first = np.unique(group, return_index=True)
            index = index[first]
        found.number += index.size * weight
        if found.words.size:
            found.words += weight * np.bincount(index, minlength=found.words.size)
        sectors, clocks, nbytes = _visits(group, index, ty.itemsize, found.floating)
        found.way += weight * float(way_clocks(nbytes).sum())
        at = sectors * SECTOR // PLACE
        found.places += weight * np.bincount(at, weights=clocks, minlength=found.places.size)

    def contention(self, factor: float) -> Contention | None:
        """Of all programs, of which those that were counted are one in ``factor``; None: there were no updates."""
        out: Contention | None = None
        for updates in self._updates.values():
            one = updates.contention(factor)
            out = one if out is None else out.beside(one)
        return out


def _instructions(info: OpInfo, index: np.ndarray, within: np.ndarray, elements: int) -> np.ndarray:
    """By which of a program's instructions, or part of one that the cache sees together, each element is updated."""
    ty = info.operand_types[1]
    have = 1
    if elements >= _RUN and _neighbours(index, within):
        have = max(1, min(_VECTOR // ty.itemsize, elements // info.threads))
    thread, turn = within // have % info.threads, within // (have * info.threads)
    if have > 1 and not ty.is_int and ty.itemsize <= 4:
        lanes = _AT_ONCE // (have * ty.itemsize)
        return turn * info.threads + thread // lanes
    warps = -(-info.threads // info.warp_size)
    out: np.ndarray = ((turn * warps) + thread // info.warp_size) * have + within % have
    return out


def _scattered(begin: int, number: int, words: int) -> np.ndarray:
    """``number`` of a sequence that goes to all ``words`` alike, from its ``begin``-th on; always the same."""
    found = np.arange(begin, begin + number, dtype=np.uint64)
    for factor in _SCATTER:
        found = found * np.uint64(factor)
        found ^= found >> np.uint64(31)
    out: np.ndarray = ((found >> np.uint64(32)) * np.uint64(words) >> np.uint64(32)).astype(np.int64)
    return out


def _neighbours(index: np.ndarray, within: np.ndarray) -> bool:
    """Whether each run of elements of a tile is a run of elements of memory, as far as they are updated."""
    steps = (np.diff(index) == 1) | (within[1:] % _RUN == 0) | (np.diff(within) != 1)
    starts = index[within % _RUN == 0]
    return bool(steps.all()) and not bool((starts % (_VECTOR // 4)).any())


def _visits(
    group: np.ndarray, index: np.ndarray, item: int, floating: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sectors that each instruction visits, the clocks that they take, and the bytes that are updated there."""
    words = int(index.max()) + 1
    keys, turns = np.unique(group * words + index, return_counts=True)
    sectors = keys % words * item // SECTOR
    instruction = keys // words
    begins = np.flatnonzero(np.r_[True, (np.diff(sectors) != 0) | (np.diff(instruction) != 0)])
    nbytes = np.diff(np.append(begins, sectors.size)) * item
    return sectors[begins], visit_clocks(np.maximum.reduceat(turns, begins), floating), nbytes


def note_updates(
    batch: Any, info: OpInfo, allocation: HostAllocation, index: np.ndarray, keep: np.ndarray | None
) -> None:
    """Tell the launches of a batch that they update ``index``, at the places ``keep`` of all lanes' tiles (None: all)."""
    counters = batch.execution.updates
    if not any(counters):
        return
    elements = max(prod(info.operand_types[1].shape), 1)
    places = np.arange(index.size) if keep is None else keep
    lanes, within = batch.program_keys()[places // elements], places % elements
    if batch.rank_index is None:
        if counters[batch.rank] is not None:
            counters[batch.rank].note(info, allocation, index, lanes, within, elements)
        return
    launches = np.broadcast_to(batch.rank_index, batch.lanes).reshape(-1)[places // elements]
    for launch in np.unique(launches).tolist():
        if counters[launch] is not None:
            mine = launches == launch
            counters[launch].note(info, allocation, index[mine], lanes[mine], within[mine], elements)
