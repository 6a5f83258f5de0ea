"""``kernbench bench``: list and run benchmark programs.

A bench is an entry point of the group ``kernbench.benches`` that names a module with ``run(ctx)``, and, if it takes
arguments of its own, a click command called ``command`` (see :mod:`kernbench.benching`). Its own benches reach kernbench
as those of other distributions do.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click.shell_completion import CompletionItem

from kernbench.errors import ConfigError
from kernbench.names import ALGORITHM, SYSTEM, Name
from kernbench.suggestions import did_you_mean

GROUP = "kernbench.benches"


@dataclass(frozen=True)
class Bench:
    """A bench that can be run: its name, its module, and the distribution that brings it."""

    name: str
    module: str
    distribution: str

    def load(self) -> ModuleType:
        """Import it. Raises :class:`ConfigError` if that fails, or it is no bench."""
        try:
            module = import_module(self.module)
        except ImportError as error:
            raise ConfigError(
                f"bench {self.name!r} of {self.distribution} cannot be imported from {self.module}: {error}"
            ) from error
        if not callable(getattr(module, "run", None)):
            raise ConfigError(f"bench {self.name!r} of {self.distribution}: module {self.module} has no run(ctx)")
        return module

    @property
    def about(self) -> str:
        """First line of the module's docstring, read without importing it."""
        try:
            spec = find_spec(self.module)
            if spec is None or spec.origin is None:
                return f"(no module {self.module})"
            text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
        except (ImportError, OSError, SyntaxError, ValueError) as error:
            return f"(cannot be read: {error})"
        return next(iter(text.splitlines()), "")


def installed_entry_points() -> Iterable[EntryPoint]:
    """The entry points of the group, of every installed distribution."""
    return entry_points(group=GROUP)


def find_benches() -> list[Bench]:
    """Every bench there is, by name."""
    benches = {
        (point.name, point.value): Bench(point.name, point.value.partition(":")[0], point.dist.name if point.dist else "?")
        for point in installed_entry_points()
    }  # fmt: skip
    return [benches[key] for key in sorted(benches)]


def find_bench(name: str) -> Bench:
    """The bench called ``name``. Raises :class:`ConfigError` if there is none, or more than one."""
    known = find_benches()
    found = [bench for bench in known if bench.name == name]
    if not found:
        names = [bench.name for bench in known]
        raise ConfigError(f"no bench {name!r}{did_you_mean(name, names)}; there are {', '.join(names) or 'none'}")
    if len(found) > 1:
        where = ", ".join(f"{bench.module} of {bench.distribution}" for bench in found)
        raise ConfigError(f"bench {name!r} is ambiguous: {where}. Run the module itself: python -m MODULE")
    return found[0]


def _names() -> list[str]:
    return [bench.name for bench in find_benches()]


_VALUES = {"--system": SYSTEM, "--algorithm": ALGORITHM}


class _BenchArguments(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """What a bench is given. Its module, in which its options are, is not imported for a shell: the usual ones are known."""

    name = "ARGS"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names behind an option whose value is one, else files."""
        before = [ctx.params.get("name"), *(ctx.params.get("arguments") or ())][-1]
        kind = _VALUES.get(str(before))
        return (
            [CompletionItem(incomplete, type="file")] if kind is None else kind.shell_complete(ctx, param, incomplete)
        )


class _Benches(click.Group):
    """``kernbench bench NAME`` is ``kernbench bench run NAME``."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """See click; the benches, too."""
        names = [CompletionItem(name) for name in _names() if name.startswith(incomplete)]
        return [*super().shell_complete(ctx, incomplete), *names]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(name="bench", cls=_Benches)
def command() -> None:
    """List and run benchmark programs, third-party ones too (entry points of the group kernbench.benches).

    `kernbench bench NAME` is short for `kernbench bench run NAME`.
    """


@command.command(name="list")
def list_benches() -> None:
    """List the benches, and what each is about."""
    benches = find_benches()
    widths = [max(len(getattr(bench, column)) for bench in benches) for column in ("name", "distribution")]
    for bench in benches:
        click.echo(f"{bench.name:<{widths[0]}}  {bench.distribution:<{widths[1]}}  {bench.about}")


@command.command(
    name="run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    options_metavar="",
)
@click.argument("name", type=Name("NAME", _names))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=_BenchArguments())
def run_bench(name: str, arguments: tuple[str, ...]) -> None:
    """Run the bench NAME with its own arguments; `kernbench bench run NAME --help` lists them."""
    from kernbench.benching import invoke

    if name in ("-h", "--help"):
        click.echo(click.get_current_context().get_help())
        return
    module = find_bench(name).load()
    bench_command = getattr(module, "command", None)
    if not isinstance(bench_command, click.Command):
        bench_command = plain_command(name, module)
    sys.exit(invoke(bench_command, list(arguments), f"kernbench bench run {name}"))


def plain_command(name: str, module: ModuleType) -> click.Command:
    """A command for a bench that has only ``run(ctx)``: the options that every simulation takes.

    What ``run`` returns is printed; an attribute ``ok`` of it that is False makes the exit code 1.
    """
    from kernbench.benching import BenchCommand, SimulationOptions, simulation_options

    @click.command(
        name=name, help=module.__doc__, cls=BenchCommand, context_settings={"help_option_names": ["-h", "--help"]}
    )
    @simulation_options
    def bench_command(simulation: SimulationOptions) -> None:
        with simulation.open(name) as ctx:
            result: Any = module.run(ctx)
        if result is not None:
            click.echo(str(result))
        if getattr(result, "ok", True) is False:
            sys.exit(1)

    return bench_command
