"""What the arguments of :func:`kernbench.simulate` may be: one that is none of that would be taken for something else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from kernbench.ccl.config import CclConfig
from kernbench.errors import ConfigError
from kernbench.scheduler import HostEffects
from kernbench.simulation.ranks.folding import chosen_ranks
from kernbench.topology import Topology, TopologyHandle


def _whole(value: Any) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool)  # numpy's, too


def _positive(value: Any) -> bool:
    return value is None or (_whole(value) and value >= 1)


def _seed(value: Any) -> bool:
    return _whole(value) and abs(value) < 1 << 40  # those of the ranks, a million times as large, are what torch takes


def _number(value: Any) -> bool:
    return hasattr(type(value), "__float__") and not isinstance(value, bool)  # numpy's, too


def _sips(value: Any) -> bool:
    return isinstance(value, str) or _whole(value) or (isinstance(value, Collection) and all(map(_whole, value)))


def _paces(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping) and all(_whole(rank) and _number(factor) for rank, factor in value.items())
    )


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
    "seed": (_seed, "a whole number of at most 40 bits"),
    "enable_data": (_of(bool), "True or False"),
    "exact_dtype": (_of(bool), "True or False"),
    "correlation_id": (_of(str), "a text"),
    "ranks": (_of(str), "'all', 'auto', or the ranks to run, as '0,8-11'"),
    "ccl": (_of(str, Path, CclConfig, _NONE), "the path of a ccl.yaml, or what load_ccl_config has read"),
    "options": (_of(Mapping, _NONE), "a mapping of names to values"),
    "stragglers": (_paces, "a mapping of ranks to factors, such as {3: 1.2}"),
    "host_effects": (_of(HostEffects, _NONE), "HostEffects"),
    "devices": (_sips, "'all', the index of a SIP, a list of them or a range"),
    "plugins": (
        lambda value: isinstance(value, Iterable) and not isinstance(value, str | Mapping),
        "a list of plugins: objects, modules, or references such as 'package.module:name'",
    ),
    "log_limit": (_positive, f"{_COUNT}, or None for all"),
    "jitter": (_number, "a share, such as 0.02"),
    "schedule": (_of(str, _NONE), "a text: default, random:SEED, or what kernbench explore has printed"),
}
"""By argument: whether a value can be one, and in words what it may be. The others are looked at where they are read."""


def require_arguments(given: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigError` for the first that cannot be what it is given for."""
    for name, value in given.items():
        fits, words = _TAKES[name]
        if not fits(value):
            known = "; a Topology is a handle's topology_obj" if isinstance(value, Topology) else ""
            raise ConfigError(f"{name}={value!r}: expected {words}{known}")


def require_ranks(topology: Topology, sips: int, world_size: int | None, ranks: str, stragglers: Iterable[int]) -> None:
    """Raises :class:`ConfigError` for a rank that no world has which fits ``sips`` SIPs, and ``world_size`` if it is known."""
    if world_size is not None:
        topology.require_world(world_size)
    most = sips if world_size is None else min(sips, world_size)
    chosen_ranks(ranks, most)
    for rank in stragglers:
        if not 0 <= rank < most:
            raise ConfigError(f"straggler {rank} is not one of {most} ranks, the most that there can be here")
