"""The device that a name, a path or a description means."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from kernbench.errors import ConfigError
from kernbench.topology import load_device
from kernbench.topology.device import DeviceSpec
from kernbench.topology.shipped import find_config

GivenDevice: TypeAlias = DeviceSpec | str | Path
"""A device as callers give it: a description, a shipped name, a YAML path."""


def resolve_device(device: GivenDevice) -> DeviceSpec:
    """A shipped name, a YAML path or a DeviceSpec as a DeviceSpec. Raises ConfigError."""
    if isinstance(device, DeviceSpec):
        return device
    if isinstance(device, (str, Path)):
        path = find_config("devices", device)
        return _read(str(path), path.stat().st_mtime_ns)
    raise ConfigError(f"device is {device!r}; expected a shipped name, a YAML path or a DeviceSpec")


@lru_cache(64)
def _read(path: str, _modified: int) -> DeviceSpec:
    return load_device(Path(path))
