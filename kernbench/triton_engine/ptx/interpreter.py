"""Executes parsed PTX on arrays: one element per invocation, 64 bits per register.

Invocations that take different branches are told apart by their program counters; the lowest runs first. When every
invocation that is left spins on memory that nobody has changed, :class:`Stuck` carries the state out, and ``run``
continues from it later.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from .parse import NO_EFFECT, Assembly, AssemblyError, Instruction

U64 = np.uint64


class Memory(Protocol):
    """Loads, stores and updates by absolute address; addresses are uint64 arrays."""

    def load(self, address: np.ndarray, nbytes: int) -> np.ndarray: ...

    def store(self, address: np.ndarray, value: np.ndarray, nbytes: int) -> None: ...


@dataclass
class Frame:
    """The state of ``n`` invocations: registers by name, program counters (``-1`` or past the end: finished)."""

    n: int
    registers: dict[str, np.ndarray]
    pc: np.ndarray
    specials: dict[str, np.ndarray | int] = field(default_factory=dict)

    def select(self, keep: np.ndarray) -> Frame:
        return Frame(
            int(keep.sum()),
            {k: v[keep] for k, v in self.registers.items()},
            self.pc[keep],
            {k: v[keep] if isinstance(v, np.ndarray) else v for k, v in self.specials.items()},
        )


class Stuck(Exception):
    """Every unfinished invocation waits for memory to change. ``frame`` is where to go on."""

    def __init__(self, frame: Frame, end: int, address: np.ndarray | None = None) -> None:
        super().__init__("waiting for memory")
        self.frame = frame
        self.end = end
        self.address = address


_BITS = re.compile(r"\d+")


def width(kind: str) -> int:
    """Bits of a type."""
    if kind.endswith("x2"):
        return 32
    match = _BITS.search(kind)
    return int(match[0]) if match else 1


_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def decode(raw: np.ndarray, kind: str) -> np.ndarray:
    """Registers (uint64) as numbers of a type. fp16 and bf16 become float32 (exact)."""
    bits = width(kind)
    if kind == "pred":
        return raw != 0
    low = raw.astype(_UNSIGNED[bits])
    if kind == "bf16":
        return (low.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "f16":
        return low.view(np.float16).astype(np.float32)
    if kind[0] == "f":
        return low.view(np.float32 if bits == 32 else np.float64)
    return low.view(_SIGNED[bits]) if kind[0] == "s" else low


def encode(value: np.ndarray, kind: str) -> np.ndarray:
    """Numbers of a type as registers."""
    if kind == "pred":
        return np.asarray(value).astype(U64)
    if kind == "bf16":
        t = torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32)).to(torch.bfloat16)
        return t.view(torch.int16).numpy().view(np.uint16).astype(U64)
    if kind == "f16":
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(np.float16).view(np.uint16).astype(U64)
    bits = width(kind)
    if kind[0] == "f":
        out = np.ascontiguousarray(value, dtype=np.float32 if bits == 32 else np.float64)
        return out.view(_UNSIGNED[bits]).astype(U64)
    return (
        np.asarray(value).astype(_SIGNED[bits] if kind[0] == "s" else _UNSIGNED[bits]).view(_UNSIGNED[bits]).astype(U64)
    )


def _trunc_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return a // safe
    q = np.floor_divide(a, safe)
    return q + (((a - q * safe) != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)


def _shift(f: Callable[[Any, Any], Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        bits = a.dtype.itemsize * 8
        count = np.minimum(b.astype(np.uint64), np.uint64(bits - 1)).astype(a.dtype)
        out = f(a, count)
        if a.dtype.kind == "i" and f is np.right_shift:
            return out
        return np.where(b.astype(np.uint64) >= bits, a.dtype.type(0), out)

    return run


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _trunc_div,
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "rem": np.fmod,
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: (1.0 / np.sqrt(x.astype(np.float64))).astype(x.dtype),
    "rcp": lambda x: (1.0 / x.astype(np.float64)).astype(x.dtype),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "not": np.bitwise_not,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


class _Run:
    def __init__(self, assembly: Assembly, frame: Frame, memory: Memory, parks: bool) -> None:
        self.code = assembly.instructions
        self.frame = frame
        self.memory = memory
        self.parks = parks
        self.changed = False
        self.mask: np.ndarray | slice = slice(None)
        self.watched: np.ndarray | None = None

    # Registers

    def raw(self, name: str) -> np.ndarray:
        """An operand as 64-bit registers."""
        n = self.count
        if name in self.frame.registers:
            return self.frame.registers[name][self.mask]
        if name in self.frame.specials:
            v = self.frame.specials[name]
            return v[self.mask].astype(U64) if isinstance(v, np.ndarray) else np.full(n, v, dtype=U64)
        if name[:2] in ("0f", "0F"):
            return np.full(n, int(name[2:], 16), dtype=U64)
        if name[:2] in ("0d", "0D"):
            return np.full(n, int(name[2:], 16), dtype=U64)
        try:
            return np.full(n, int(name.rstrip("U"), 0) & 0xFFFFFFFFFFFFFFFF, dtype=U64)
        except ValueError:
            pass
        try:
            bits = struct.unpack("<I", struct.pack("<f", float(name)))[0]
            return np.full(n, bits, dtype=U64)
        except ValueError:
            raise AssemblyError(f"inline assembly reads {name}, which has no value") from None

    def value(self, name: str, kind: str) -> np.ndarray:
        negated = name.startswith("!")
        out = decode(self.raw(name.lstrip("!")), kind)
        return ~out if negated and kind == "pred" else out

    def assign(self, name: str, raw: np.ndarray) -> None:
        if name == "_":
            return
        register = self.frame.registers.get(name)
        if register is None:
            register = self.frame.registers[name] = np.zeros(self.frame.n, dtype=U64)
        register[self.mask] = raw

    def address(self, text: str) -> np.ndarray:
        inner = text.strip()[1:-1].strip()
        base, sign, offset = ([*re.split(r"\s*([+])\s*", inner, maxsplit=1), "", "0"])[:3]
        out = self.raw(base)
        return out + U64(int(offset, 0) & 0xFFFFFFFFFFFFFFFF) if sign else out

    @staticmethod
    def names(text: str) -> list[str]:
        return [p.strip() for p in text[1:-1].split(",")] if text.startswith("{") else [text]

    @property
    def count(self) -> int:
        return int(self.mask.sum()) if isinstance(self.mask, np.ndarray) else self.frame.n

    # Execution

    def run(self) -> None:
        frame = self.frame
        end = len(self.code)
        waiting = np.zeros(frame.n, dtype=bool)
        while True:
            live = (frame.pc >= 0) & (frame.pc < end) & ~waiting
            if not live.any():
                if waiting.any():
                    if self.changed:
                        self.changed = False
                        waiting[:] = False
                        continue
                    if self.parks:
                        raise Stuck(frame, end, self.watched)
                frame.pc[:] = -1
                return
            at = int(frame.pc[live].min())
            active = live & (frame.pc == at)
            instruction = self.code[at]
            taken = active
            if instruction.guard:
                self.mask = active
                holds = decode(self.raw(instruction.guard), "pred")
                taken = active.copy()
                taken[active] = ~holds if instruction.negated else holds
            frame.pc[active] = at + 1
            if not taken.any():
                continue
            self.mask = taken
            if instruction.opcode == "bra":
                frame.pc[taken] = instruction.target
                if instruction.waits:
                    if self.changed:
                        self.changed = False
                    else:
                        waiting |= taken
                continue
            if instruction.opcode in ("ret", "exit"):
                frame.pc[taken] = -1
                continue
            self.step(instruction)

    def step(self, i: Instruction) -> None:
        handler = getattr(self, f"op_{i.opcode}", None)
        if handler is not None:
            handler(i)
        elif i.opcode in NO_EFFECT:
            return
        elif i.opcode in _ARITHMETIC:
            self.binary(i)
        elif i.opcode in _UNARY:
            self.unary(i)
        else:
            raise AssemblyError(f"inline assembly instruction is not supported: {i.text}")

    def lanewise(self, kind: str, f: Callable[..., np.ndarray], *raws: np.ndarray) -> np.ndarray:
        """Apply ``f`` to numbers of a type, or to both halves of a packed one."""
        with np.errstate(all="ignore"):
            if not kind.endswith("x2"):
                return encode(f(*(decode(r, kind) for r in raws)), kind)
            half = kind.removesuffix("x2")
            low = encode(f(*(decode(r & U64(0xFFFF), half) for r in raws)), half)
            high = encode(f(*(decode((r >> U64(16)) & U64(0xFFFF), half) for r in raws)), half)
        return low | (high << U64(16))

    def binary(self, i: Instruction) -> None:
        d, a, b = i.operands[:3]
        kind = i.type
        x, y = self.raw(a), self.raw(b)
        if i.opcode == "mul" and kind[0] in "us" and kind != "" and "wide" in i.modifiers:
            wide = kind[0] + str(width(kind) * 2)
            self.assign(d, encode(decode(x, kind).astype(np.int64 if kind[0] == "s" else U64) * decode(y, kind), wide))
            return
        if i.opcode == "mul" and "hi" in i.modifiers:
            bits = width(kind)
            big = decode(x, kind).astype(object) * decode(y, kind).astype(object)
            self.assign(d, np.array([(int(v) >> bits) & ((1 << bits) - 1) for v in big], dtype=U64))
            return
        if kind == "pred":
            self.assign(d, encode(_ARITHMETIC[i.opcode](decode(x, "pred"), decode(y, "pred")), "pred"))
            return
        if i.opcode in ("shl", "shr") and kind[0] == "b":
            kind = "u" + kind[1:]
        if i.opcode in ("shl", "shr"):
            count = y.astype(np.uint32).astype(U64)
            self.assign(d, encode(_ARITHMETIC[i.opcode](decode(x, kind), count), kind))
            return
        self.assign(d, self.lanewise(kind, _ARITHMETIC[i.opcode], x, y))

    def unary(self, i: Instruction) -> None:
        d, a = i.operands[:2]
        kind = i.type
        if kind == "pred":
            self.assign(d, encode(~self.value(a, "pred"), "pred"))
            return
        self.assign(d, self.lanewise(kind, _UNARY[i.opcode], self.raw(a)))

    def op_mov(self, i: Instruction) -> None:
        d, a = i.operands
        if a.startswith("{"):
            parts = [self.raw(n) for n in self.names(a)]
            size = width(i.type) // len(parts)
            out = np.zeros(self.count, dtype=U64)
            for k, p in enumerate(parts):
                out |= (p & U64((1 << size) - 1)) << U64(k * size)
            self.assign(d, out)
        elif d.startswith("{"):
            names = self.names(d)
            size = width(i.type) // len(names)
            raw = self.raw(a)
            for k, n in enumerate(names):
                self.assign(n, (raw >> U64(k * size)) & U64((1 << size) - 1))
        else:
            kind = i.type
            raw = self.raw(a)
            self.assign(d, raw if kind == "pred" or width(kind) == 64 else raw & U64((1 << width(kind)) - 1))

    def op_cvta(self, i: Instruction) -> None:
        self.assign(i.operands[0], self.raw(i.operands[1]))

    def op_fma(self, i: Instruction) -> None:
        d, a, b, c = i.operands
        kind = i.type
        wide = lambda x, y, z: x.astype(np.float64) * y + z  # noqa: E731
        self.assign(d, self.lanewise(kind, wide, self.raw(a), self.raw(b), self.raw(c)))

    def op_mad(self, i: Instruction) -> None:
        d, a, b, c = i.operands
        kind = i.type
        if kind[0] == "f":
            self.op_fma(i)
        elif "wide" in i.modifiers:
            wide = kind[0] + str(width(kind) * 2)
            product = decode(self.raw(a), kind).astype(np.int64 if kind[0] == "s" else U64) * decode(self.raw(b), kind)
            self.assign(d, encode(product + decode(self.raw(c), wide), wide))
        else:
            self.assign(d, self.lanewise(kind, lambda x, y, z: x * y + z, self.raw(a), self.raw(b), self.raw(c)))

    def op_setp(self, i: Instruction) -> None:
        d, a, b = i.operands[:3]
        compare = next(m for m in i.modifiers if m.rstrip("u") in _COMPARE or m in _COMPARE)
        kind = i.type
        if kind[0] == "b":
            kind = "u" + kind[1:]
        if compare in ("lo", "ls", "hi", "hs"):
            kind = "u" + kind[1:]
        x, y = self.value(a, kind), self.value(b, kind)
        name = compare if compare in _COMPARE else compare[:-1]
        out = _COMPARE[name](x, y)
        if x.dtype.kind == "f":
            nan = np.isnan(x) | np.isnan(y)
            out = out | nan if compare.endswith("u") and compare not in _COMPARE else out & ~nan
        if len(i.operands) > 3:
            other = self.value(i.operands[3], "pred")
            join = next((m for m in i.modifiers if m in ("and", "or", "xor")), "and")
            out = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[join](out, other)
        first, _, second = d.partition("|")
        self.assign(first, encode(out, "pred"))
        if second:
            self.assign(second, encode(~out, "pred"))

    def op_selp(self, i: Instruction) -> None:
        d, a, b, p = i.operands
        self.assign(d, np.where(self.value(p, "pred"), self.raw(a), self.raw(b)))

    def op_cvt(self, i: Instruction) -> None:
        """``cvt.<rounding>.<to>.<from>``; two sources pack into one register."""
        kinds = [m for m in i.modifiers if re.fullmatch(r"[usbf](?:8|16|32|64)|bf16|bf16x2|f16x2|e4m3x2|e5m2x2", m)]
        to, source = kinds[0], kinds[1]
        d, *sources = i.operands
        if len(sources) == 2:
            half = to.removesuffix("x2")
            high, low = (
                encode(decode(self.raw(s), source), half)
                if half in ("f16", "bf16")
                else _fp8(decode(self.raw(s), source), half)
                for s in sources
            )
            size = 16 if half in ("f16", "bf16") else 8
            self.assign(d, low | (high << U64(size)))
            return
        x = decode(self.raw(sources[0]), source)
        with np.errstate(all="ignore"):
            for name, f in _ROUND.items():
                if name in i.modifiers and x.dtype.kind == "f":
                    x = f(x)
            if to[0] in "us" and x.dtype.kind == "f":
                info = np.iinfo(_SIGNED[width(to)] if to[0] == "s" else _UNSIGNED[width(to)])
                x = np.clip(np.nan_to_num(np.trunc(x.astype(np.float64))), float(info.min), float(info.max))
            elif to[0] in "us" and "sat" in i.modifiers:
                info = np.iinfo(_SIGNED[width(to)] if to[0] == "s" else _UNSIGNED[width(to)])
                x = np.clip(x.astype(np.int64), info.min, info.max)
            out = encode(x, to)
        if to[0] == "f" and source[0] in "us" and width(to) < 64:
            out = encode(x.astype(np.float64).astype(np.float32), to)
        self.assign(d, out)

    def op_prmt(self, i: Instruction) -> None:
        d, a, b, c = i.operands[:4]
        both = (self.raw(a) & U64(0xFFFFFFFF)) | (self.raw(b) << U64(32))
        selector = self.raw(c)
        out = np.zeros(self.count, dtype=U64)
        for k in range(4):
            pick = (selector >> U64(4 * k)) & U64(0xF)
            byte = (both >> ((pick & U64(7)) * U64(8))) & U64(0xFF)
            sign = np.where(byte & U64(0x80), U64(0xFF), U64(0))
            out |= np.where(pick & U64(8), sign, byte) << U64(8 * k)
        self.assign(d, out)

    def op_lop3(self, i: Instruction) -> None:
        d, a, b, c, table = i.operands[:5]
        x, y, z = self.raw(a), self.raw(b), self.raw(c)
        lut = int(table, 0)
        full = U64(0xFFFFFFFF)
        out = np.zeros(self.count, dtype=U64)
        for k in range(8):
            if lut >> k & 1:
                out |= (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
        self.assign(d, out & full)

    def op_bfe(self, i: Instruction) -> None:
        d, a, start, length = i.operands
        n = self.raw(length) & U64(0xFF)
        out = (self.raw(a) >> (self.raw(start) & U64(0xFF))) & ((U64(1) << n) - U64(1))
        if i.type[0] == "s":
            sign = (out >> (n - U64(1))) & U64(1)
            out = np.where(sign != 0, out | ~((U64(1) << n) - U64(1)), out) & U64((1 << width(i.type)) - 1)
        self.assign(d, out)

    def op_bfi(self, i: Instruction) -> None:
        d, a, b, start, length = i.operands
        at = self.raw(start) & U64(0xFF)
        field_ = ((U64(1) << (self.raw(length) & U64(0xFF))) - U64(1)) << at
        self.assign(d, (self.raw(b) & ~field_) | ((self.raw(a) << at) & field_))

    def op_shfl(self, i: Instruction) -> None:
        """One element is one thread here: a shuffle returns its own value."""
        d, a = i.operands[:2]
        self.assign(d.partition("|")[0], self.raw(a))

    def op_vote(self, i: Instruction) -> None:
        d, a = i.operands[:2]
        self.assign(d, self.value(a, "pred").astype(U64))

    op_activemask = lambda self, i: self.assign(i.operands[0], np.ones(self.count, dtype=U64))  # noqa: E731

    # Memory

    def _vector(self, i: Instruction) -> tuple[int, int]:
        """Numbers per access and bytes of each."""
        return next((int(m[1]) for m in i.modifiers if re.fullmatch(r"v[248]", m)), 1), max(width(i.type) // 8, 1)

    def op_ld(self, i: Instruction) -> None:
        if any(m.startswith("param") for m in i.modifiers):
            raise AssemblyError(f"inline assembly instruction is not supported: {i.text}")
        d, a = i.operands[:2]
        _, size = self._vector(i)
        address = self.address(a)
        self.watched = address
        for k, name in enumerate(self.names(d)):
            raw = self.memory.load(address + U64(k * size), size)
            if i.type[0] == "s" and size < 4:
                raw = decode(raw, i.type).astype(np.int32).view(np.uint32).astype(U64)
            self.assign(name, raw)

    def op_st(self, i: Instruction) -> None:
        a, s = i.operands[:2]
        _, size = self._vector(i)
        address = self.address(a)
        for k, name in enumerate(self.names(s)):
            self.memory.store(address + U64(k * size), self.raw(name), size)
        self.changed = True

    def _update(
        self, i: Instruction, address: np.ndarray, operands: list[np.ndarray], kind: str, name: str
    ) -> np.ndarray:
        """Read-modify-write, one invocation after the other."""
        size = max(width(kind) // 8, 1)
        old = np.zeros(len(address), dtype=U64)
        for n in range(len(address)):
            at = address[n : n + 1]
            seen = self.memory.load(at, size)
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
                new = self.lanewise(k, _ARITHMETIC[name], seen, x)
            new = new & U64((1 << (8 * size)) - 1)
            if new[0] != seen[0]:
                self.memory.store(at, new, size)
                self.changed = True
        return old

    _OPERATIONS = ("cas", "exch", "add", "inc", "dec", "min", "max", "and", "or", "xor")

    def op_atom(self, i: Instruction) -> None:
        d, a, *rest = i.operands
        name = next(m for m in i.modifiers if m in self._OPERATIONS)
        address = self.address(a)
        self.watched = address
        self.assign(d, self._update(i, address, [self.raw(r) for r in rest], i.type, name))

    def op_red(self, i: Instruction) -> None:
        a, *rest = i.operands
        name = next(m for m in i.modifiers if m in self._OPERATIONS)
        address = self.address(a)
        size = max(width(i.type) // 8, 1)
        for k, n in enumerate(self.names(rest[0])):
            self._update(i, address + U64(k * size), [self.raw(n)], i.type, name)


def _fp8(x: np.ndarray, kind: str) -> np.ndarray:
    dtype = torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2
    top = torch.finfo(dtype).max
    t = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).clamp(-top, top).to(dtype)
    return t.view(torch.uint8).numpy().astype(U64)


def run(assembly: Assembly, frame: Frame, memory: Memory, parks: bool = True) -> None:
    """Run until every invocation has finished.

    Raises:
        Stuck: the rest waits for memory to change (not raised when ``parks`` is false: they end where they are).
    """
    _Run(assembly, frame, memory, parks).run()
