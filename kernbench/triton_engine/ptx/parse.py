"""PTX text -> instructions with labels resolved."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernbench.errors import KernbenchError


@dataclass(frozen=True)
class Instruction:
    """``@guard opcode.modifiers operands``. Operands are register names, immediates, ``[address]`` or ``{vector}``."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False
    target: int = -1
    #: A backward branch over an instruction that reads memory: its takers may be waiting.
    waits: bool = False
    text: str = ""

    @property
    def type(self) -> str:
        """The last modifier that is a type, e.g. ``u32`` or ``bf16x2``."""
        for m in reversed(self.modifiers):
            if _TYPE.fullmatch(m):
                return m
        return ""


@dataclass(frozen=True)
class Assembly:
    instructions: tuple[Instruction, ...]
    writes: bool
    reads: bool


class AssemblyError(KernbenchError, NotImplementedError):
    """Inline assembly that is not supported. The message holds the instruction."""


_TYPE = re.compile(r"(?:[busf](?:8|16|32|64|128)|bf16|pred|f16x2|bf16x2|u16x2|s16x2|f32x2)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LABEL = re.compile(r"^\s*([\w$%.]+)\s*:(?!:)")

#: Instructions that order memory or threads: lanes run in step, so nothing remains to do.
NO_EFFECT = frozenset(
    [
        "bar",
        "barrier",
        "membar",
        "fence",
        "nanosleep",
        "griddepcontrol",
        "prefetch",
        "prefetchu",
        "applypriority",
        "discard",
    ]
)


def _operands(text: str) -> tuple[str, ...]:
    parts, depth, start = [], 0, 0
    for i, ch in enumerate(text):
        if ch in "{[(":
            depth += 1
        elif ch in "}])":
            depth -= 1
        elif ch == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return tuple(p for p in (*parts, last) if p)


def parse(text: str) -> Assembly:
    """Parse an inline assembly template (``$n`` operands, ``$$`` for a dollar sign)."""
    text = _COMMENT.sub(" ", text.replace("\\0A", "\n").replace("\\09", " ").replace("\\22", '"').replace("$$", "_"))
    text = text.replace("%%", "%")
    labels: dict[str, int] = {}
    out: list[Instruction] = []
    pending: list[tuple[int, str]] = []
    for statement in _statements(text):
        statement = statement.strip()
        while match := _LABEL.match(statement):
            labels[match[1]] = len(out)
            statement = statement[match.end() :].strip()
        if not statement or statement.startswith((".reg", ".pragma", ".loc")):
            continue
        guard, negated = "", False
        if statement.startswith("@"):
            first, _, statement = statement[1:].partition(" ") if " " in statement else (statement[1:], "", "")
            negated = first.startswith("!")
            guard = first.lstrip("!")
            statement = statement.strip()
        name, _, rest = statement.partition(" ")
        name, _, extra = name.partition("\t")
        opcode, *modifiers = [m for m in name.strip().split(".") if m]
        modifiers = [part for m in modifiers for part in m.split("::")] if "::" in name else modifiers
        operands = _operands((extra + " " + rest).strip())
        if opcode == "bra":
            pending.append((len(out), operands[0]))
        out.append(Instruction(opcode, tuple(modifiers), operands, guard, negated, text=statement))
    for at, label in pending:
        if label not in labels:
            raise AssemblyError(f"inline assembly branches to an unknown label {label}")
        target = labels[label]
        i = out[at]
        reads = target <= at and any(o.opcode in ("ld", "atom", "multimem") for o in out[target:at])
        out[at] = Instruction(i.opcode, i.modifiers, i.operands, i.guard, i.negated, target, reads, i.text)
    memory = {"ld", "st", "atom", "red", "multimem"}
    used = {i.opcode for i in out}
    return Assembly(tuple(out), bool(used & (memory - {"ld"})), bool(used & memory))


def _statements(text: str) -> list[str]:
    """Split at ``;``; scope braces (those not part of a vector operand) separate statements too."""
    out: list[str] = []
    current = ""
    depth = 0
    for ch in text:
        if ch == "{":
            if current.strip() and not current.strip().endswith(":"):
                depth += 1
                current += ch
            else:
                out.append(current)
                current = ""
            continue
        if ch == "}":
            if depth:
                depth -= 1
                current += ch
            else:
                out.append(current)
                current = ""
            continue
        if ch == ";" and depth == 0:
            out.append(current)
            current = ""
            continue
        current += ch
    out.append(current)
    return out
