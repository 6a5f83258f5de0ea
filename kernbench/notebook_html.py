"""Pieces of HTML for notebook cells: tables, pictures, what failed. They bring no styles that reach beyond themselves."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from html import escape

_CELL_FILE = re.compile(r"[^\s\"'<>]*ipykernel_\d+/\d+\.py")
"""What ipykernel compiles a cell as."""

_CELL = "padding:2px 10px;text-align:{};white-space:nowrap"


def block(*parts: str) -> str:
    """One element of several, in order."""
    return f'<div style="overflow-x:auto">{with_cells("".join(parts))}</div>'


def with_cells(text: str) -> str:
    """A text with cells by their numbers, ``In[3]:7``, in the place of the files that they are compiled as."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return text
    return _CELL_FILE.sub(lambda file: (shell.compile.format_code_name(file[0]) or ("", file[0]))[1], text)


def paragraph(text: str, *, bold: bool = False) -> str:
    """A line of text."""
    return f"<p>{f'<b>{escape(text)}</b>' if bold else escape(text)}</p>"


def preformatted(text: str) -> str:
    """Text whose columns stay as they are."""
    return f'<pre style="text-align:left">{escape(text)}</pre>'


def folded(title: str, content: str) -> str:
    """Content that is shown when its title is clicked."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column and numbers are at the right."""
    head = "".join(f'<th style="{_CELL.format("right")}">{escape(each)}</th>' for each in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str) -> str:
    side = "right" if any(map(str.isdigit, text)) else "left"
    return f'<td style="{_CELL.format(side)}">{escape(text.strip())}</td>'


def picture(svg: str, title: str) -> str:
    """An SVG document as an image: its style sheet stays its own."""
    return f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"/>'


def failure(first_words: str, message: str) -> str:
    """An error: what it comes to in bold, and what it says besides."""
    first, rest = without_repetition(first_words, message)
    return block(paragraph(first, bold=True), preformatted(rest) if rest else "")


def without_repetition(first_words: str, message: str) -> tuple[str, str]:
    """What an error comes to, and its message without its first line if that is what it comes to."""
    first, _, rest = message.strip().partition("\n")
    return first_words, rest if first_words.endswith(first) else message.strip()


def program_places(error: BaseException) -> Iterator[str]:
    """Where an error passed through the program, innermost line first; installed packages and Python's own are left out."""
    installed = sysconfig.get_paths()
    others = tuple(
        os.path.join(folder, "") for folder in (os.path.dirname(__file__), installed["stdlib"], installed["purelib"])
    )
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*others, "<frozen ")):
            yield f"  at {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
