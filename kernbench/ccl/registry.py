"""Algorithm modules: found by the name that ``ccl.yaml`` gives, checked, and their schedules kept."""

from __future__ import annotations

import inspect
from functools import lru_cache
from importlib import import_module
from types import ModuleType

from kernbench.ccl.schedule import Schedule
from kernbench.errors import ConfigError


@lru_cache(maxsize=256)
def algorithm_module(name: str) -> ModuleType:
    """Import the module of an algorithm and check its form. Raises :class:`ConfigError` that says what is missing."""
    try:
        module = import_module(name)
    except ImportError as error:
        raise ConfigError(f"ccl.yaml: module {name!r} cannot be imported: {error}") from error
    for attribute, what in (
        ("COLLECTIVE", "the collective's name"),
        ("TOPOLOGIES", "how its members may be joined"),
        ("build", "a function build(members) -> Schedule"),
    ):
        if not hasattr(module, attribute):
            raise ConfigError(f"ccl.yaml: module {name!r} has no {attribute}: {what} (see docs/collectives.md)")
    return module


@lru_cache(maxsize=64)
def build_schedule(module_name: str, members: int, root: int | None) -> Schedule:
    """The schedule of an algorithm for ``members`` members; ``root`` is a member's number, for rooted collectives."""
    build = algorithm_module(module_name).build
    rooted = "root" in inspect.signature(build).parameters
    if rooted and root is None:
        raise ConfigError(f"{module_name} builds a schedule for a root, and the collective has none")
    schedule = build(members, root=root) if rooted else build(members)
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"{module_name}.build({members}) returned {type(schedule).__name__}: expected a Schedule")
    if schedule.members != members:
        raise ConfigError(f"{module_name}.build({members}) returned a schedule for {schedule.members} members")
    return schedule
