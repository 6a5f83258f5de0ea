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
def _ld(s: State, i: Instruction) -> None:
    if any(m.startswith("param") for m in i.modifiers):
        raise AssemblyError(f"inline assembly instruction is not supported: {i.text}")
    d, a = i.operands[:2]
    size = _bytes_of(i.type)
    address = s.address(a)
    s.watched = address
    for k, name in enumerate(s.names(d)):
        raw = s.memory.load(address + U64(k * size), size)
        if i.type[0] == "s" and size < 4:
            raw = decode(raw, i.type).astype(np.int32).view(np.uint32).astype(U64)
        s.assign(name, raw)


@instruction("st")
def _st(s: State, i: Instruction) -> None:
    a, value = i.operands[:2]
    size = _bytes_of(i.type)
    address = s.address(a)
    for k, name in enumerate(s.names(value)):
        s.memory.store(address + U64(k * size), s.raw(name), size)
    s.changed = True


def _update(
    s: State, i: Instruction, address: np.ndarray, operands: list[np.ndarray], kind: str, name: str
) -> np.ndarray:
    """Read-modify-write, one invocation after the other."""
    size = _bytes_of(kind)
    old = np.zeros(len(address), dtype=U64)
    for n in range(len(address)):
        at = address[n : n + 1]
        seen = s.memory.load(at, size)
        old[n] = seen[0]
        x = operands[0][n : n + 1]
        if name == "cas":
            new = operands[1][n : n + 1] if seen[0] == x[0] & U64((1 << (8 * size)) - 1) else seen
        elif name == "exch":
            new = x
        elif name == "inc":
            new = np.where(seen >= x, U64(0), seen + U64(1))
        elif name == "dec":
            new = np.where((seen == 0) | (seen > x), x, seen - U64(1))
        else:
            k = "u" + kind[1:] if kind[0] == "b" and name in ("add", "min", "max") else kind
            new = apply_packed(k, ARITHMETIC[name], seen, x)
        new = new & U64((1 << (8 * size)) - 1)
        if new[0] != seen[0]:
            s.memory.store(at, new, size)
            s.changed = True
    return old


@instruction("atom")
def _atom(s: State, i: Instruction) -> None:
    d, a, *rest = i.operands
    name = next(m for m in i.modifiers if m in _OPERATIONS)
    address = s.address(a)
    s.watched = address
    s.assign(d, _update(s, i, address, [s.raw(r) for r in rest], i.type, name))


@instruction("red")
def _red(s: State, i: Instruction) -> None:
    a, *rest = i.operands
    name = next(m for m in i.modifiers if m in _OPERATIONS)
    address = s.address(a)
    size = _bytes_of(i.type)
    for k, n in enumerate(s.names(rest[0])):
        _update(s, i, address + U64(k * size), [s.raw(n)], i.type, name)


@instruction("multimem")
def _multimem(s: State, i: Instruction) -> None:
    """Accesses to all buffers of a multicast group by one address: the switch reduces what it loads, and multiplies what it
    stores. It reduces in the order of the buffers, with ``acc::f32`` in single precision until the end."""
    address_of = i.operands[1 if "ld_reduce" in i.modifiers else 0]
    size = _bytes_of(i.type)
    everywhere = s.memory.everywhere(s.address(address_of))
    if "ld_reduce" in i.modifiers:
        s.watched = everywhere[0]
        f = ARITHMETIC[next(m for m in i.modifiers if m in _OPERATIONS)]
        for k, name in enumerate(s.names(i.operands[0])):
            loaded = [s.memory.load(address + U64(k * size), size) for address in everywhere]
            s.assign(name, _reduced(i.type, f, loaded, wide="acc" in i.modifiers))
        return
    values = s.names(i.operands[1])
    if "st" in i.modifiers:
        for k, name in enumerate(values):
            for address in everywhere:
                s.memory.store(address + U64(k * size), s.raw(name), size)
        s.changed = True
    elif "red" in i.modifiers:
        operation = next(m for m in i.modifiers if m in _OPERATIONS)
        for k, name in enumerate(values):
            for address in everywhere:
                _update(s, i, address + U64(k * size), [s.raw(name)], i.type, operation)
    else:
        raise AssemblyError(f"inline assembly instruction is not supported: {i.text}")


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
