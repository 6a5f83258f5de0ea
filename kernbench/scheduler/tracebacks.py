"""How an exception of a program is shown: the program's own lines, and what it says.

Between a program's line and what is raised there are often dozens of frames of the simulator, of torch and of Triton, which
say nothing of the program. They are left out (and that is said) unless ``KERNBENCH_TRACEBACK=full``, which is what
``kernbench run --traceback full`` sets. What an exception says is shown whatever its ``__str__`` does.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from types import FrameType, TracebackType

from kernbench.errors import MOST_OF_A_MESSAGE, ConfigError, message_of, notes_of
from kernbench.own_files import is_own
from kernbench.plurals import counted

VARIABLE = "KERNBENCH_TRACEBACK"
"""``short`` (the default) or ``full``."""

STYLES = ("short", "full")


def user_traceback(error: BaseException, *, full: bool | None = None) -> str:
    """An exception with the lines of the program that lead to it, as Python shows it; ends in a newline.

    Args:
        error: with its traceback.
        full: show the frames of the simulator, torch and Triton behind the program's first line, too; by default what
            ``KERNBENCH_TRACEBACK`` says. Those before it are never shown. All are if none is the program's.
    """
    full = _wants_full() if full is None else full
    parts: list[str] = []
    for number, (each, joint) in enumerate(_chain(error)):
        frames = _from_program(each.__traceback__)
        shown = [frame for frame in frames if full or is_programs(frame[0].f_code.co_filename)]
        if number and not shown and not full:  # what the simulator has caught itself
            continue
        parts.insert(0, _one(each, shown or frames, len(frames) - len(shown or frames)) + (joint if number else ""))
    return "".join(parts)


def headline(error: BaseException) -> str:
    """The kind of an exception, and what it says."""
    said = message_of(error)
    return f"{_name(error)}: {said}" if said else _name(error)


def program_line(error: BaseException) -> str:
    """``FILE:LINE in FUNCTION``: the innermost line of the program that led to it; empty if there is none."""
    for frame, line in reversed(_from_program(error.__traceback__)):
        if is_programs(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
    return ""


@cache
def is_programs(filename: str) -> bool:
    """Whether a file is neither the simulator's nor torch's nor Triton's."""
    return not is_own(filename) and not filename.startswith((*_libraries(), "<frozen "))


@cache
def _libraries() -> tuple[str, ...]:
    """Folders of torch and Triton, and of what reads the command line. A program's lines are in none of them."""
    places = (getattr(find_spec(name), "origin", None) for name in ("torch", "triton", "click"))
    return tuple(os.path.join(os.path.dirname(place), "") for place in places if place)


def _wants_full() -> bool:
    style = os.environ.get(VARIABLE, "") or STYLES[0]
    if style not in STYLES:
        raise ConfigError(f"{VARIABLE}={style}: expected {' or '.join(STYLES)}")
    return style == "full"


def _from_program(frames: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Frames and lines from the program's first one on; all if none is the program's."""
    every = list(traceback.walk_tb(frames))
    first = next((at for at, (frame, _) in enumerate(every) if is_programs(frame.f_code.co_filename)), 0)
    return every[first:]


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """An exception and those before it, each with the words between it and the one that follows it."""
    seen: set[int] = set()
    each: BaseException | None = error
    joint = ""
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each, joint
        if each.__cause__ is not None:
            each, joint = each.__cause__, _CAUSE
        elif each.__context__ is not None and not each.__suppress_context__:
            each, joint = each.__context__, _CONTEXT
        else:
            return


_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def _one(error: BaseException, frames: list[tuple[FrameType, int]], hidden: int) -> str:
    head = "Traceback (most recent call last):\n" if frames else ""
    lines = _shown(frames)
    if hidden:
        frames_are = f"{counted(hidden, 'frame')} {'is' if hidden == 1 else 'are'}"
        lines.append(f"  ({frames_are} the simulator's or torch's: {VARIABLE}=full shows them)\n")
    return f"{head}{''.join(lines)}{_said(error)}"


MOST_FRAMES = 2000
"""Frames of an exception that are shown: of a recursion that is a million calls deep, the first and the last ones."""


def _shown(frames: list[tuple[FrameType, int]]) -> list[str]:
    left_out = len(frames) - MOST_FRAMES
    if left_out <= 0:
        return traceback.StackSummary.extract(iter(frames)).format()
    first, last = frames[: MOST_FRAMES // 2], frames[-MOST_FRAMES // 2 :]
    return [*_shown(first), f"  ({left_out:,} frames are left out)\n", *_shown(last)]


def _said(error: BaseException) -> str:
    if isinstance(error, SyntaxError) or hasattr(error, "exceptions"):  # shown in ways of their own
        text = "".join(traceback.format_exception_only(type(error), error))
        return text if len(text) <= MOST_OF_A_MESSAGE else f"{text[:MOST_OF_A_MESSAGE]}... (shortened)\n"
    return "".join(f"{line}\n" for line in (headline(error), *notes_of(error)))


def _name(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
