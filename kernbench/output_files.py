"""Files that are written in the end: whether they can be is found out before."""

from __future__ import annotations

from pathlib import Path

from kernbench.errors import ConfigError


def require_place(path: str | Path, *endings: str, option: str = "") -> str:
    """The one of ``endings`` that the name has; empty if it may have any.

    Raises :class:`ConfigError`, with the ``option`` that asked for the file: the name has another ending, it is a folder, or
    there is no folder for it.
    """
    target = Path(path)
    name = f"{option} {target}".strip()
    ending = next((each for each in endings if target.name.endswith(each)), "")
    if endings and not ending:
        *others, last = endings
        raise ConfigError(
            f"{name}: expected a name that ends in {' or '.join([*filter(None, [', '.join(others)]), last])}"
        )
    if target.is_dir():
        raise ConfigError(f"{name}: is a folder; expected a file")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"{name}: there is no folder {target.absolute().parent}")
    return ending
