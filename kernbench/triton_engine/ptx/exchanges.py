"""What the threads of a warp tell each other: shuffles and votes, among the threads that execute the instruction."""

from __future__ import annotations

import numpy as np

from .numbers import U64
from .parse import AssemblyError, Instruction
from .state import State
from .table import instruction


def _warps(state: State, instr: Instruction) -> tuple[np.ndarray, np.ndarray]:
    """The warp of each thread that executes the instruction, as 0, 1, ..., and its place in the warp.

    Raises:
        AssemblyError: invocations are elements of a tile, and which thread has which is not known.
    """
    if state.frame.warps is None:
        raise AssemblyError(f"inline assembly of a tile cannot talk to other threads: {instr.text}")
    _, warp = np.unique(state.frame.warps[state.mask], return_inverse=True)
    return warp, state.raw("%laneid").astype(np.int64)


def _table(warp: np.ndarray, lane: np.ndarray, values: np.ndarray, default: int) -> np.ndarray:
    """``[warps, 64]``: what each thread of each warp brings, ``default`` where there is none."""
    out = np.full((int(warp.max(initial=-1)) + 1, 64), default, dtype=values.dtype)
    out[warp, lane] = values
    return out


@instruction("shfl")
def _shfl(state: State, instr: Instruction) -> None:
    """PTX ISA, ``shfl.sync``: ``c`` holds the last lane (bits 0 to 4) and the mask of segments (bits 8 to 12)."""
    d, a, b, c = instr.operands[:4]
    warp, lane = _warps(state, instr)
    by, limits = state.raw(b).astype(np.int64) & 31, state.raw(c).astype(np.int64)
    segments = limits >> 8 & 31
    last = (lane & segments) | (limits & 31 & ~segments)
    mode = next(m for m in instr.modifiers if m in ("up", "down", "bfly", "idx"))
    source = {
        "up": lane - by,
        "down": lane + by,
        "bfly": lane ^ by,
        "idx": (lane & segments) | (by & ~segments),
    }[mode]
    inside = source >= last if mode == "up" else source <= last
    source = np.where(inside, source, lane)
    raw = state.raw(a)
    there = _table(warp, lane, np.ones(len(lane), dtype=bool), False)[warp, source]
    found = _table(warp, lane, raw, 0)[warp, source]
    target, _, predicate = d.partition("|")
    state.assign(target, np.where(there, found, raw))  # from a thread that is not here: undefined
    if predicate:
        state.assign(predicate, inside.astype(U64))


@instruction("vote")
def _vote(state: State, instr: Instruction) -> None:
    d, a = instr.operands[:2]
    warp, lane = _warps(state, instr)
    holds = state.value(a, "pred").astype(bool)
    yes = _table(warp, lane, holds, False)
    no = _table(warp, lane, ~holds, False)
    if "ballot" in instr.modifiers:
        state.assign(d, (yes.astype(U64) << np.arange(64, dtype=U64)).sum(1, dtype=U64)[warp])
        return
    kind = next(m for m in instr.modifiers if m in ("any", "all", "uni"))
    out = yes.any(1) if kind == "any" else ~no.any(1)
    if kind == "uni":
        out = out | ~yes.any(1)
    state.assign(d, np.asarray(out)[warp].astype(U64))


@instruction("activemask")
def _activemask(state: State, instr: Instruction) -> None:
    warp, lane = _warps(state, instr)
    here = _table(warp, lane, np.ones(len(lane), dtype=bool), False)
    state.assign(instr.operands[0], (here.astype(U64) << np.arange(64, dtype=U64)).sum(1, dtype=U64)[warp])
