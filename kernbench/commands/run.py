"""``kernbench run``: a torchrun program on simulated ranks."""

from __future__ import annotations

from typing import Any

import click

from kernbench.commands.jitter_options import Straggler, different_ranks
from kernbench.commands.program_options import module_option, stand_in_option
from kernbench.commands.report_option import report_option
from kernbench.commands.steps_options import steps_options
from kernbench.commands.torchrun_options import Nodes, RanksPerNode, TorchrunCommand, torchrun_options
from kernbench.defaults import DEFAULT_SYSTEM, FOLDED_ABOVE
from kernbench.names import SYSTEM

GIVEN: dict[str, Any] = {
    "schedule": None, "races_output": None, "trace": None, "flight_recorder": None, "autotune_report": None, "json": None,
    "prefix": True, "summary": False, "progress": False, "report_file": None,
}  # fmt: skip
"""Options that each run of an exploration has, whatever the user says."""


@click.command(cls=TorchrunCommand, context_settings={"allow_interspersed_args": False})
@click.option("--nproc-per-node", "--nproc_per_node", type=RanksPerNode(), help="Ranks per node; gpu: one per SIP. Without "
              "it the program is one rank, as with torchrun; its own torch.multiprocessing.spawn makes others.")  # fmt: skip
@click.option("--nnodes", type=Nodes(), default=1, show_default=True, help="Nodes.")
@click.option(
    "--system",
    type=SYSTEM,
    metavar="NAME|FILE",
    help=f"System to run on (see `kernbench systems`).  [default: {DEFAULT_SYSTEM}, generic accelerators]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seeds the ranks' random generators.")
@click.option("--memory-limit", metavar="SIZE|off", default="device", help="Bytes that each rank may reserve for tensors on "
              "its GPU, such as 80GB; by default what the device has, less what CUDA takes.")  # fmt: skip
@click.option("--trace", metavar="FILE", help="Write the timeline here: .json or .json.gz for ui.perfetto.dev, .svg for a "
              "picture.")  # fmt: skip
@report_option
@click.option("--flight-recorder", metavar="DIR", help="Write what each rank called last here, for "
              "python -m torch.distributed.flight_recorder.fr_trace.")  # fmt: skip
@click.option("--autotune-report", metavar="FILE", help="Write the configs that the program's autotuners chose here.")
@click.option("--per-rank-module", "per_rank_modules", metavar="PREFIX", multiple=True, default=("megatron",),
              show_default=True, help="Packages that each rank imports for itself, also with compiled parts; may be "
              "repeated. The program's own and those of Python alone always are.")  # fmt: skip
@click.option("--isolation", type=click.Choice(["carrier", "process"]), default="carrier", show_default=True, help="What "
              "keeps ranks apart: a thread of each, or a process of each, with all of Python's state its own.")  # fmt: skip
@click.option("--data/--no-data", default=True, help="Compute values; without, only what steers the program: real size in "
              "little time and memory.")  # fmt: skip
@click.option("--unknown", type=click.Choice(["assume", "error"]), default="assume", show_default=True, help="Without "
              "data, what a look at a value that was not computed gets.")  # fmt: skip
@click.option("--ranks", metavar="auto|all|LIST", help="Without data, ranks to run (0,8-11); the others are taken to do what "
              f"these do. auto: one of each class of ranks that do the same.  [default: auto above {FOLDED_ABOVE} ranks "
              "without data, else all]")  # fmt: skip
@click.option("--exact-dtype", is_flag=True, help="Compute 16-bit products as this CPU does by itself, also where it is many "
              "times faster in 32 bits, rounded once (the default there).")  # fmt: skip
@click.option(
    "--fill-uninitialized",
    type=click.Choice(["off", "nan", "0xAA"]),
    default="off",
    show_default=True,
    help="Fill the memory that torch.empty and its kin give: NaN, the largest value of integers, or 0xAA.",
)
@click.option("--races", is_flag=False, flag_value="error", envvar="KERNBENCH_RACES", default="off",
              type=click.Choice(["off", "warn", "error"]),
              help="Look for accesses to the same memory that nothing orders (docs/order.md): stop at the first one, or (warn) "
              "print them in the end.")  # fmt: skip
@click.option("--races-output", metavar="FILE", help="Write the races that are found here: .sarif for code hosts, or .json. "
              "Without --races they are looked for, and collected.")  # fmt: skip
@click.option("--memory", type=click.Choice(["strong", "weak"]), default="strong", show_default=True, help="What a read sees "
              "that nothing orders behind a write: what was written last, or what was there before; with --schedule, as that "
              "says.")  # fmt: skip
@click.option("--jitter", type=float, metavar="SHARE", default=0.0, help="Standard deviation of the time that the kernels of a "
              "rank take, between ranks and from step to step: 0.02.")  # fmt: skip
@click.option("--straggler", "stragglers", type=Straggler(), multiple=True, callback=different_ranks,
              help="Let the kernels of a rank take so many times as long: 3:1.2; may be repeated.")  # fmt: skip
@click.option("--schedule", metavar="STRING", envvar="KERNBENCH_SCHEDULE", help="What goes first where several things could "
              "(docs/order.md): default, random:SEED, or what kernbench explore has printed.")  # fmt: skip
@click.option("--traceback", type=click.Choice(["short", "full"]), default="short", show_default=True,
              envvar="KERNBENCH_TRACEBACK", help="Of what fails, show the program's own lines, or those of the simulator "
              "and torch, too.")  # fmt: skip
@click.option("--hang-after", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", envvar="KERNBENCH_HANG_AFTER",
              help="End a run in which no rank has come further for so many seconds of wall-clock time. Without it, that is "
              "said after 30 seconds, and again ever less often.")  # fmt: skip
@click.option("--prefix/--no-prefix", default=True, help="Put [rankN] in front of every line that a rank prints.")
@click.option("--summary/--no-summary", default=True, help="Print where the modelled time went.")
@stand_in_option
@module_option
@steps_options
@torchrun_options
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(**values: Any) -> None:
    """Run PROGRAM, a script for torchrun or for one GPU, on simulated ranks.

    Every rank runs it as __main__ with a namespace and command line of its own. The exit code is torchrun's: 0 if every
    rank succeeds, 1 if one fails. The other options of torchrun are accepted, too.

    Behind -- it is a command that starts the ranks itself, as on a cluster: kernbench run -- torchrun --nproc-per-node 8
    train.py. Its processes join the simulation (docs/processes.md); the exit code is the command's.

    Ctrl-C ends the run; what was asked for is written, up to there. A second one ends it at once.
    """
    from kernbench.commands.run_program import run

    run(**values)
