"""Sizes and ports as people write them."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)")
_PORTS = re.compile(r"(\d{1,5})(?::(\d{1,5}))?")


def parse_size(value: int | float | str) -> int:
    """``"2GB"``, ``"512 MiB"`` or a number as bytes. Raises ConfigError for anything else."""
    match = _SIZE.fullmatch(str(value).strip())
    size = float(match[1]) * _UNITS[match[2].upper()] if match and match[2].upper() in _UNITS else math.inf
    if size >= 2**63:
        raise _wrong(f"size {str(value)[:60]!r}: expected bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    return int(size)


def parse_ports(value: str) -> tuple[int, int]:
    """``"FIRST:COUNT"`` as numbers; one port without a count. Raises ConfigError for anything else."""
    match = _PORTS.fullmatch(value)
    first, count = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
    if not 0 < first <= first + count - 1 < 1 << 16:
        raise _wrong(f"ports {value[:60]!r}: expected FIRST:COUNT, as 25900:1024")
    return first, count


def _wrong(text: str) -> ConfigError:
    from kernbench.errors import ConfigError  # not in runs of pytest that have nothing to do with it

    return ConfigError(text)
