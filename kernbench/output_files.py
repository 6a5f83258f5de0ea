"""Files that are written in the end: whether they can be is found out before, and a reader never sees half of one.

Every file that kernbench writes for a user is written by :func:`replacing`: beside its place, and renamed when it is whole.
So a disk that is full costs the new file and not the one before, and is said in a line.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path

from kernbench.errors import ConfigError, OutputError
from kernbench.input_files import exists, is_directory, is_file, shown_path


def require_place(path: str | Path, *endings: str, option: str = "") -> str:
    """The one of ``endings`` that the name has; empty if it may have any.

    Raises :class:`ConfigError`, with the ``option`` that asked for the file: the name has another ending or is too long, it is
    a folder, or there is no folder for it, or none that may be written to.
    """
    target = Path(path)
    name = f"{option} {shown(target)}".strip()
    ending = next((each for each in endings if target.name.endswith(each)), "")
    if endings and not ending:
        *others, last = endings
        raise ConfigError(
            f"{name}: expected a name that ends in {' or '.join([*filter(None, [', '.join(others)]), last])}"
        )
    if is_directory(target):
        raise ConfigError(f"{name}: is a folder; expected a file")
    if not is_directory(target.parent):
        raise ConfigError(f"{name}: there is no folder {shown(os.path.abspath(target.parent))}")
    try:
        os.lstat(target)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from None
    folder = target if _is_written_in_place(target) else Path(os.path.realpath(target)).parent
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{name}: {shown(os.path.abspath(folder))} cannot be written to")
    return ending


def require_folder(path: str | Path, *, option: str) -> None:
    """Raises :class:`ConfigError`, with the ``option`` that asked for it, where :func:`make_folder` could not make it."""
    whole = Path(os.path.abspath(path))
    there = next(each for each in (whole, *whole.parents) if os.path.lexists(each))
    if not is_directory(there) or not os.access(there, os.W_OK):
        what = "cannot be written to" if is_directory(there) else "is no folder"
        raise ConfigError(f"{option} {shown(path)}: {shown(there)} {what}")


def shown(path: str | Path) -> str:
    """A path as text that can be written anywhere: bytes that are not UTF-8 as ``\\xff``."""
    return os.fsencode(path).decode(errors="backslashreplace")


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A block that writes a file; it gets the path to write to, and ``path`` has the file when the block has ended well.

    If it does not, what was at ``path`` before is there still, and nothing else. What is no regular file (``/dev/stdout``, a
    named pipe) is written in place, and a link stays one.

    Raises:
        OutputError: the system refuses to write it; the message says why.
    """
    if _is_written_in_place(Path(path)):
        with explained(path):
            yield Path(path)
        return
    with explained(path):
        target = Path(os.path.realpath(path))
    part = target.with_name(f"{_before(target)}{os.getpid()}.part")
    _remove_left(target)
    with explained(path):
        try:
            yield part
            if exists(target):
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            part.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


_LONGEST_NAME = 255 - len(".part") - 20
"""Bytes of the beginning of a name to which the number of a process is added."""


def _before(target: Path) -> str:
    """What the names begin with under which processes of this machine write a file."""
    name, host = target.name, platform.node().replace("/", "_")[:64]
    if len(os.fsencode(name)) + len(host) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return f".{name}.{host}-"


def _remove_left(target: Path) -> None:
    """What processes of this machine have left of this file that were ended while they wrote it (a second Ctrl-C)."""
    before = _before(target)
    with contextlib.suppress(OSError):
        for name in os.listdir(target.parent):
            number = name.removeprefix(before).removesuffix(".part")
            if name.startswith(before) and name.endswith(".part") and number.isdecimal() and not _is_alive(int(number)):
                target.with_name(name).unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_file(path: str | Path, content: str | bytes, *, compressed: bool = False) -> None:
    """Write a whole file by :func:`replacing`: text as UTF-8, lone surrogates in it escaped; ``compressed``: by gzip.

    Raises:
        OutputError: see :func:`replacing`.
    """
    data = writable_text(content).encode() if isinstance(content, str) else content
    with replacing(path) as part:
        part.write_bytes(gzip.compress(data, mtime=0) if compressed else data)


def writable_text(text: str) -> str:
    """The same as UTF-8 can write it: lone surrogates in it (a file name that is no text, say) are escaped."""
    return text.encode(errors="backslashreplace").decode()


def _is_written_in_place(path: Path) -> bool:
    if path.parts[:2] in (("/", "dev"), ("/", "proc")) and not path.is_relative_to("/dev/shm"):
        return True
    return exists(path) and not is_file(path)


def make_folder(path: str | Path) -> Path:
    """A folder for files that are asked for, made where it is missing. Raises OutputError."""
    with explained(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


@contextlib.contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """A block that writes a file or makes a folder. Raises OutputError, in a line, for what the system refuses."""
    try:
        yield
    except OSError as error:
        failure = OutputError(f"cannot write {shown_path(shown(path))}: {error.strerror or error}")
        failure.errno = error.errno
        raise failure from error
