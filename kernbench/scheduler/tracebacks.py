"""How an exception of a program is shown: the program's own lines, and what it says.

Between a program's line and what is raised there are often dozens of frames of the simulator, of torch and of Triton, which
say nothing of the program. They are left out (and that is said) unless ``KERNBENCH_TRACEBACK=full``, which is what
``kernbench run --traceback full`` sets. What an exception says is shown whatever its ``__str__`` does.
"""

from __future__ import annotations

import os
import textwrap
import traceback
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from types import FrameType, TracebackType

from typing_extensions import deprecated

from kernbench.environment_variables import one_of
from kernbench.errors import MOST_OF_A_MESSAGE, kind_of, message_of, notes_of, own_attribute
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
    return _report(error, _wants_full() if full is None else full, set(), 0)


def _report(error: BaseException, full: bool, seen: set[int], depth: int) -> str:
    """See :func:`user_traceback`; ``seen``: exceptions that are shown already, ``depth``: groups around this one."""
    parts: list[str] = []
    for number, (each, joint) in enumerate(_chain(error, seen)):
        every = own_attribute(each, "__traceback__")
        frames = _from_program(every)
        shown = [frame for frame in frames if full or is_programs(frame[0].f_code.co_filename)]
        if number and every is not None and not shown and not full:  # what the simulator has caught itself
            continue
        if len(parts) == MOST_OF_A_CHAIN:
            parts.append("(exceptions before these are left out)\n\n")
            break
        one = _one(each, shown or frames, len(frames) - len(shown or frames)) + _members(each, full, seen, depth)
        parts.append(one + (joint if number else ""))
    return "".join(reversed(parts))


MOST_OF_A_CHAIN = 100
"""Exceptions that are shown of a chain of causes, and of what a group holds: the last ones, and the first ones."""

_DEEPEST = 10
"""Groups within groups that are shown."""


def _members(error: BaseException, full: bool, seen: set[int], depth: int) -> str:
    """What an exception group holds, each with its own lines; empty if it is none."""
    members = getattr(error, "exceptions", ()) if _is_group(error) else ()
    if not members:
        return ""
    if depth == _DEEPEST or len(seen) > 10 * MOST_OF_A_CHAIN:
        return "  (what it holds is left out)\n"
    parts = []
    for number, each in enumerate(members[:MOST_OF_A_CHAIN], 1):
        text = _report(each, full, seen, depth + 1) or "(shown above)\n"
        parts.append(
            f"  +---------------- {number} ----------------\n{textwrap.indent(text, '  | ', lambda line: True)}"
        )
    if (more := len(members) - MOST_OF_A_CHAIN) > 0:
        parts.append(f"  +---------------- and {more} more\n")
    return "".join(parts)


def _is_group(error: BaseException) -> bool:
    """Whether it is an exception group, also one of the package that Python 3.10 has for them."""
    return any(vars(type)["__name__"].__get__(kind) == "BaseExceptionGroup" for kind in type.mro(type(error)))


def headline(error: BaseException) -> str:
    """The kind of an exception, and what it says."""
    said = message_of(error)
    return f"{_name(error)}: {said}" if said else _name(error)


def program_line(error: BaseException) -> str:
    """``FILE:LINE in FUNCTION``: the innermost line of the program that led to it; empty if there is none."""
    for frame, line in reversed(_from_program(own_attribute(error, "__traceback__"))):
        if is_programs(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
    return ""


@cache
def is_programs(filename: str) -> bool:
    """Whether a file is neither the simulator's nor torch's nor Triton's."""
    return not is_own(filename) and not filename.startswith((*_libraries(), "<frozen "))


@cache
def _libraries() -> tuple[str, ...]:
    """Folders of torch, of Triton and of what reads the command line, and the file that calls torch's deprecated functions. A
    program's lines are in none of them."""
    places = (getattr(find_spec(name), "origin", None) for name in ("torch", "triton", "click"))
    folders = (os.path.join(os.path.dirname(place), "") for place in places if place)
    return *folders, deprecated.__call__.__code__.co_filename


def _wants_full() -> bool:
    return one_of(VARIABLE, *STYLES) == "full"


def _from_program(frames: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Frames and lines from the program's first one on; all if none is the program's."""
    every = list(traceback.walk_tb(frames))
    first = next((at for at, (frame, _) in enumerate(every) if is_programs(frame.f_code.co_filename)), 0)
    return every[first:]


def _chain(error: BaseException, seen: set[int]) -> Iterator[tuple[BaseException, str]]:
    """An exception and those before it, each with the words between it and the one that follows it; none that is ``seen``."""
    each: BaseException | None = error
    joint = ""
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each, joint
        cause = own_attribute(each, "__cause__")
        if cause is not None:
            each, joint = cause, _CAUSE
        elif own_attribute(each, "__suppress_context__"):
            return
        else:
            each, joint = own_attribute(each, "__context__"), _CONTEXT


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
    if issubclass(type(error), SyntaxError):  # shown in a way of its own
        text = "".join(traceback.format_exception_only(type(error), error))
        return text if len(text) <= MOST_OF_A_MESSAGE else f"{text[:MOST_OF_A_MESSAGE]}... (shortened)\n"
    return "".join(f"{line}\n" for line in (headline(error), *notes_of(error)))


def _name(error: BaseException) -> str:
    module, kind = kind_of(error)
    return kind if module in ("builtins", "__main__") else f"{module}.{kind}"
