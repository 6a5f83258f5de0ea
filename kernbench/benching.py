"""What a bench is written with: the options that every one takes, and how its command is run.

A bench is a module with ``run(ctx)``, found by its entry point in the group ``kernbench.benches``. One that takes arguments
of its own has a click command called ``command`` too, of class :class:`BenchCommand` and with :func:`simulation_options`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from kernbench.command_ends import exit_code_of, run_command
from kernbench.errors import ConfigError
from kernbench.input_files import is_directory
from kernbench.names import ALGORITHM, SYSTEM
from kernbench.plugins.command import PluginCommand
from kernbench.standard_output import watch_output

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class SimulationOptions:
    """The simulation that a bench runs in, as the command line describes it.

    Attributes:
        system: shipped system or path; None: the default one.
        nodes: nodes of it; None: as the system says.
        ranks: world size; None: what ``ccl.yaml`` says, else one rank per SIP.
        algorithm: entry of ``ccl.yaml``; None: the one it names.
        seed: of inputs, the ranks' generators and the ``random`` policy.
        policy: which runnable rank goes first.
        isolation: of ``spawn``; None: its default.
        trace: file that the trace goes to, if any (``.json``, ``.json.gz``, ``.svg``).
    """

    system: str | None = None
    nodes: int | None = None
    ranks: int | None = None
    algorithm: str | None = None
    seed: int = 0
    policy: str = "round_robin"
    isolation: str | None = None
    trace: Path | None = None

    @contextmanager
    def open(self, name: str = "", *, enable_data: bool = True, collective: str | None = None) -> Iterator[Any]:
        """Open the simulation, yield its context, and write the trace when it ends, also when it ends badly.

        ``collective``: what the algorithm must implement; :class:`~kernbench.errors.ConfigError` if it does not.
        ``ranks`` becomes the world size of the collective configuration, so that ``ctx.distributed.get_world_size()``
        outside ranks is the number of ranks to spawn.
        """
        from kernbench.ccl.config import load_ccl_config
        from kernbench.ccl.registry import algorithm_module
        from kernbench.runtime_api.context import simulate
        from kernbench.topology import resolve_topology
        from kernbench.trace import check_trace_path, write_trace

        if self.trace is not None:
            check_trace_path(self.trace)
        handle = resolve_topology(self.system, nodes=self.nodes)
        ccl = load_ccl_config(system=handle.topology_obj.system)
        entry = ccl.select(self.algorithm)
        implements = algorithm_module(entry.module).COLLECTIVE
        if collective is not None and implements != collective:
            raise ConfigError(f"algorithm {entry.name} implements {implements}, not {collective}")
        if self.ranks is not None:
            entry = entry.model_copy(update={"world_size": self.ranks})
        ccl = ccl.model_copy(update={"algorithm": entry.name, "algorithms": {**ccl.algorithms, entry.name: entry}})
        with simulate(
            handle,
            world_size=entry.world_size,
            enable_data=enable_data,
            seed=self.seed,
            policy=self.policy,
            correlation_id=name,
            ccl=ccl,
        ) as ctx:
            try:
                yield ctx
            finally:
                if self.trace is not None:
                    write_trace(ctx, self.trace)


class BenchCommand(PluginCommand):
    """A click command that takes plugins and remembers its arguments: ``ctx.meta[BenchCommand.ARGUMENTS]``."""

    ARGUMENTS = "kernbench.benching.arguments"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, and keep them."""
        ctx.meta[self.ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


class OutputPath(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A file to write; its folder must be there before the bench runs, not when it has run."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, if a file can be written there."""
        path = Path(value)
        if is_directory(path):
            self.fail(f"{path} is a folder: expected a file", param, ctx)
        if not is_directory(path.absolute().parent):
            self.fail(f"there is no folder {path.absolute().parent}", param, ctx)
        return path


OUTPUT = OutputPath()

_OPTIONS = (
    click.option("--system", type=SYSTEM, metavar="NAME|PATH", help="Shipped system or a YAML file.  [default: sip8]"),
    click.option("--nodes", type=click.IntRange(min=1), help="Repeat the system's node this many times."),
    click.option(
        "-g", "--ngpus", "--ranks", "ranks", type=click.IntRange(min=1),
        help="World size.  [default: ccl.yaml's, else one rank per SIP]",
    ),
    click.option("--algorithm", type=ALGORITHM, metavar="NAME", help="Entry of ccl.yaml.  [default: the one it names]"),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random."),
    click.option(
        "--policy", type=click.Choice(["round_robin", "random"]), default="round_robin", show_default=True,
        help="Which runnable rank goes first.",
    ),
    click.option("--isolation", type=click.Choice(["carrier", "greenlet"]), help="How ranks are kept apart."),
    click.option(
        "--trace", type=OUTPUT, metavar="FILE",
        help="Write the timeline: .json or .json.gz (Chrome trace, for Perfetto), .svg (picture).",
    ),
)  # fmt: skip


def simulation_options(function: F) -> F:
    """Decorate a click command function: it gets the options above as one ``simulation`` argument."""

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        own = {field.name: values.pop(field.name) for field in fields(SimulationOptions)}
        return function(simulation=SimulationOptions(**own), **values)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


def invoke(command: click.Command, args: list[str] | None, prog_name: str) -> int:
    """Run a bench's command (``args`` None: those of the process); gives its exit code (:mod:`kernbench.command_ends`)."""
    words = sys.argv[1:] if args is None else args
    return exit_code_of(lambda: run_command(command, words, prog_name), lambda: command, name=prog_name)


def bench_main(command: click.Command, module: str) -> None:
    """What ``python -m MODULE`` runs, by whichever of its names. Never returns."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    name = main.name if main is not None and f".{module}".endswith(f".{main.name}") else module
    watch_output()
    sys.exit(invoke(command, None, f"python -m {name}"))
