"""What to compile: kernels, each over a space of element types, world sizes, constants and options, for some targets.

Declared in Python beside the kernel:

    @kernbench.precompile.space(
        axes={"dtype": ["fp16", "bf16"], "world_size": [2, 4, 8], "PUSH": [True, False]},
        arguments={"x_ptr": "*{dtype}", "out_ptr": "*{dtype}", "n": "i32:16", "WORLD": "{world_size}", "BLOCK": 1024},
        where=["world_size <= 4 or PUSH"],
    )
    @triton.jit
    def all_reduce_kernel(x_ptr, out_ptr, n, WORLD: tl.constexpr, PUSH: tl.constexpr, BLOCK: tl.constexpr): ...

or in a YAML file with the same words. An axis that is called like a parameter, or like an option of a launch, needs no entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from kernbench.errors import ConfigError
from kernbench.grid import Filter, Point, expand, label
from kernbench.precompile import target as triton_target
from kernbench.precompile.arguments import stand_in
from kernbench.precompile.kernels import load_kernel, load_module, reference_of
from kernbench.spec_files import read_spec

DEFAULT_TARGETS = ("sm_90",)

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "debug", "enable_fp_fusion", "launch_cooperative_grid",
           "waves_per_eu", "matrix_instr_nonkdim", "kpack")  # fmt: skip
"""Axes of these names are options of the launch."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
KernelT = TypeVar("KernelT")


@dataclass(frozen=True)
class Space:
    """A kernel and the ways in which it is compiled.

    Attributes:
        kernel: ``package.module:name`` or ``path/file.py:name``; the kernel itself where it is declared in Python.
        axes: name to values; every combination is a point.
        arguments: parameter to a type (``"*{dtype}"``), a value, or a function of the point.
        options: ``num_warps`` and what else a launch takes, to a value or a function of the point.
        where: filters over the points (:func:`kernbench.grid.expand`).
        targets: compiled for these; empty means those of the call.
    """

    kernel: Any
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    where: Sequence[Filter] = ()
    targets: Sequence[str] = ()


@dataclass(frozen=True)
class Variant:
    """One compilation, in a form that another process understands.

    Attributes:
        kernel: reference of the kernel.
        point: the values of the axes, and of the autotuner's config if the kernel has one.
        arguments: parameter to a type as text or a value.
        options: options of the launch.
        target: ``cuda:90`` and the like.
    """

    kernel: str
    point: Mapping[str, Any]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    target: str

    @property
    def name(self) -> str:
        """Unique among the variants of a run: kernel, point and target."""
        place, _, kernel = self.kernel.rpartition(":")
        place = Path(place).stem if place.endswith(".py") else place
        return f"{place}:{kernel}[{label(self.point)}]@{self.target}"


class SpaceEntry(BaseModel):
    """One entry of ``kernels`` in a YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernel: str = Field(description="the kernel, as package.module:name or path/file.py:name")
    axes: dict[str, list[Any]] = {}
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = {}
    where: list[str] = []
    targets: list[str] = []


class SpaceFile(BaseModel):
    """A YAML file of spaces."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernels: list[SpaceEntry] | None = Field(description="a list of kernels, each with its axes and arguments")
    targets: list[str] = []
    recorded: bool = False  # by kernbench.precompile.record: kernels that are not there any more are left out


_declared: dict[str, list[Space]] = {}


def space(
    *,
    axes: Mapping[str, Sequence[object]] | None = None,
    arguments: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    where: Iterable[Filter] = (),
    targets: Sequence[str] = (),
) -> Callable[[KernelT], KernelT]:
    """Declare how the decorated kernel is compiled ahead of time. May be repeated; the kernel is returned unchanged."""

    def declare(kernel: KernelT) -> KernelT:
        module = triton_target.jit_function(kernel).fn.__module__
        entry = Space(kernel, axes or {}, arguments or {}, options or {}, tuple(where), targets)
        _declared.setdefault(module, []).append(entry)
        return kernel

    return declare


def read_spaces(spec: str | Path) -> list[Space]:
    """The spaces of a YAML file, or those declared in a Python module or file.

    Raises:
        ConfigError: the file is malformed, cannot be imported, or declares nothing.
    """
    text = str(spec)
    if text.endswith((".yaml", ".yml")):
        path = Path(text)
        document = read_spec(path, SpaceFile)
        spaces = [
            Space(
                _beside(entry.kernel, path.parent), entry.axes, entry.arguments, entry.options, entry.where,
                entry.targets or document.targets,
            )
            for entry in document.kernels or ()
        ]  # fmt: skip
        return [each for each in spaces if _is_there(each)] if document.recorded else spaces
    module = load_module(text)
    found = _declared.get(module.__name__, [])
    if not found:
        raise ConfigError(
            f"{text} declares nothing to precompile: decorate its kernels with @kernbench.precompile.space(...)"
        )
    return [Space(reference_of(each.kernel, module, text), each.axes, each.arguments, each.options, each.where,
                  each.targets) for each in found]  # fmt: skip


def _is_there(each: Space) -> bool:
    """Whether a recorded kernel still exists and has the parameters that it had.

    Not so if its module cannot be imported now, for whatever reason: the tests will say it.
    """
    try:
        kernel = load_kernel(each.kernel)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # pytest's outcomes, of a module that skips itself or has unknown marks, are no Exception
        return False
    parameters = set(triton_target.parameters(kernel))
    return parameters == {name for name in each.axes if name in parameters or name not in OPTIONS}


def _beside(reference: str, directory: Path) -> str:
    """A kernel's file is named relative to the file that names it."""
    place, colon, name = reference.rpartition(":")
    if place.endswith(".py") and not Path(place).is_absolute():
        return f"{directory / place}{colon}{name}"
    return reference


def variants(spaces: Iterable[Space], targets: Sequence[str] = ()) -> list[Variant]:
    """Every variant of the spaces, in their order, each once.

    Args:
        targets: compile for these, whatever the spaces say; by default for theirs, else for sm_90.

    Raises:
        ConfigError: a kernel, axis, argument, filter or target is wrong; or two spaces declare one variant differently.
    """
    found: dict[str, Variant] = {}
    for each in spaces:
        for variant in _variants_of(
            each, [triton_target.normalise(t) for t in targets or each.targets or DEFAULT_TARGETS]
        ):
            known = found.setdefault(variant.name, variant)
            if known != variant:
                raise ConfigError(
                    f"two variants are called {variant.name}, with arguments {dict(known.arguments)} and "
                    f"{dict(variant.arguments)}: give what differs an axis of its own"
                )
    return list(found.values())


def _variants_of(each: Space, targets: Sequence[str]) -> Iterable[Variant]:
    if not isinstance(each.kernel, str):
        raise ConfigError(f"{each.kernel!r}: name the kernel as package.module:name, so that workers find it")
    kernel = load_kernel(each.kernel)
    constexpr = triton_target.parameters(kernel)
    needed = triton_target.required(kernel)
    configs = triton_target.configs(kernel)
    _check_names(each, constexpr)
    for point in expand(each.axes, each.where):
        for config in configs:
            given = {name: _value(text, point, f"{each.kernel}: {name}") for name, text in each.arguments.items()}
            given |= {name: value for name, value in point.items() if name in constexpr and name not in given}
            options = {name: _value(text, point, f"{each.kernel}: {name}") for name, text in each.options.items()}
            options |= {name: value for name, value in point.items() if name in OPTIONS and name not in constexpr}
            given |= {name: value for name, value in config.items() if name in constexpr}
            options |= {name: value for name, value in config.items() if name not in constexpr}
            if missing := [name for name in constexpr if name in needed and name not in given]:
                raise ConfigError(
                    f"{each.kernel}: no value for {', '.join(missing)}; add it to `arguments`, or an axis of that name"
                )
            for name, value in given.items():
                stand_in(value, constexpr=constexpr[name], where=f"{each.kernel}: {name}")
            for target in targets:
                yield Variant(each.kernel, {**point, **config}, given, options, target)


def _check_names(each: Space, constexpr: Mapping[str, bool]) -> None:
    unknown = [name for name in each.arguments if name not in constexpr]
    if unknown:
        raise ConfigError(f"{each.kernel} has no parameter {', '.join(unknown)}; it has {', '.join(constexpr)}")
    texts = (*each.arguments.values(), *each.options.values())
    used = {name for text in texts if isinstance(text, str) for name in _PLACEHOLDER.findall(text)}
    if wrong := sorted(used - set(each.axes)):
        raise ConfigError(
            f"{each.kernel}: arguments speak of {', '.join(wrong)}; axes are {', '.join(each.axes) or 'none'}"
        )
    by_function = any(callable(text) for text in texts)
    idle = [name for name in each.axes if name not in used and name not in constexpr and name not in OPTIONS]
    if idle and not by_function:
        raise ConfigError(
            f"{each.kernel}: axis {', '.join(idle)} changes nothing: use it as {{{idle[0]}}} in `arguments` or `options`"
        )


def _value(text: object, point: Point, where: str) -> Any:
    """A declared argument at one point."""
    if callable(text):
        try:
            return text(dict(point))
        except Exception as error:
            raise ConfigError(f"{where}: {type(error).__name__}: {error} at {label(point)}") from error
    if not isinstance(text, str):
        return text
    if match := _PLACEHOLDER.fullmatch(text):
        return point[match[1]]
    return _PLACEHOLDER.sub(lambda match: str(point[match[1]]), text)
