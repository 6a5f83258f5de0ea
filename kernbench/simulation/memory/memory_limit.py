"""How much memory of a GPU each process may reserve, as people write it."""

from __future__ import annotations

from kernbench.errors import ConfigError
from kernbench.topology.units import SIZE, QuantityError

Limit = int | str
"""Bytes that each process may reserve on a SIP, besides what CUDA and its libraries take; ``"device"``: what the SIP has, less
that; ``"off"``: any number."""


def parse_limit(given: object) -> Limit:
    """A limit as people write it: ``"device"``, ``"off"``, ``"80GB"``, ``"512 MiB"`` or bytes. Raises :class:`ConfigError`."""
    if given in ("device", "off"):
        return str(given)
    try:
        nbytes = SIZE.parse(given)
    except QuantityError as error:
        raise ConfigError(f"memory limit {error.found}: expected 'device', 'off', or {error.expected}") from error
    if nbytes < 1 or nbytes != int(nbytes):
        raise ConfigError(f"memory limit {given!r}: expected at least one byte")
    return int(nbytes)
