"""The ``kernbench`` command.

Each subcommand lives in a module of :mod:`kernbench.commands` and is imported only when it is used, so that
``kernbench --help`` stays quick and a missing optional package breaks nothing but the command that needs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from atexit import _run_exitfuncs
from importlib import import_module
from typing import Any, NoReturn

import click

from kernbench.command_ends import FromCommand, exit_code_of, tell_lost, tell_usage
from kernbench.errors import ConfigError
from kernbench.interruption import interrupt
from kernbench.process_end import await_threads
from kernbench.standard_output import LostOutput, require_output, watch_output
from kernbench.suggestions import nearest
from kernbench.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module of kernbench.commands, one line of help)
    "run": ("run", "Run a torchrun program on simulated ranks."),
    "serve": ("serve", "Answer requests with a serving engine at real size: latencies, rates, what fits."),
    "examples": ("examples", "List programs to begin with, and copy them."),
    "explore": ("explore", "Run a program under many schedules until something is found."),
    "probe": ("probe", "Send traffic through a system: closed form beside simulated, hop by hop, checked."),
    "trace": ("trace", "Read a trace: time by kernel and collective, overlap, critical path."),
    "report": ("report", "Show a run in the browser while it lasts, and its report afterwards."),
    "systems": ("systems", "List the shipped systems, show one with its derived figures, draw it."),
    "validate": ("validate", "Compare the cost models with measured tables."),
    "calibrate": (
        "calibrate",
        "Fit a system to measurements: a manifest, the output of nccl-tests, or this machine as a host.",
    ),
    "precompile": ("precompile", "Compile kernels ahead of time, side by side, into Triton's cache."),
    "tune": ("tune", "Rank the configs of autotuned kernels for a device, and seed autotuners with them."),
    "sweep": ("sweep", "Run a program over a grid of systems and parameters, on one machine or many."),
    "what-if": ("what_if", "Run a training program at many settings: which is quickest, which fits."),
    "ccl": ("ccl", "List collective algorithms, show their order of reduction, check your own."),
    "stand-ins": ("stand_ins", "List the packages of CUDA builds that programs can import nevertheless."),
    "bench": ("bench", "List and run benchmark programs, third-party ones too."),
    "kernel": ("kernel", "Run a script; show its Triton kernels: counts, resources, wall time per source line."),
    "doctor": ("doctor", "Check this installation, and say what to do."),
}


class _LazyGroup(click.Group):
    """A click group whose subcommands are imported when asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        """See click, which would make ``Aborted!`` of a Ctrl-C, and say nothing of output that is lost."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise click.exceptions.Exit(tell_usage(error)) from None
        except (KeyboardInterrupt, OSError, EOFError) as error:
            raise FromCommand(error) from error

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
            close = nearest(args[0], COMMANDS)
            meant = close if close else f"run {args[0]}" if args[0].endswith(".py") else None
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
    """Entry point of the console script: run the command line, and end the process with its exit code."""
    watch_output()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    end_process(exit_code_of(_run, _named_command))


def _run() -> None:
    try:
        os.getcwd()
    except OSError as error:  # torch cannot be imported there, which its libraries say in other words
        raise ConfigError(
            f"the current directory cannot be used ({error.strerror}): change to one that exists"
        ) from None
    app()


def _named_command() -> click.Command | None:
    name = next((each for each in sys.argv[1:] if not each.startswith("-")), "")
    return app.get_command(click.Context(app), name)


def end_process(code: int) -> NoReturn:
    """End the process as Python does, up to where it takes its modules apart.

    That would only take time (a last search for cycles goes through all of torch), and what Triton's bindings then find alive
    they list, over dozens of lines, as leaks.
    """
    with contextlib.suppress(KeyboardInterrupt):
        await_threads()
        _run_exitfuncs()
    try:
        require_output()
    except LostOutput as lost:
        code = code or tell_lost(lost)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


if __name__ == "__main__":
    main()
