"""Files that people are given, read within bounds: the answer is their contents, or a ConfigError of one line.

A size is counted in bytes of the text, after gzip. What is no file (a directory, a device, a named pipe without an end) is
refused before it is read; pipes of the shell (``<(zcat trace.json.gz)``) are files.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from kernbench.errors import ConfigError

MOST_OF_A_DESCRIPTION = 16 * 2**20
"""Bytes of a description, a manifest, a record of kernels, a table: the largest known ones have less than one MiB."""

MOST_OF_A_TRACE = 2**30
"""Bytes of a trace's JSON."""

MOST_VALUES = 50_000_000
"""Values of a JSON file: each is an object of Python, of up to 100 bytes."""

MOST_OF_A_NAME = 60
"""Characters of a name that messages show."""

_BLOCK = 2**20
_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/")


class UnreadableError(ConfigError):
    """A file has no text, or none of a bearable size.

    Attributes:
        line: where, from 1.
        reason: why.
    """

    line = 1
    reason = ""

    @classmethod
    def of(cls, path: str | Path, reason: str, line: int = 0) -> UnreadableError:
        """One that names file, line (0: none) and reason."""
        place = f":{line}" if line else ""
        error = cls(f"{shown_path(path)}{place}: cannot be read: {reason}")
        error.line, error.reason = max(line, 1), reason
        return error


def shortened(text: object, most: int = MOST_OF_A_NAME) -> str:
    """Text for a message: one line of what can be printed, and of what is very long the beginning."""
    plain = str(text)
    cut = plain if len(plain) <= most else f"{plain[: most - 3]}..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def shown_path(path: str | Path) -> str:
    """A path for a message: of one that is longer than any file's, the beginning."""
    return shortened(path, 400)


def is_file(path: str | Path) -> bool:
    """Whether that is a file's path; no name is too long, or too strange, to ask."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def exists(path: str | Path) -> bool:
    """Whether anything is there, likewise."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_directory(path: str | Path) -> bool:
    """Whether that is a directory's path, likewise."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def expanded(path: str | Path) -> Path:
    """The path, ``~`` replaced by the home of a user that there is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def resolved(path: str | Path) -> Path:
    """The absolute path, links followed as far as they lead somewhere."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError):
        return Path(os.path.abspath(str(path).replace("\0", "")))


def whole_number(text: str) -> int | None:
    """The number that digits are; None for anything else, and for one that no 64 bits hold."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """For the length of a block, complaints about what a file says name it."""
    try:
        yield
    except ConfigError as error:
        shown = shown_path(path)
        if shown in str(error):
            raise
        named = ConfigError(f"{shown}: {error}")
        named.remedy = error.remedy
        raise named from None


def read_bytes(path: str | Path, most: int = MOST_OF_A_DESCRIPTION, *, compressed: bool = False) -> bytes:
    """What a file holds; ``compressed``: what it holds under gzip. Raises UnreadableError."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableError.of(path, "it is a directory")
        if not stat.S_ISREG(mode) and not str(path).startswith(_PIPES):
            raise UnreadableError.of(path, "it is no file, but a device or a named pipe")
        with open(path, "rb") as raw:
            if not compressed:
                return _read(raw, most, path)
            with gzip.GzipFile(fileobj=raw) as file:
                return _read(file, most, path)
    except UnreadableError:
        raise
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise UnreadableError.of(path, getattr(error, "strerror", None) or shortened(error, 200)) from None


def _read(file: BinaryIO | gzip.GzipFile, most: int, path: str | Path) -> bytes:
    data = bytearray()
    while block := file.read(_BLOCK):
        data += block
        if len(data) > most:
            size = f"{most // 2**20} MiB" if most >= 2**20 else f"{most} bytes"
            raise UnreadableError.of(path, f"it has more than {size}, the most that is read of such a file")
    return bytes(data)


def read_text(path: str | Path, most: int = MOST_OF_A_DESCRIPTION, *, encoding: str = "utf-8") -> str:
    """The text of a file, its lines ended by newlines alone. Raises UnreadableError."""
    data = read_bytes(path, most)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableError.of(path, f"byte {data[error.start]:#04x} is not UTF-8 text", line) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: str | Path, most: int = MOST_OF_A_DESCRIPTION, *, compressed: bool = False) -> Any:
    """The value of a JSON file. NaN and Infinity are no JSON; what a number may be is its reader's to check.

    Raises ConfigError naming file, line and column.
    """
    return parse_json(read_bytes(path, most, compressed=compressed), shown_path(path))


def parse_json(data: bytes, shown: str) -> Any:
    """The value of JSON text, as :func:`read_json` reads it; ``shown`` is what a complaint calls the file."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES:
        raise ConfigError(f"{shown}: cannot be read: it has more than {MOST_VALUES:,} values")
    try:
        return json.loads(data, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{shown}:{error.lineno}:{error.colno}: broken JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{shown}:{line}: broken JSON: it is not UTF-8 text") from None
    except RecursionError:
        raise ConfigError(f"{shown}: broken JSON: lists and mappings are nested too deeply") from None
    except ValueError as error:
        reason = "a number has too many digits" if "digits" in str(error) else shortened(error, 200)
        raise ConfigError(f"{shown}: broken JSON: {reason}") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
