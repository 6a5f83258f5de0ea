"""What the arguments of :func:`kernbench.simulate` may be: one that is none of that would be taken for something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernbench.ccl.config import CclConfig
from kernbench.errors import ConfigError
from kernbench.scheduler import HostEffects
from kernbench.topology import Topology, TopologyHandle


def _whole(value: Any) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool)  # numpy's, too


def _positive(value: Any) -> bool:
    return value is None or (_whole(value) and value >= 1)


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_NONE = type(None)
_COUNT = "a whole number from 1 on"

_TAKES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "system": (
        _of(str, Path, TopologyHandle, _NONE),
        "a name, the path of a YAML file, or a handle (resolve_topology)",
    ),
    "world_size": (_positive, _COUNT),
    "nodes": (_positive, _COUNT),
    "stop_after_steps": (_positive, _COUNT),
    "seed": (_whole, "a whole number"),
    "enable_data": (_of(bool), "True or False"),
    "exact_dtype": (_of(bool), "True or False"),
    "correlation_id": (_of(str), "a text"),
    "ranks": (_of(str), "'all', 'auto', or the ranks to run, as '0,8-11'"),
    "ccl": (_of(str, Path, CclConfig, _NONE), "the path of a ccl.yaml, or what load_ccl_config has read"),
    "options": (_of(Mapping, _NONE), "a mapping of names to values"),
    "stragglers": (_of(Mapping, _NONE), "a mapping of ranks to factors"),
    "host_effects": (_of(HostEffects, _NONE), "HostEffects"),
}
"""By argument: whether a value can be one, and in words what it may be. The others are looked at where they are read."""


def require_arguments(given: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigError` for the first that cannot be what it is given for."""
    for name, value in given.items():
        fits, words = _TAKES[name]
        if not fits(value):
            known = "; a Topology is a handle's topology_obj" if isinstance(value, Topology) else ""
            raise ConfigError(f"{name}={value!r}: expected {words}{known}")
