"""Folders in which the processes of a test run meet: what another user has put there is never read.

The folder for temporary files belongs to all users of the machine, and the first to come makes a name. So a run's own folder
has a name that cannot be guessed, and of one whose name can be (all runs of a user share the machine's GPUs) it is looked up
whose it is.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from kernbench.errors import ConfigError


def run_folder() -> Path:
    """A new folder for one run, which this user alone can read and write, under a name that cannot be guessed."""
    return Path(tempfile.mkdtemp(prefix="kernbench-tests-"))


def user_folder(name: str) -> Path:
    """A folder of this user, the same for all processes: ``name`` and the user's number, where temporary files are.

    Raises:
        ConfigError: another user has one of this name there, or can write to it.
    """
    user = os.geteuid() if hasattr(os, "geteuid") else os.environ.get("USERNAME", "user")
    return private_folder(Path(tempfile.gettempdir()) / f"{name}-{user}")


def private_folder(path: Path) -> Path:
    """Make a folder (mode 0700), unless it is there and this user's alone.

    Raises:
        ConfigError: it is another user's or can be written by others, or is no folder.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()  # a link leads where its owner wants
        if not stat.S_ISDIR(found.st_mode):
            raise ConfigError(
                f"{path}: expected a folder of this user: remove it, or set TMPDIR to another one"
            ) from None
        if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
            raise ConfigError(
                f"{path}: users of this machine other than you can write there (owner {found.st_uid}, mode "
                f"{stat.S_IMODE(found.st_mode):o}): remove it, or set TMPDIR to a folder of your own"
            ) from None
        path.chmod(0o700)
    return path
