"""Sizes as people write them."""

from __future__ import annotations

import re

from kernbench.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"([\d.]+)\s*([A-Za-z]*)")


def parse_size(value: int | float | str) -> int:
    """``"2GB"``, ``"512 MiB"`` or a number as bytes. Raises ConfigError for anything else."""
    match = _SIZE.fullmatch(str(value).strip())
    if not match or match[2].upper() not in _UNITS:
        raise ConfigError(f"size {value!r}: expected bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
