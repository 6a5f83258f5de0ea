"""What ``torch.save`` and ``torch.load`` write to files and read from them, for the time that it takes.

Counted are the bytes of tensors, whether they have values or not: what a file of a run with data has. Streams in memory take no
time; a stream of a distributed checkpoint is a part of a file. ``torch.load(mmap=True)`` reads nothing by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.serialization"

RELIES_ON = (
    Reliance(f"{MODULE}._open_zipfile_writer", "a context manager that gives what `torch.save` writes records to",
             looked_up_by=(f"{MODULE}.save",), parameters=("name_or_buffer",)),
    Reliance(f"{MODULE}._open_zipfile_reader", "the same, for `torch.load`", looked_up_by=(f"{MODULE}.load",)),
)  # fmt: skip

_TENSORS = "data/"
"""What the names of records of tensors begin with."""


class _Counted:
    """A zip file, and how many bytes of tensors pass."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.nbytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def _count(self, name: str, nbytes: int) -> None:
        if name.startswith(_TENSORS):
            self.nbytes += nbytes

    def write_record(self, name: str, data: Any, size: int) -> None:
        self._count(name, size)
        self._file.write_record(name, data, size)

    def write_record_metadata(self, name: str, size: int) -> None:
        self._count(name, size)
        self._file.write_record_metadata(name, size)

    def get_storage_from_record(self, name: str, size: int, dtype: Any) -> Any:
        self._count(name, size)
        return self._file.get_storage_from_record(name, size, dtype)


class _Opened:
    """A zip file that is open for the length of a ``with`` block; what has passed is reported at its end."""

    def __init__(self, opener: Any, tell: Callable[[int], None]) -> None:
        self._opener = opener
        self._tell = tell
        self._counted = _Counted(None)

    def __enter__(self) -> _Counted:
        self._counted = _Counted(self._opener.__enter__())
        return self._counted

    def __exit__(self, *failure: object) -> Any:
        result = self._opener.__exit__(*failure)
        if failure[0] is None:
            self._tell(self._counted.nbytes)
        return result


def _is_file(target: Any) -> bool:
    """Whether it is a path, a file, or a part of one."""
    while target is not None:
        if isinstance(target, str | os.PathLike):
            return True
        try:
            return int(target.fileno()) >= 0
        except (AttributeError, OSError, TypeError, ValueError):
            target = getattr(target, "base_stream", None) or getattr(target, "raw", None)
    return False


def install(patches: Patches, simulation: Simulation) -> None:
    """Let files take the time of the node's storage."""
    serialization: Any = torch.serialization

    def timed(opener: Any, writes: bool) -> Callable[[Any], Any]:
        def opened(name_or_buffer: Any) -> Any:
            found = opener(name_or_buffer)
            if not _is_file(name_or_buffer):
                return found
            return _Opened(found, lambda nbytes: simulation.disks.move(nbytes, writes))

        return opened

    patches.set(serialization, "_open_zipfile_writer", timed(serialization._open_zipfile_writer, True))
    patches.set(serialization, "_open_zipfile_reader", timed(serialization._open_zipfile_reader, False))
