"""Installed files in which nothing is replaced, known from one process to the next: looking through a package of two thousand
files takes seconds.

Each is a line in a file of the user's cache: a digest of its path, its size, its time of change, and of what has looked it
through. Processes append whole lines, so that several may share the file; a line that does not read as it should is no
file's. A line says that a file may be loaded as Python has compiled it, and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path

from kernbench.own_files import cache_folder
from kernbench.simulation.ranks.locations import is_installed

_DIGEST = 16
_LONGEST = 1 << 22
"""Bytes of a file that has grown by what is installed no more: it is begun anew."""


def place() -> Path:
    """The file."""
    return cache_folder() / "files_that_replace_nothing"


class PlainFiles:
    """What is known of files.

    Args:
        looks: the file whose Python looks them through.
    """

    def __init__(self, looks: str) -> None:
        self._looks = looks

    @functools.cached_property
    def _lookers(self) -> bytes:
        return hashlib.sha256(Path(self._looks).read_bytes() + sys.version.encode()).digest()

    @functools.cached_property
    def _known(self) -> set[bytes]:
        try:
            with place().open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_uid != os.geteuid():
                    return set()
                if stat.st_size <= _LONGEST:
                    return set(file.read().splitlines())
            place().unlink()
        except OSError:
            pass
        return set()

    def line(self, path: str, changed: int, size: int) -> bytes:
        """Of a file; empty if nothing is kept of it, as it is the program's own. Raises OSError."""
        if not is_installed(path):
            return b""
        text = f"{path}\0{changed}\0{size}\0".encode(errors="surrogateescape")
        return hashlib.blake2b(text + self._lookers, digest_size=_DIGEST).hexdigest().encode()

    def has(self, line: bytes) -> bool:
        """Whether nothing is replaced in a file."""
        return line in self._known

    def add(self, line: bytes) -> None:
        """It is so. Where it cannot be kept, every process looks."""
        if not line:
            return
        self._known.add(line)
        try:
            place().parent.mkdir(parents=True, exist_ok=True)
            file = os.open(place(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.write(file, line + b"\n")
        except OSError:
            pass
        finally:
            os.close(file)
