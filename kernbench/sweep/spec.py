"""What a sweep runs: a program over a grid of parameters."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kernbench.errors import ConfigError
from kernbench.grid import Point, expand, label
from kernbench.input_files import is_file, resolved
from kernbench.precompile.kernels import importing_within, load_module
from kernbench.runtime_api.program_gpus import program_gpus
from kernbench.spec_files import read_spec
from kernbench.version import __version__

Program = Callable[..., "Mapping[str, Any] | None"]


class PlotSpec(BaseModel):
    """A plot of the table: ``y`` over ``x``, a line for each combination of ``by``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    x: str = Field(description="axis or column of the horizontal axis")
    y: str = "virtual_seconds"
    by: list[str] = []
    log: bool = False


class SweepSpec(BaseModel):
    """A sweep.

    Attributes:
        program: ``package.module:function`` or ``path/file.py:function``, called as ``function(ctx, **parameters)``. What it
            returns, a mapping of names to numbers or text, becomes columns of the table.
        axes: name to values. ``system``, ``nodes``, ``world_size``, ``algorithm``, ``seed``, ``policy`` and ``enable_data``
            describe the simulation; they and all others are passed to the program, if it has parameters of these names.
        fixed: parameters that are the same at every point.
        where: filters over the points.
        plugins: references of plugins that take part (``module``, ``module:object``, ``path/file.py``).
        stand_ins: packages of CUDA builds that the program imports and that are not installed (``flash_attn``).
        plot: drawn at the end, if given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    program: str = Field(description="the program, as package.module:function or path/file.py:function")
    axes: dict[str, list[Any]] = Field(description="axes: name to a list of values")
    fixed: dict[str, Any] = {}
    where: list[str] = []
    plugins: list[str] = []
    stand_ins: list[str] = []
    plot: PlotSpec | None = None


@dataclass(frozen=True)
class Task:
    """One point, in a form that another process understands.

    Attributes:
        index: its place in the grid.
        point: the values of the axes.
        parameters: those and the fixed ones.
        program: reference of the program, a file's path absolute.
        plugins: references of plugins.
        stand_ins: names of packages.
        key: what a journal knows it by: program with its source, parameters, kernbench's version.
    """

    index: int
    point: Point
    parameters: Point
    program: str
    plugins: tuple[str, ...]
    stand_ins: tuple[str, ...]
    key: str


def read_sweep(path: str | Path) -> SweepSpec:
    """The sweep of a YAML file. Raises ConfigError listing what is wrong. Paths in it are relative to the file."""
    file = Path(path)
    spec = read_spec(file, SweepSpec)
    place, _, name = spec.program.rpartition(":")
    program = f"{resolved(file.parent / place)}:{name}" if place.endswith(".py") else spec.program
    beside = {name: [_beside(value, file.parent) for value in values] for name, values in spec.axes.items()}
    plugins = [plugin_beside(reference, file.parent) for reference in spec.plugins]
    return spec.model_copy(
        update={"program": program, "plugins": plugins, "axes": beside if "system" in spec.axes else spec.axes}
    )


def _beside(value: object, directory: Path) -> Any:
    """The path of a YAML file that lies beside the sweep's."""
    if isinstance(value, str) and value.endswith((".yaml", ".yml")) and is_file(directory / value):
        return str(resolved(directory / value))
    return value


def plugin_beside(reference: str, directory: Path) -> str:
    """The path of a plugin's file is relative to the sweep's."""
    place, colon, name = reference.partition(":")
    return f"{resolved(directory / place)}{colon}{name}" if place.endswith(".py") else reference


def reference_of(program: Program | str) -> str:
    """A program by reference. Raises ConfigError for a function that another process cannot find."""
    if isinstance(program, str):
        return program
    name = getattr(program, "__qualname__", "")
    if not name or "<" in name:
        raise ConfigError(f"{program!r}: a sweep's program must be a function at the top of a module or file")
    module = program.__module__
    return f"{inspect.getsourcefile(program)}:{name}" if module == "__main__" else f"{module}:{name}"


def load_program(reference: str) -> Program:
    """The function that a reference means. Raises ConfigError."""
    place, _, name = reference.rpartition(":")
    if not place:
        raise ConfigError(f"program {reference!r}: expected package.module:function or path/file.py:function")
    with importing_within(program_gpus):
        found = getattr(load_module(place), name, None)
    if not callable(found):
        raise ConfigError(f"program {reference!r}: there is no function {name!r}")
    return found


def tasks_of(spec: SweepSpec) -> list[Task]:
    """The points of a sweep, in their order.

    Raises:
        ConfigError: the program cannot be found, has no place for a parameter, or two axes of the grid clash.
    """
    program = load_program(spec.program)
    source = _source_of(program)
    both = set(spec.axes) & set(spec.fixed)
    if both:
        raise ConfigError(f"{', '.join(sorted(both))}: both an axis and fixed")
    _require_place(program, {*spec.axes, *spec.fixed}, spec.program)
    tasks = []
    for index, point in enumerate(expand(spec.axes, spec.where)):
        parameters = {**spec.fixed, **point}
        identity = [__version__, spec.program, source, parameters, *spec.plugins]
        text = json.dumps(identity, sort_keys=True, default=repr)
        key = hashlib.sha256(text.encode()).hexdigest()
        tasks.append(Task(index, point, parameters, spec.program, tuple(spec.plugins), tuple(spec.stand_ins), key))
    if not tasks:
        raise ConfigError(f"no point of the grid passes {', '.join(spec.where)}")
    repeated = {task.key: task for task in tasks}
    if len(repeated) < len(tasks):
        twice = next(task for task in tasks if repeated[task.key] is not task)
        raise ConfigError(f"the grid has a point twice: {label(twice.point)}")
    return tasks


SIMULATION = ("system", "nodes", "world_size", "algorithm", "seed", "policy", "enable_data")
"""Parameters that describe the simulation; a program may take them too."""


def accepted(program: Program, parameters: Mapping[str, object]) -> dict[str, Any]:
    """Those of the parameters that the program takes."""
    signature = inspect.signature(program).parameters
    if any(each.kind is each.VAR_KEYWORD for each in signature.values()):
        return dict(parameters)
    return {name: value for name, value in parameters.items() if name in signature}


def _require_place(program: Program, names: set[str], reference: str) -> None:
    taken = accepted(program, dict.fromkeys(names))
    idle = sorted(name for name in names if name not in taken and name not in SIMULATION)
    if idle:
        have = ", ".join(list(inspect.signature(program).parameters)[1:])
        raise ConfigError(f"{reference} has no parameter {', '.join(idle)}; it has {have or 'none'}")


def _source_of(program: Program) -> str:
    """The text of the program's file, so that results of an older text are not taken for those of this one."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(program))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""
