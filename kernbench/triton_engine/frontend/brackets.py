"""Splitting printed MLIR outside of brackets and strings: what the parser of types and of operations share."""

from __future__ import annotations

import re
from collections.abc import Iterator


class ParseError(ValueError):
    """A line of TTIR that this version does not understand."""


STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
#: What decides where a line may be cut; the ``>`` of an arrow closes nothing.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->| : |[<([{>)\]},]')


def top_level(text: str, token: str) -> Iterator[int]:
    """Where ``token`` (a comma, an arrow or a colon between blanks) stands outside of every bracket and string."""
    if token not in text:
        return
    depth = 0
    for match in _TOKEN.finditer(text):
        found = match[0]
        if found in "<([{":
            depth += 1
        elif found in ">)]}":
            depth -= 1
        elif found == token and depth == 0:
            yield match.start()


def split_list(text: str) -> list[str]:
    """Split ``a, b -> c`` style lists at top-level commas; no empty last part."""
    parts, start = [], 0
    for at in top_level(text, ","):
        parts.append(text[start:at].strip())
        start = at + 1
    if last := text[start:].strip():
        parts.append(last)
    return parts


def balanced(text: str, start: int, open_: str, close: str) -> int:
    """Index just past the bracket that closes the one at ``start``; strings are skipped."""
    depth = 0
    for match in _TOKEN.finditer(text, start):
        if match[0] == open_:
            depth += 1
        elif match[0] == close:
            depth -= 1
            if depth == 0:
                return match.end()
    raise ParseError(f"unbalanced {open_}{close}: {text}")
