"""The ``kernbench`` command.

Each subcommand lives in a module of :mod:`kernbench.commands` and is imported only when it is used, so that
``kernbench --help`` stays quick and a missing optional package breaks nothing but the command that needs it.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import os
import sys
from importlib import import_module

import click

from kernbench.errors import KernbenchError
from kernbench.scheduler.watchdog import HiddenBlockingError
from kernbench.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module of kernbench.commands, one line of help)
    "run": ("run", "Run a torchrun program on simulated ranks."),
    "explore": ("explore", "Run a program under many schedules until something is found."),
    "probe": ("probe", "Send traffic through a system: closed form beside simulated, hop by hop, checked."),
    "trace": ("trace", "Read a trace: time by kernel and collective, overlap, critical path."),
    "report": ("report", "Show a run in the browser while it lasts, and its report afterwards."),
    "systems": ("systems", "List the shipped systems, show one with its derived figures, draw it."),
    "validate": ("validate", "Compare the cost models with measured tables."),
    "calibrate": ("calibrate", "Fit a system to measurements: a manifest, or the output of nccl-tests."),
    "precompile": ("precompile", "Compile kernels ahead of time, side by side, into Triton's cache."),
    "tune": ("tune", "Rank the configs of autotuned kernels for a device, and seed autotuners with them."),
    "sweep": ("sweep", "Run a program over a grid of systems and parameters, on one machine or many."),
    "what-if": ("what_if", "Run a training program at many settings: which is quickest, which fits."),
    "ccl": ("ccl", "List collective algorithms, show their order of reduction, check your own."),
    "bench": ("bench", "List and run benchmark programs, third-party ones too."),
    "kernel": ("kernel", "Run a script; show its Triton kernels: counts, resources, wall time per source line."),
    "doctor": ("doctor", "Check this installation, and say what to do."),
}


class _LazyGroup(click.Group):
    """A click group whose subcommands are imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"kernbench.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            meant = close[0] if close else f"run {args[0]}" if args[0].endswith(".py") else None
            if meant is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean {meant!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Completion in bash: eval "$(_KERNBENCH_COMPLETE=bash_source kernbench)"; zsh_source and fish_source likewise.',
)
@click.version_option(__version__, prog_name="kernbench")
def app() -> None:
    """Run N-rank torch.distributed + Triton programs in one process: exact values, modelled time, no accelerator."""


def main() -> None:
    """Entry point of the console script. Errors that kernbench explains itself exit with code 2 and no traceback."""
    atexit.register(gc.freeze)  # Python's last search for cycles goes through all of torch, which takes a second
    try:
        app()
    except HiddenBlockingError:
        click.echo("kernbench: error: a rank waits for ever: see above", err=True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(2)  # what Python does at its end would wait for the same lock
    except KernbenchError as error:
        from kernbench.benching import for_command

        name = next((each for each in sys.argv[1:] if not each.startswith("-")), "")
        command = app.get_command(click.Context(app), name)
        click.echo(f"kernbench: error: {for_command(error, command)}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
