"""How long the command line takes to answer on *this* machine before it does anything: help, errors, completion.

    python -m kernbench.benches.command_speed
    python -m kernbench.benches.command_speed --only "run --help"

Each figure is CPU seconds of one process ``python -m kernbench ...``, beside a Python that does nothing. The goal of all is
0.4 s. What makes them slow is what is imported, which ``tests/commands/test_quick_answers.py`` looks at.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial

import click

from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import Comparison, Outcome, Side
from kernbench.cli import app

NAME = "command_speed"
GOAL = 0.4
"""CPU seconds."""

MISTYPED = (("run", "--sytem", "x", "y.py"), ("sweeep",), ("systems", "show"), ("probe", "--nodes", "none", "sip8"))
"""Command lines that are wrong."""

COMPLETED = (
    "run --system ", "explore --system ", "kernel --system ", "calibrate x --system ", "what-if --system sip8,", "probe ",
    "ccl list --system ", "systems show ", "bench run ccl_allreduce --system ", "report serve --system ", "tune --device ",
    "systems show sip8 --fabric ", "ccl order ", "bench run ccl_allreduce --algorithm ", "bench ", "bench run ", "run --",
)  # fmt: skip
"""Command lines, without ``kernbench``, behind which TAB is pressed."""


def commands(
    command: click.Command = app, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command and group of commands, by its words; the outermost has none."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


def command_paths() -> Iterator[tuple[str, ...]]:
    """The words of each."""
    return (path for path, _ in commands())


def completing(line: str) -> dict[str, str]:
    """The environment in which bash asks what may stand behind ``kernbench LINE``."""
    words = ["kernbench", *line.split(" ")]
    return {
        "_KERNBENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words).rstrip(),
        "COMP_CWORD": str(len(words) - 1),
    }


def cpu_seconds(*words: str, environment: Mapping[str, str] | None = None) -> float:
    """CPU seconds of a process that runs Python with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _figure(name: str, *words: str, environment: Mapping[str, str] | None = None) -> Comparison:
    sides = {
        "kernbench": Side(partial(cpu_seconds, "-m", "kernbench", *words, environment=environment)),
        "python -c ''": Side(partial(cpu_seconds, "-c", "")),
    }
    return Comparison(name, "s", lambda: sides, limit=GOAL)


def figures() -> list[Comparison]:
    """Help of each command, wrong command lines, completions."""
    return [
        *(_figure(" ".join((*path, "--help")), *path, "--help") for path in command_paths()),
        *(_figure(f"wrong: {' '.join(words)}", *words) for words in MISTYPED),
        *(_figure(f"TAB: {line}", environment=completing(line)) for line in COMPLETED),
    ]


def run(ctx: object = None, speed: SpeedRun | None = None) -> list[Outcome]:
    """Measure; for ``kernbench bench``."""
    return (speed or SpeedRun()).run(NAME, figures())


@click.command(name=NAME, help=__doc__)
@speed_options
def command(speed: SpeedRun) -> None:
    """Measure."""
    run(speed=speed)


if __name__ == "__main__":
    command()
