"""Variables of this process's environment that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


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
