"""What instructions work on: the registers of all invocations, the ones that execute now, and memory."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from .numbers import U64, decode
from .parse import AssemblyError


class GlobalMemory(Protocol):
    """Loads, stores and updates by absolute address; addresses are uint64 arrays."""

    def load(self, address: np.ndarray, nbytes: int, times: int = 1) -> np.ndarray:
        """Values of ``nbytes`` bytes, as uint64. ``times``: how often invocations read the word, where it is one alone."""

    def store(self, address: np.ndarray, value: np.ndarray, nbytes: int) -> None:
        """Write the low ``nbytes`` bytes of each value."""

    def accessed(
        self, address: np.ndarray, nbytes: int, modifiers: Sequence[str], state: State, how: str,
        failed: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Receives an instruction that reads (``"r"``), writes (``"w"``) or updates (``"rw"``) memory; ``failed``: which of the
        updates compared with another value, and have only read."""

    def fenced(self, state: State) -> None:
        """Receives a fence."""

    def everywhere(self, address: np.ndarray) -> list[np.ndarray]:
        """The addresses that multicast addresses stand for, one array per buffer. Their traffic is one buffer's."""


@dataclass
class Frame:
    """The state of ``size`` invocations: registers by name, program counters (``-1`` or past the end: finished)."""

    size: int
    registers: dict[str, np.ndarray]
    pc: np.ndarray
    specials: dict[str, np.ndarray | int] = field(default_factory=dict)
    #: A number for the warp of each invocation that is a thread; None: they are elements, in no order of threads.
    warps: np.ndarray | None = None

    def select(self, keep: np.ndarray) -> Frame:
        """The invocations that ``keep`` (a mask, or their places) says."""
        pc = self.pc[keep]
        return Frame(
            len(pc),
            {k: v[keep] for k, v in self.registers.items()},
            pc,
            {k: v[keep] if isinstance(v, np.ndarray) else v for k, v in self.specials.items()},
            None if self.warps is None else self.warps[keep],
        )


class State:
    """A frame while it runs. ``mask``: the invocations that execute the instruction at hand.

    ``changed``: memory was written since the last wait; ``watched``: the addresses read last.
    """

    def __init__(self, frame: Frame, memory: GlobalMemory) -> None:
        self.frame = frame
        self.memory = memory
        self.changed = False
        self.mask: np.ndarray | slice = slice(None)
        self.watched: np.ndarray | None = None

    @property
    def count(self) -> int:
        """Invocations that execute the instruction."""
        return int(self.mask.sum()) if isinstance(self.mask, np.ndarray) else self.frame.size

    @property
    def invocations(self) -> np.ndarray:
        """Their numbers."""
        return np.nonzero(self.mask)[0] if isinstance(self.mask, np.ndarray) else np.arange(self.frame.size)

    def raw(self, name: str) -> np.ndarray:
        """An operand as 64-bit registers."""
        n = self.count
        if name in self.frame.registers:
            return self.frame.registers[name][self.mask]
        if name in self.frame.specials:
            v = self.frame.specials[name]
            return v[self.mask].astype(U64) if isinstance(v, np.ndarray) else np.full(n, v, dtype=U64)
        if name[:2] in ("0f", "0F", "0d", "0D"):
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
        """An operand as numbers of a type; ``!`` negates a predicate."""
        negated = name.startswith("!")
        out = decode(self.raw(name.lstrip("!")), kind)
        return ~out if negated and kind == "pred" else out

    def assign(self, name: str, raw: np.ndarray) -> None:
        """Write a register where the mask holds; ``_`` takes anything."""
        if name == "_":
            return
        register = self.frame.registers.get(name)
        if register is None:
            register = self.frame.registers[name] = np.zeros(self.frame.size, dtype=U64)
        register[self.mask] = raw

    def address(self, text: str) -> np.ndarray:
        """The addresses of ``[register+offset]``."""
        inner = text.strip()[1:-1].strip()
        base, sign, offset = ([*re.split(r"\s*([+-])\s*", inner, maxsplit=1), "", "0"])[:3]
        distance = -int(offset, 0) if sign == "-" else int(offset, 0)
        return self.raw(base) + U64(distance & 0xFFFFFFFFFFFFFFFF)

    @staticmethod
    def names(text: str) -> list[str]:
        """The registers of a vector operand, or the only one."""
        return [p.strip() for p in text[1:-1].split(",")] if text.startswith("{") else [text]
