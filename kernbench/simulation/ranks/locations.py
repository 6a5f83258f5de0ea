"""Where in the user's own code something was called."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from functools import cache
from types import CodeType, FrameType
from typing import NamedTuple

import torch
from typing_extensions import deprecated

from kernbench.own_files import is_own

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OTHERS = (
    os.sep + "greenlet" + os.sep, deprecated.__call__.__code__.co_filename, os.sep + "contextlib.py", "<frozen ", "<string>",
    "<eval_with_key>",
)  # fmt: skip
_PACKAGES = ("site-packages", "dist-packages")


def _folders(*paths: str) -> tuple[str, ...]:
    return tuple({os.path.join(os.path.realpath(path), "") for path in paths})


_PYTHONS = _folders(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = _folders(
    sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), site.getusersitepackages()
)


class _WorkingFolder:
    """The folder below which paths are written from it on: where the process was when the last simulation began. A program may
    go elsewhere meanwhile; what a run says of its lines does not change by that."""

    def __init__(self) -> None:
        self.path = ""

    def note(self) -> None:
        """It is where the process is now."""
        self.path = os.path.join(os.getcwd(), "")


working_folder = _WorkingFolder()


class Location(NamedTuple):
    """A line of the user's program. As text its path is relative to the working folder if it is below that."""

    file: str
    line: int
    function: str

    @property
    def position(self) -> str:
        """File and line, as text."""
        return f"{self.file.removeprefix(working_folder.path)}:{self.line}"

    def __str__(self) -> str:
        return f"{self.position} in {self.function}"


NOWHERE = Location("<unknown>", 0, "?")


class _UsersFiles(dict[str, bool]):
    """File name -> whether it is the user's, found out at the first look."""

    def __missing__(self, filename: str) -> bool:
        found = not (is_own(filename) or filename.startswith(_TORCH) or any(part in filename for part in _OTHERS))
        self[filename] = found
        return found


_is_users = _UsersFiles()


def is_users(filename: str) -> bool:
    """Whether a file belongs neither to kernbench nor to torch."""
    return _is_users[filename]


@cache
def is_installed(path: str) -> bool:
    """Whether a file or folder lies where packages are installed."""
    real = os.path.realpath(path)
    return real.startswith(_INSTALLED) or any(f"{os.sep}{name}{os.sep}" in real for name in _PACKAGES)


@cache
def is_pythons(path: str) -> bool:
    """Whether a file or folder is of Python itself: its standard library, which may have the packages in it."""
    return path.startswith("<frozen ") or (os.path.realpath(path).startswith(_PYTHONS) and not is_installed(path))


_MOST_PLACES = 10_000
_places: dict[tuple[int, int], tuple[CodeType, Location]] = {}
"""By code (its identity; the entry keeps it alive) and instruction: a program calls from few places, again and again, and
finding a line takes time that grows with the length of the function."""


def location_of(frame: FrameType | None) -> Location:
    """The innermost frame, from ``frame`` outwards, that belongs neither to kernbench nor to torch."""
    while frame is not None:
        code = frame.f_code
        if _is_users[code.co_filename]:
            key = (id(code), frame.f_lasti)
            found = _places.get(key)
            if found is None:
                if len(_places) >= _MOST_PLACES:
                    _places.clear()
                found = _places[key] = code, Location(code.co_filename, frame.f_lineno, code.co_name)
            return found[1]
        frame = frame.f_back
    return NOWHERE


def program_location(frame: FrameType | None) -> Location:
    """As :func:`location_of`, but outside of Python's own library too: there the caller called ``logging`` or ``json``."""
    inner = frame
    while inner is not None and (not _is_users[inner.f_code.co_filename] or is_pythons(inner.f_code.co_filename)):
        inner = inner.f_back
    return location_of(inner or frame)


def callers_location(frame: FrameType | None) -> Location:
    """The innermost frame, from ``frame`` outwards, of a file that is not installed; else as :func:`program_location`."""
    inner = frame
    while inner is not None:
        filename = inner.f_code.co_filename
        if _is_users[filename] and not is_pythons(filename) and not is_installed(filename):
            return location_of(inner)
        inner = inner.f_back
    return program_location(frame)


def user_location() -> Location:
    """Where the user's code called into kernbench."""
    return location_of(sys._getframe(1))
