"""Algorithm modules: found by the name that ``ccl.yaml`` gives, checked, and their schedules kept."""

from __future__ import annotations

import inspect
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from kernbench.ccl.expressions import check_schedule
from kernbench.ccl.placement import Placement
from kernbench.ccl.reduce_op import spelled
from kernbench.ccl.schedule import CannotServeError, Schedule
from kernbench.collective_kinds import COLLECTIVES, KINDS
from kernbench.errors import ConfigError
from kernbench.input_files import shortened
from kernbench.topology.problems import describe

SHIPPED = "kernbench.ccl.algorithms."

_CHECKED_TRANSFERS = 50_000
"""Transfers up to which the schedules of third parties are checked when they are built."""


@lru_cache(maxsize=256)
def algorithm_module(name: str) -> ModuleType:
    """Import the module of an algorithm and check its form. Raises :class:`ConfigError` that says what is missing."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"ccl.yaml: module {describe(name)}: expected a module's name, as package.module")
    try:
        module = import_module(name)
    except ImportError as error:
        raise ConfigError(f"ccl.yaml: module {describe(name)} cannot be imported: {shortened(error, 400)}") from error
    for attribute, what in (
        ("COLLECTIVE", "the collective's name"),
        ("TOPOLOGIES", "how its members may be joined"),
    ):
        if not hasattr(module, attribute):
            raise ConfigError(f"ccl.yaml: module {name!r} has no {attribute}: {what} (see docs/ccl_author_guide.md)")
    if module.COLLECTIVE not in COLLECTIVES:
        raise ConfigError(
            f"ccl.yaml: module {name!r}: COLLECTIVE is {module.COLLECTIVE!r}; expected one of {', '.join(COLLECTIVES)}"
        )
    if not hasattr(module, "build") and not hasattr(module, "run"):
        raise ConfigError(
            f"ccl.yaml: module {name!r} has neither a function build(members) -> Schedule nor, for an algorithm that is "
            "a Triton kernel, run(call) (see docs/ccl_author_guide.md)"
        )
    return module


def require_reduction(module: ModuleType, reduction: str | None) -> None:
    """Raise :class:`~kernbench.ccl.schedule.CannotServeError` unless an algorithm can do a reduction.

    A module may list those that it knows in ``REDUCTIONS``; a schedule knows all.
    """
    known = getattr(module, "REDUCTIONS", None)
    if known is not None and reduction is not None and spelled(reduction) not in known:
        raise CannotServeError(f"{module.__name__.rpartition('.')[2]}: no reduction {reduction}")


def build_schedule(
    module_name: str, members: int, root: int | None, where: Placement | None = None, chunks: int | None = None
) -> Schedule:
    """The schedule of an algorithm for ``members`` members.

    Args:
        root: a member's number, for rooted collectives.
        where: how the members stand; default: on one node, joined in no particular way.
        chunks: parts that a pipeline should cut the buffer into, for algorithms that ask; default: as they like.

    Raises :class:`~kernbench.ccl.schedule.CannotServeError` if the algorithm has no schedule for these members.
    """
    takes = _parameters(module_name)
    if "root" in takes and root is None:
        raise ConfigError(f"{module_name} builds a schedule for a root, and the collective has none")
    return _built(
        module_name,
        members,
        root if "root" in takes else None,
        (where or Placement.flat(members)) if "where" in takes else None,
        chunks if "chunks" in takes else None,
    )


@lru_cache(maxsize=256)
def _parameters(module_name: str) -> frozenset[str]:
    return frozenset(inspect.signature(_timed_by(module_name).build).parameters)


def _timed_by(module_name: str) -> ModuleType:
    """The module whose ``build`` says which transfers an algorithm makes."""
    module = algorithm_module(module_name)
    return module if hasattr(module, "build") else algorithm_module(SHIPPED + KINDS[module.COLLECTIVE].direct)


@lru_cache(maxsize=64)
def _built(module_name: str, members: int, root: int | None, where: Placement | None, chunks: int | None) -> Schedule:
    module = _timed_by(module_name)
    given = {"root": root, "where": where, "chunks": chunks}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    schedule = module.build(members, **options)
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"{module_name}.build({members}) returned {type(schedule).__name__}: expected a Schedule")
    if schedule.members != members:
        raise ConfigError(f"{module_name}.build({members}) returned a schedule for {schedule.members} members")
    if not module_name.startswith(SHIPPED) and len(schedule) <= _CHECKED_TRANSFERS:
        try:
            check_schedule(schedule, module.COLLECTIVE, root)
        except ValueError as error:
            raise ConfigError(f"{module_name}.build({members}) is no {module.COLLECTIVE}: {error}") from None
    return schedule
