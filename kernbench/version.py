"""The version of kernbench, for every room (the front door is above them), and those of others that it is tested with."""

from __future__ import annotations

import re

__version__ = "0.3.0"

TESTED = {
    "Python": ("3.10", "3.11", "3.12", "3.13"),
    "torch": ("2.13.0", "2.14.1", "2.15.0"),
    "triton": ("3.6.0", "3.7.1", "3.9.0"),
}
"""Of what kernbench depends on the inside of: the releases that its tests have run with, from the oldest, which it needs.

A later release is not refused (ADR 0164): ``kernbench doctor`` says it. The Makefile's matrices, pyproject.toml,
constraints.txt and the docs say the same (``tests/house/test_versions.py``).
"""


def numbers(version: str) -> tuple[int, ...]:
    """``(2, 13, 0)`` of ``"2.13.0+cpu"``; a version that begins with no number has none."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def installed(name: str) -> str:
    """The version of a package that is installed; empty if none is."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def is_beyond_tested(name: str, version: str) -> bool:
    """Whether a version is of a later series than the newest one in :data:`TESTED`: 2.16.0 is, 2.15.1 is not, beside 2.15.0."""
    return numbers(version)[:2] > numbers(TESTED[name][-1])[:2]
