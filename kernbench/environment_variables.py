"""Variables of this process's environment: their values, and such as are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kernbench.errors import ConfigError


def one_of(name: str, *values: str) -> str:
    """The value of a variable; the first of ``values`` where it is empty or not set.

    Raises ConfigError if it is none of them.
    """
    value = os.environ.get(name) or values[0]
    if value not in values:
        raise ConfigError(f"{name}={value}: expected {', '.join(values[:-1])} or {values[-1]}")
    return value


def is_on(name: str) -> bool:
    """Whether a variable is ``1``, and neither ``0`` nor empty nor unset. Raises ConfigError if it is none of them."""
    return one_of(name, "0", "1") == "1"


@contextmanager
def variables_set(values: Mapping[str, str | None]) -> Iterator[None]:
    """For the length of a block variables have these values (None: are not there). What they were comes back."""
    before = {name: os.environ.get(name) for name in values}
    _put(values)
    try:
        yield
    finally:
        _put(before)


@contextmanager
def variables_kept() -> Iterator[None]:
    """For a block that sets variables of its own: all are what they were when it has ended."""
    before = dict(os.environ)
    try:
        yield
    finally:
        _put({**dict.fromkeys(os.environ), **before})


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
