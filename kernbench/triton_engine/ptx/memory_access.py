"""Loads, stores and atomics."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from .arithmetic import ARITHMETIC, apply_packed
from .numbers import U64, decode, encode, width
from .parse import AssemblyError, Instruction
from .state import State
from .table import instruction

_OPERATIONS = ("cas", "exch", "add", "inc", "dec", "min", "max", "and", "or", "xor")


def _bytes_of(kind: str) -> int:
    """Bytes that a number of a type takes in memory."""
    return max(width(kind) // 8, 1)


@instruction("ld")
def _ld(state: State, instr: Instruction) -> None:
    if any(m.startswith("param") for m in instr.modifiers):
        raise AssemblyError(f"inline assembly instruction is not supported: {instr.text}")
    d, a = instr.operands[:2]
    size = _bytes_of(instr.type)
    address = state.address(a)
    state.watched = address
    names = state.names(d)
    state.memory.accessed(address, size * len(names), instr.modifiers, state, "r")
    for k, name in enumerate(names):
        raw = state.memory.load(address + U64(k * size), size)
        if instr.type[0] == "s" and size < 4:
            raw = decode(raw, instr.type).astype(np.int32).view(np.uint32).astype(U64)
        state.assign(name, raw)


@instruction("st")
def _st(state: State, instr: Instruction) -> None:
    a, value = instr.operands[:2]
    size = _bytes_of(instr.type)
    address = state.address(a)
    names = state.names(value)
    state.memory.accessed(address, size * len(names), instr.modifiers, state, "w")
    for k, name in enumerate(names):
        state.memory.store(address + U64(k * size), state.raw(name), size)
    state.changed = True


def _operation(instr: Instruction) -> str:
    return next(m for m in instr.modifiers if m in _OPERATIONS)


def _swap(state: State, size: int, address: np.ndarray, expected: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Compare-and-swap, one invocation after the other at each word: in the steps that change it."""
    old = np.zeros(len(address), dtype=U64)
    changes = expected != wanted
    for place in np.unique(address):
        left = np.flatnonzero(address == place)
        at = address[left[:1]]
        seen = state.memory.load(at, size, len(left))
        while len(left):
            old[left] = seen
            hits = np.flatnonzero((expected[left] == seen) & changes[left])
            if not len(hits):
                break
            seen = wanted[left[hits[:1]]]
            left = left[hits[0] + 1 :]
            state.memory.store(at, seen, size)
            state.changed = True
    return old


def _update(state: State, instr: Instruction, address: np.ndarray, operands: list[np.ndarray]) -> np.ndarray:
    """Read-modify-write, one invocation after the other."""
    kind, name = instr.type, _operation(instr)
    size = _bytes_of(kind)
    mask = U64((1 << (8 * size)) - 1)
    if name == "cas":
        return _swap(state, size, address, operands[0] & mask, operands[1] & mask)
    old = np.zeros(len(address), dtype=U64)
    for n in range(len(address)):
        at = address[n : n + 1]
        seen = state.memory.load(at, size)
        old[n] = seen[0]
        x = operands[0][n : n + 1]
        if name == "exch":
            new = x
        elif name == "inc":
            new = np.where(seen >= x, U64(0), seen + U64(1))
        elif name == "dec":
            new = np.where((seen == 0) | (seen > x), x, seen - U64(1))
        else:
            k = "u" + kind[1:] if kind[0] == "b" and name in ("add", "min", "max") else kind
            new = apply_packed(k, ARITHMETIC[name], seen, x)
        new = new & mask
        if new[0] != seen[0]:
            state.memory.store(at, new, size)
            state.changed = True
    return old


@instruction("atom")
def _atom(state: State, instr: Instruction) -> None:
    d, a, *rest = instr.operands
    address = state.address(a)
    state.watched = address
    operands, size = [state.raw(r) for r in rest], _bytes_of(instr.type)
    old, failed = _update(state, instr, address, operands), None
    if _operation(instr) == "cas":
        failed = old != operands[0] & U64((1 << (8 * size)) - 1)
    state.memory.accessed(address, size, instr.modifiers, state, "rw", failed)
    state.assign(d, old)


@instruction("red")
def _red(state: State, instr: Instruction) -> None:
    a, *rest = instr.operands
    address = state.address(a)
    size = _bytes_of(instr.type)
    names = state.names(rest[0])
    state.memory.accessed(address, size * len(names), instr.modifiers, state, "rw")
    for k, n in enumerate(names):
        _update(state, instr, address + U64(k * size), [state.raw(n)])


@instruction("multimem")
def _multimem(state: State, instr: Instruction) -> None:
    """Accesses to all buffers of a multicast group by one address: the switch reduces what it loads, and multiplies what it
    stores. It reduces in the order of the buffers, with ``acc::f32`` in single precision until the end."""
    address_of = instr.operands[1 if "ld_reduce" in instr.modifiers else 0]
    size = _bytes_of(instr.type)
    everywhere = state.memory.everywhere(state.address(address_of))
    if "ld_reduce" in instr.modifiers:
        state.watched = everywhere[0]
        f = ARITHMETIC[_operation(instr)]
        for k, name in enumerate(state.names(instr.operands[0])):
            loaded = [state.memory.load(address + U64(k * size), size) for address in everywhere]
            state.assign(name, _reduced(instr.type, f, loaded, wide="acc" in instr.modifiers))
        return
    values = state.names(instr.operands[1])
    if "st" in instr.modifiers:
        for k, name in enumerate(values):
            for address in everywhere:
                state.memory.store(address + U64(k * size), state.raw(name), size)
        state.changed = True
    elif "red" in instr.modifiers:
        for k, name in enumerate(values):
            for address in everywhere:
                _update(state, instr, address + U64(k * size), [state.raw(name)])
    else:
        raise AssemblyError(f"inline assembly instruction is not supported: {instr.text}")


def _reduced(kind: str, f: Callable[..., np.ndarray], raws: list[np.ndarray], *, wide: bool) -> np.ndarray:
    """Numbers of a type (or both halves of packed ones) folded from the first to the last."""
    if not wide or not kind.endswith("x2"):
        out = raws[0]
        if wide and kind in ("f16", "bf16"):
            return encode(functools.reduce(f, [decode(raw, kind) for raw in raws]), kind)
        for raw in raws[1:]:
            out = apply_packed(kind, f, out, raw)
        return out
    half = kind.removesuffix("x2")
    low, high = (
        encode(functools.reduce(f, [decode((raw >> U64(shift)) & U64(0xFFFF), half) for raw in raws]), half)
        for shift in (0, 16)
    )
    return low | (high << U64(16))
