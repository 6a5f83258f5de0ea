"""``kernbench run``: a torchrun program on simulated ranks."""

from __future__ import annotations

from typing import Any

import click

from kernbench.commands.run_options import run_options
from kernbench.commands.torchrun_options import TorchrunCommand, torchrun_options
from kernbench.options import RunOptions, options_of

GIVEN: dict[str, object] = {
    **{row.name: row.default for row in options_of(RunOptions) if row.output},
    "schedule": None, "summary": False, "progress": False,
}  # fmt: skip
"""Options that each run of an exploration has, whatever the user says."""


@click.command(cls=TorchrunCommand, context_settings={"allow_interspersed_args": False})
@run_options()
@torchrun_options
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(program: str, args: tuple[str, ...], variables: dict[str, str], **values: Any) -> None:
    """Run PROGRAM, a script for torchrun or for one GPU, on simulated ranks.

    Every rank runs it as __main__ with a namespace and command line of its own. The exit code is torchrun's: 0 if every
    rank succeeds, 1 if one fails. The other options of torchrun are accepted, too.

    Behind -- it is a command that starts the ranks itself, as on a cluster: kernbench run -- torchrun --nproc-per-node 8
    train.py. Its processes join the simulation (docs/processes.md); the exit code is the command's.

    Ctrl-C ends the run; what was asked for is written, up to there. A second one ends it at once.
    """
    from kernbench.commands.run_program import run

    run(RunOptions(**values), program, args, variables)
