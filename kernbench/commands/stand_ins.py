"""``kernbench stand-ins``: the packages of CUDA builds that have a stand-in, and what each has."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernbench.plurals import counted
from kernbench.suggestions import did_you_mean

if TYPE_CHECKING:
    from kernbench.compiled_operators import Operators
    from kernbench.stand_ins import StandIn


@click.command(name="stand-ins")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the packages of CUDA builds that have a stand-in; of NAME, also every operator.

    Operators are those of the installed package; v: it has values, c: a cost. One without values works without data; one
    without a cost is counted by its bytes.
    """
    from kernbench.errors import ConfigError
    from kernbench.stand_ins.table import find, names, source_of

    if name is None:
        for each in names():
            found = find(each)
            assert found is not None
            click.echo(f"{each:<18} {_tested(found)}; {source_of(each)}")
            for line in _summary(found):
                click.echo(f"  {line}")
        click.echo("kernbench run --stand-in NAME, or --stand-in auto for whatever a program needs of these")
        return
    stand_in = find(name)
    if stand_in is None:
        raise ConfigError(
            f"there is no stand-in for {name}{did_you_mean(name, names())}; there are: {', '.join(names())}"
        )
    click.echo(f"{stand_in.name}: {_tested(stand_in)}")
    for line in _summary(stand_in):
        click.echo(line)
    for module, names_of in _functions(stand_in):
        click.echo(module)
        for function in names_of:
            click.echo(f"  {function}")
    for module, reference in stand_in.libraries.items():
        operators, schemas = _of_module(module, reference)
        click.echo(module)
        for operator in sorted({*schemas, *operators.computed, *operators.priced}):
            marks = ("v" if operator in operators.computed else "-") + ("c" if operator in operators.priced else "-")
            click.echo(
                f"  {marks} {operator}" + ("" if not schemas or operator in schemas else " (not in what is installed)")
            )


def _tested(stand_in: StandIn) -> str:
    what = "has the functions of" if stand_in.folder else "operators, tested with"
    return f"{'functions, tested with' if stand_in.bound and not stand_in.folder else what} {stand_in.release}"


def _summary(stand_in: StandIn) -> Iterator[str]:
    if stand_in.folder is not None:
        modules = sorted(
            ".".join(each.relative_to(stand_in.folder.parent).with_suffix("").parts).removesuffix(".__init__")
            for each in stand_in.folder.rglob("*.py")
            if each.name == "__init__.py" or not each.name.startswith("_")
        )
        yield f"modules: {', '.join(modules)}"
    if stand_in.only_by_name:
        yield f"comes by --stand-in {stand_in.name}, not by auto: engines look for it, and do without"
    for module, names_of in _functions(stand_in):
        kernels: Operators | None = getattr(importlib.import_module(stand_in.bound[module]), "operators", None)
        over = "" if kernels is None else f" over {counted(len(kernels.schemas), 'kernel')}, {_counts(kernels)}"
        yield f"{module}: {counted(len(names_of), 'function')}{over}"
    for module, reference in stand_in.libraries.items():
        operators, schemas = _of_module(module, reference)
        of = counted(len(schemas), "operator") if schemas else "not installed"
        yield f"{module}: {of}, {_counts(operators)}"
    if stand_in.folder is None:
        yield f"without CUDA the package is installed by {stand_in.command}"


def _counts(operators: Operators) -> str:
    return f"{len(operators.computed)} with values, {len(operators.priced)} with costs"


def _functions(stand_in: StandIn) -> Iterator[tuple[str, list[str]]]:
    """The names of each compiled module that gives functions."""
    for module, place in stand_in.bound.items():
        names = importlib.import_module(place).NAMES
        yield module, sorted(name for name in names if not name.startswith("_"))


def _of_module(module: str, reference: str) -> tuple[Operators, dict[str, str]]:
    """What stands in for a compiled module, and the schemas of what is installed; empty if it is not."""
    from kernbench.compiled_operators.schemas import schemas_in
    from kernbench.plugins.discovery import load_reference

    operators: Operators = load_reference(reference)
    if operators.schemas:
        return operators, operators.schemas
    library = _library(module)
    return operators, {} if library is None else schemas_in(library)


def _library(module: str) -> Path | None:
    """The file of a compiled module, or of the library of a pattern, found without importing the packages that it is in."""
    path = None
    spec = None
    if "/" in module:
        package, _, pattern = module.partition("/")
        spec = PathFinder.find_spec(package)
        folders = (spec and spec.submodule_search_locations) or ()
        return next((file for folder in folders for file in sorted(Path(folder).glob(pattern))), None)
    parts = module.split(".")
    for at in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: at + 1]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return None if spec is None or spec.origin is None else Path(spec.origin)
