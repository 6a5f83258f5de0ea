"""Where plugins, systems and algorithms of other distributions are found.

Entry points of three groups (``pyproject.toml`` of the other distribution):

    [project.entry-points.kernbench]                 plugins: NAME = "module" or "module:object"
    [project.entry-points."kernbench.systems"]       systems: NAME = "package" with a file NAME.yaml, or "module:path"
    [project.entry-points."kernbench.algorithms"]    algorithms: NAME = "module" (see docs/collectives.md)

and modules of the package ``kernbench.plugins`` that are not kernbench's own.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from kernbench.input_files import expanded, is_file, resolved
from kernbench.plugins.problems import PluginError, reason, warn

PLUGINS = "kernbench"
SYSTEMS = "kernbench.systems"
ALGORITHMS = "kernbench.algorithms"
VARIABLE = "KERNBENCH_PLUGINS"
"""Environment variable: modules to load, separated by commas; ``no:NAME`` leaves a plugin out."""

OWN_MODULES = frozenset({"command", "discovery", "events", "manager", "problems", "specs", "worker"})
"""Modules of ``kernbench.plugins`` that are no plugins."""


@dataclass(frozen=True)
class Found:
    """A plugin that can be loaded.

    Attributes:
        name: what it is called.
        source: where it was found, for people.
        load: imports it and returns the module or object.
    """

    name: str
    source: str
    load: Callable[[], object]


@cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, by name. Looked up once per process."""
    return tuple(sorted(_all_entry_points().select(group=group), key=lambda point: (point.name, point.value)))


@cache
def _all_entry_points() -> Any:
    return entry_points()  # reads a file of every installed distribution: once for all groups


def origin(point: EntryPoint) -> str:
    """An entry point for people: the distribution that brings it."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def find_plugins() -> list[Found]:
    """Plugins by entry point, then those that are modules of ``kernbench.plugins``; by name. Nothing is imported."""
    found = {
        point.name: Found(point.name, f"entry point of {origin(point)}", point.load) for point in installed(PLUGINS)
    }
    package = __name__.rpartition(".")[0]
    for folder in sys.modules[package].__path__:
        of_kernbench = _modules_of_kernbench(folder)
        for info in pkgutil.iter_modules([folder]):
            name = f"{package}.{info.name}"
            if info.name in of_kernbench:
                continue
            if info.name in OWN_MODULES:
                warn(f"{folder}/{info.name} cannot be a plugin: kernbench has a module {name} of its own. Rename it")
            else:
                found.setdefault(name, Found(name, f"module in {folder}", partial(import_module, name)))
    return [found[name] for name in sorted(found)]


def _modules_of_kernbench(folder: str) -> Set[str]:
    """The modules in a folder ``kernbench/plugins`` that are no plugins because a copy of kernbench has them there.

    Another copy on the path, say an editable install of another checkout, may have other modules than this one: what its
    own list (:data:`OWN_MODULES` in its source) says counts there, and all of its modules if it has none to be read.
    """
    if os.path.realpath(folder) == os.path.dirname(os.path.realpath(__file__)):
        return OWN_MODULES
    if not os.path.isfile(os.path.join(folder, "..", "cli.py")):
        return frozenset()
    try:
        source = Path(folder, "discovery.py").read_text(encoding="utf-8")
    except OSError:
        source = ""
    listed = re.search(r"^OWN_MODULES = frozenset\(\s*(\{[^}]*\})", source, re.MULTILINE)
    if listed is None:
        return {info.name for info in pkgutil.iter_modules([folder])}
    return OWN_MODULES | ast.literal_eval(listed.group(1))


def load_reference(reference: str) -> Any:
    """``module``, ``module:object`` or ``path/file.py[:object]``, imported. Raises :class:`PluginError`."""
    place, _, name = reference.partition(":")
    try:
        module = _load_file(place) if place.endswith(".py") else import_module(place)
    except Exception as error:
        raise PluginError(f"plugin {reference!r} cannot be imported: {reason(error)}") from error
    if not name:
        return module
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise PluginError(f"plugin {reference!r}: {getattr(found, '__name__', found)} has no {part!r}")
        found = getattr(found, part)
    return found


def _load_file(text: str) -> object:
    path = resolved(expanded(text))
    if not is_file(path):
        raise FileNotFoundError(f"there is no file {path}")
    status = path.stat()
    return _executed(path, (status.st_mtime_ns, status.st_size))


@cache  # a file that is given twice is one plugin
def _executed(path: Path, version: tuple[int, int]) -> object:
    """The module that a file is; ``version``: when it was changed, and its bytes."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry_point_systems() -> dict[str, tuple[Path, str]]:
    """Systems of other distributions: the YAML file of each, and who brings it. Raises :class:`PluginError`."""
    return {point.name: (_system_file(point), origin(point)) for point in installed(SYSTEMS)}


def _system_file(point: EntryPoint) -> Path:
    try:
        if ":" in point.value:
            value = point.load()
            path = Path(value() if callable(value) else value)
        else:
            spec = find_spec(point.value)
            folders = [] if spec is None else list(spec.submodule_search_locations or ())
            path = next((Path(folder) / f"{point.name}.yaml" for folder in folders), Path(point.value))
    except Exception as error:
        raise PluginError(f"system {point.name!r} of {origin(point)} ({point.value}): {reason(error)}") from error
    if not is_file(path):
        raise PluginError(
            f"system {point.name!r} of {origin(point)}: entry point {point.value!r} gives no file ({path}); expected a "
            f"package that has {point.name}.yaml, or module:name of a path"
        )
    return path


@cache
def entry_point_algorithms() -> dict[str, tuple[Mapping[str, object], str]]:
    """Algorithms of other distributions: the entry of ``ccl.yaml`` of each, and who brings it.

    One that cannot be imported is left out with a warning.
    """
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    for point in installed(ALGORITHMS):
        try:
            found[point.name] = (algorithm_entry({"module": point.value}), origin(point))
        except Exception as error:
            warn(f"algorithm {point.name} of {origin(point)} ({point.value}) is left out: {reason(error)}", error)
    return found


def algorithm_entry(entry: Mapping[str, object]) -> Mapping[str, Any]:
    """An entry of ``ccl.yaml`` with a topology: without one, the first of those that the module can do."""
    if "topology" in entry or "module" not in entry:
        return entry
    topologies = getattr(import_module(str(entry["module"])), "TOPOLOGIES", ())
    return {**entry, "topology": topologies[0]} if topologies else entry
