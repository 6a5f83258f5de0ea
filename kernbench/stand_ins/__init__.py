"""Packages that exist only as builds for CUDA: their public functions on torch's operations, or the operators of their compiled
parts by definition.

``kernbench run --stand-in flash_attn`` lets a program import one that is not installed, ``--stand-in vllm`` one that is and
whose compiled modules are not for this machine, ``--stand-in auto`` whatever has a stand-in and cannot be imported. Values are
those of the package's definition; time is that of torch's operations, or what the operator's cost says.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from kernbench.environment_variables import variables_set
from kernbench.errors import ConfigError
from kernbench.input_files import resolved
from kernbench.stand_ins.finders import (
    TAKEN,
    AutomaticFinder,
    CompiledFinder,
    PackageFinder,
    leave_libraries,
    names_of,
    needs_cuda,
)
from kernbench.stand_ins.table import StandIn, all_of_them, find, names
from kernbench.suggestions import did_you_mean

__all__ = [
    "AUTO", "TOLD", "StandIn", "builds_kernels", "loads_libraries", "needs_cuda", "of_each_rank", "remarks",
    "stand_in_as_told", "stand_in_for", "standing_in",
]  # fmt: skip

AUTO = "auto"
"""The name for all of them, where they are needed."""

TOLD = "KERNBENCH_STAND_INS"
"""The environment variable that tells started processes which packages they can import: their names, with commas."""

_START_UP = Path(__file__).resolve().parent.parent / "runtime_api" / "start_up"
"""The folder whose ``sitecustomize`` reads :data:`TOLD`."""


def stand_in_for(error: BaseException) -> str | None:
    """What to say of an import that has failed: of a package that has a stand-in, or of a name that the stand-in lacks."""
    whole = (getattr(error, "name", None) or "") if isinstance(error, ImportError) else ""
    name = whole.partition(".")[0]
    stand_in = find(name) if name in names() else None
    if stand_in is None:
        return None
    folder = stand_in.folder
    if folder is None:
        if stand_in.bound and isinstance(error, ModuleNotFoundError) and not _is_installed(name):
            return (
                f"{name} is not installed: {stand_in.command}; kernbench run --stand-in {name} has its compiled modules"
            )
        return None
    if isinstance(error, ImportError) and folder in Path(error.path or "").parents:
        stands_in = any(isinstance(each, PackageFinder) and each.name == name for each in sys.meta_path)
        with nullcontext() if stands_in else standing_in([name]):
            return f"what the stand-in for {whole} has is {names_of(importlib.import_module(whole))}"
    if not isinstance(error, ModuleNotFoundError) or importlib.util.find_spec(name) is not None:
        return None
    return f"{name} is not installed: kernbench run --stand-in {name} has its public functions, on torch's operations"


def loads_libraries(files: Iterable[str]) -> str | None:
    """The package whose module, of those that a stand-in is executed around, is one of these files."""
    for file in files:
        for name in (each for each in names() if f"/{each}/" in file):
            stand_in = find(name)
            ends = [f"/{module.replace('.', '/')}" for module in (() if stand_in is None else stand_in.around)]
            if any(file.endswith((f"{end}.py", f"{end}/__init__.py")) for end in ends):
                return name
    return None


def builds_kernels(files: Iterable[str]) -> str | None:
    """The package with one of these files, where it has a stand-in for what it compiles that is not in effect."""
    in_effect = {each.name for each in sys.meta_path if isinstance(each, CompiledFinder)}
    compiled = [each.name for each in all_of_them() if each.compiles and each.name not in in_effect]
    return next((name for file in files for name in compiled if f"/{name}/" in file), None)


@contextmanager
def standing_in(wanted: Iterable[str]) -> Iterator[None]:
    """For the length of a block, these packages can be imported, and are found by searches for their releases; also by what
    Python is started within it. ``wanted``: names, references to a :class:`StandIn` (``file.py:object``), or :data:`AUTO`.

    Raises:
        ConfigError: there is no such stand-in, or the package is installed and needs none, or is not and has to be.
    """
    wanted = [_whole(name) for name in wanted]
    chosen: dict[str, list[Any]] = {}
    for name in wanted:
        stand_in = None if name == AUTO else find(name)
        if name != AUTO and stand_in is None:
            raise ConfigError(
                f"--stand-in {name}: there is none{did_you_mean(name, names())}; there are: {', '.join([*names(), AUTO])}"
            )
        if stand_in is not None:
            _require_use(name, stand_in)
        chosen[name] = _finders(stand_in)
    path, modules = list(sys.meta_path), set(sys.modules)
    for finders in chosen.values():
        _insert(finders)
    told = {}
    if wanted:
        names_told = [*filter(None, [os.environ.get(TOLD)]), *wanted]
        told = {TOLD: ",".join(names_told), "PYTHONPATH": _first_on_path(_START_UP, os.environ.get("PYTHONPATH"))}
    try:
        with variables_set(told):
            yield
    finally:
        found = [each for finders in chosen.values() for each in finders]
        sys.meta_path[:] = [each for each in sys.meta_path if each in path or each not in found]
        leave_libraries()
        _forget_modules(found, modules)


def stand_in_as_told(told: str) -> None:
    """In a process that is started: let it import these packages, the value of :data:`TOLD`, unless its Python has them."""
    for name in filter(None, told.split(",")):
        stand_in = None if name == AUTO else find(name)
        if name == AUTO or (stand_in is not None and _stands_in(stand_in)):
            _insert(_finders(stand_in))


def of_each_rank(wanted: Iterable[str]) -> list[str]:
    """The packages, of those that :func:`standing_in` is asked for, whose Python each rank executes for itself."""
    wanted = list(wanted)
    found = all_of_them() if AUTO in wanted else filter(None, map(find, wanted))
    return sorted({each.name for each in found if each.per_rank})


def remarks() -> list[str]:
    """What a run has to say of the stand-ins that its program has imported."""
    return list(TAKEN.values())


def _first_on_path(folder: Path, path: str | None) -> str:
    others = [each for each in (path or "").split(os.pathsep) if each and each != str(folder)]
    return os.pathsep.join([str(folder), *others])


def _whole(name: str) -> str:
    """A reference to a file, with its whole path: processes may be started elsewhere."""
    place, _, what = name.partition(":")
    return f"{resolved(place)}:{what}" if place.endswith(".py") else name


def _stands_in(stand_in: StandIn) -> bool:
    """Whether it is what a program imports: a folder is not, where the package is installed and does not give way."""
    return stand_in.folder is None or stand_in.instead or not _is_installed(stand_in.name)


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _require_use(asked: str, stand_in: StandIn) -> None:
    if not _stands_in(stand_in):
        raise ConfigError(f"--stand-in {asked}: it is installed, so it is what the program imports: leave this out")
    alone = {each.partition(".")[0] for each in stand_in.compiled if "." not in each}
    if stand_in.folder is None and not alone:
        missing = [each for each in (stand_in.name, *stand_in.needs) if not _is_installed(each)]
        if missing:
            raise ConfigError(
                f"--stand-in {asked}: {missing[0]} is not installed, and it stands in for compiled modules only: "
                f"{stand_in.command}"
            )


def _finders(stand_in: StandIn | None) -> list[Any]:
    """What finds one stand-in; all of them for None."""
    if stand_in is None:
        return [AutomaticFinder(), *(CompiledFinder(each, anyway=False) for each in all_of_them() if each.compiles)]
    found: list[Any] = []
    for each in (stand_in, *filter(None, map(find, stand_in.together))):
        found += [] if each.folder is None else [PackageFinder(each)]
        found += [CompiledFinder(each, anyway=True)] if each.compiles else []
    return found


def _insert(finders: Iterable[Any]) -> None:
    """Ask them before all others; the automatic one last."""
    for each in finders:
        if isinstance(each, AutomaticFinder):
            sys.meta_path.append(each)
        else:
            sys.meta_path.insert(0, each)


def _forget_modules(finders: Iterable[Any], before: set[str]) -> None:
    """Stand-ins' modules are imported no more."""
    TAKEN.clear()
    packages: set[str] = set()
    compiled: set[str] = set()
    for each in finders:
        if isinstance(each, AutomaticFinder):
            packages |= each.taken
        elif isinstance(each, PackageFinder):
            packages.add(each.name)
        else:
            compiled |= {*each.stand_in.compiled, *each.stand_in.bound} - before
            if each.stand_in.around and each.name not in before:  # its modules keep what they asked of one simulation
                packages.add(each.name)
    for loaded in [each for each in sys.modules if each.partition(".")[0] in packages or each in compiled]:
        del sys.modules[loaded]
