"""Which files are kernbench's own: what is said of a program leaves them out. Where it keeps what later runs use."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
"""The folder of the package, with a separator at its end."""

PROGRAMS = tuple(os.path.join(PACKAGE, room, "") for room in ("benches", "examples", "programs"))
"""Folders in it whose files are programs of ranks, as a user's are."""


def is_own(filename: str) -> bool:
    """Whether a file is of the simulator: of this package, and no program."""
    return filename.startswith(PACKAGE) and not filename.startswith(PROGRAMS)


def cache_folder() -> Path:
    """The user's folder of what has been found out once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernbench"
