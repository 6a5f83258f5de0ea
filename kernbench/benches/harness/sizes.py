"""Message sizes as nccl-tests writes them, and sweeps over them."""

from __future__ import annotations

import re
from typing import Any

import click

_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of ``"1024"``, ``"4K"``, ``"1.5M"``, ``"64MiB"``; suffixes are powers of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: expected a number of bytes, with K, M, G or T for powers of 1024")
    nbytes = float(match[1]) * _FACTORS[match[2].upper()]
    if nbytes >= 2**63 or nbytes != int(nbytes):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(nbytes)


def format_size(nbytes: int) -> str:
    """The shortest way to write ``nbytes`` that :func:`parse_size` reads back exactly."""
    for suffix, factor in reversed(_FACTORS.items()):
        if nbytes and nbytes % factor == 0:
            return f"{nbytes // factor}{suffix}"
    return str(nbytes)


def sweep(begin: int, end: int, *, factor: int | None = None, increment: int | None = None) -> list[int]:
    """Sizes from ``begin`` to ``end``, both included if hit: times ``factor``, or plus ``increment`` bytes.

    Raises ValueError if the sweep is empty or would not end.
    """
    if end < begin:
        raise ValueError(f"the largest size ({end} bytes) is below the smallest ({begin} bytes)")
    if begin == end:
        return [begin]
    if increment is not None:
        if increment < 1:
            raise ValueError(f"an increment of {increment} bytes never reaches the largest size")
        return list(range(begin, end + 1, increment))
    if factor is None or factor < 2:
        raise ValueError(f"a factor of {factor} never reaches the largest size: expected at least 2")
    if begin < 1:
        raise ValueError("a sweep by a factor cannot start at 0 bytes: give an increment")
    sizes = [begin]
    while sizes[-1] * factor <= end:
        sizes.append(sizes[-1] * factor)
    return sizes


class SizeType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A click parameter that :func:`parse_size` reads."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = SizeType()
