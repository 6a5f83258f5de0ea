"""Where an operation stands in the user's source: the ``loc(...)`` attributes of printed TTIR."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .brackets import balanced


@dataclass(frozen=True)
class Loc:
    """A place in the user's source; ``callers`` are the call sites it was inlined at, innermost first."""

    file: str = "?"
    line: int = 0
    col: int = 0
    callers: tuple[Loc, ...] = ()

    def __str__(self) -> str:
        here = f"{self.file}:{self.line}"
        return here if not self.callers else f"{here}, called from {self.callers[0].file}:{self.callers[0].line}"

    @property
    def user(self) -> Loc:
        """The outermost call site: the line of the kernel itself."""
        return self.callers[-1] if self.callers else self


_LOC_DEF = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_FILE_LOC = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):(\d+)$')
_NAME_LOC = re.compile(r'^"((?:[^"\\]|\\.)*)"\((.*)\)$')


class Locations:
    """The table of ``#locN = loc(...)`` lines at the end of the text."""

    def __init__(self, lines: list[str]) -> None:
        self.raw: dict[str, str] = {}
        for line in lines:
            if match := _LOC_DEF.match(line):
                self.raw[match[1]] = match[2]
        self.cache: dict[str, Loc] = {}

    def get(self, text: str) -> Loc:
        if text in self.cache:
            return self.cache[text]
        self.cache[text] = Loc()  # breaks cycles, which MLIR never prints
        self.cache[text] = loc = self._resolve(text)
        return loc

    def _resolve(self, text: str) -> Loc:
        text = text.strip()
        if text in self.raw:
            return self.get(self.raw[text])
        if match := _FILE_LOC.match(text):
            return Loc(match[1], int(match[2]), int(match[3]))
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            inner, outer = self.get(callee), self.get(caller)
            if inner.line == 0:
                return outer
            return Loc(
                inner.file,
                inner.line,
                inner.col,
                (*inner.callers, Loc(outer.file, outer.line, outer.col), *outer.callers),
            )
        if match := _NAME_LOC.match(text):
            return self.get(match[2])
        if text.startswith("fused"):
            names = re.findall(r"#loc\d*", text)
            return self.get(names[-1]) if names else Loc()
        return Loc()


def _split_callsite(text: str) -> tuple[str, str]:
    depth = 0
    for i, ch in enumerate(text):
        if ch == "(":
            depth += 1
        elif ch == ")":
            depth -= 1
        elif depth == 0 and text.startswith(" at ", i):
            return text[:i], text[i + 4 :]
    return text, "unknown"


def strip_locs(line: str) -> tuple[str, str]:
    """Remove every `` loc(...)``; return the line and the text of the last one."""
    last = ""
    at = line.find(" loc(")
    while at >= 0:
        end = balanced(line, at + 4, "(", ")")
        last = line[at + 5 : end - 1]
        line = line[:at] + line[end:]
        at = line.find(" loc(")
    return line, last
