"""The options of ``kernbench run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernbench.defaults import FOLDED_ABOVE
from kernbench.options import kinds
from kernbench.options.record import again, option
from kernbench.options.simulate import SimulateOptions


@dataclass(frozen=True)
class RunOptions(SimulateOptions):
    """The options of the command line: those of a simulation that a command line can say, and what it alone has."""

    system: str | None = again(SimulateOptions, "system")
    ranks: str | None = again(  # type: ignore[assignment]  # what is chosen depends on how many there are
        SimulateOptions, "ranks", default=None, shown=f"auto above {FOLDED_ABOVE} ranks without data, else all"
    )
    races: bool | str | None = again(SimulateOptions, "races", default="off", kind=kinds.choice("off", "warn", "error"))
    nproc_per_node: int | str | None = option(
        kinds.instance("a number, 'gpu' or 'auto'", int, str), None, "Ranks per node; gpu, auto: one per GPU. Without it the "
        "program is one rank, as with torchrun; its own torch.multiprocessing.spawn makes others.", "--nproc-per-node",
        "--nproc_per_node",
    )  # fmt: skip
    isolation: str = option(
        kinds.choice("carrier", "process"), "carrier", "What keeps ranks apart: a thread of each, or a process of each, with "
        "all of Python's state its own.", "--isolation",
    )  # fmt: skip
    per_rank_modules: tuple[str, ...] = option(
        kinds.LIST, ("megatron",), "Packages that each rank imports for itself, also with compiled parts; may be repeated. The "
        "program's own and those of Python alone always are.", "--per-rank-module", metavar="PREFIX", many=True,
    )  # fmt: skip
    stand_ins: tuple[str, ...] = option(
        kinds.LIST, (), "Let the program import NAME, a package of CUDA builds that is not installed (flash_attn) or whose "
        "compiled modules are not for this machine (vllm), by what stands in for it; auto: whatever needs it and has one "
        "(kernbench stand-ins lists them). May be repeated.", "--stand-in", metavar="NAME", many=True,
    )  # fmt: skip
    module: bool = option(kinds.FLAG, False, "PROGRAM is the name of a module.", "-m", "--module")
    extrapolate: int | None = option(
        kinds.COUNT, None, "Say how long N steps would take.", "--extrapolate", metavar="N"
    )
    tokens_per_step: int | None = option(
        kinds.COUNT, None, "Tokens that all ranks together train on in a step; by default what the program tells "
        "(kernbench.report_batch).", "--tokens-per-step", metavar="N",
    )  # fmt: skip
    samples_per_step: int | None = option(kinds.COUNT, None, "The same in samples.", "--samples-per-step", metavar="N")
    goodput: Mapping[str, float] | None = option(
        kinds.MAPPING, None, "Of a serving engine, count the requests within these: ttft=0.5s,tpot=50ms (also itl, latency).",
        "--goodput", metavar="LIMITS",
    )  # fmt: skip
    traceback: str = option(
        kinds.choice("short", "full"), "short", "Of what fails, show the program's own lines, or those of the simulator and "
        "torch, too.", "--traceback", variable="KERNBENCH_TRACEBACK",
    )  # fmt: skip
    hang_after: float | None = option(
        kinds.SECONDS, None, "End a run in which no rank has come further for so many seconds of wall-clock time. Without it, "
        "that is said after 30 seconds, and again ever less often.", "--hang-after", metavar="SECONDS",
        variable="KERNBENCH_HANG_AFTER",
    )  # fmt: skip
    prefix: bool = option(
        kinds.FLAG, True, "Put [rankN] in front of every line that a rank prints.", "--prefix/--no-prefix", output=True
    )
    summary: bool = option(
        kinds.FLAG, True, "Print where the modelled time went.", "--summary/--no-summary", output=True
    )
    progress: bool | None = option(
        kinds.FLAG, None, "Show how far the run has got, on stderr; by default if it is a terminal.",
        "--progress/--no-progress", variable="KERNBENCH_PROGRESS", output=True,
    )  # fmt: skip
    trace: str | None = option(
        kinds.TEXT, None, "Write the timeline here: .json or .json.gz for ui.perfetto.dev, .svg for a picture.", "--trace",
        metavar="FILE", output=True,
    )  # fmt: skip
    report_file: str | None = option(
        kinds.TEXT,
        None,
        "Write a report here, a page for the browser: report.html.",
        "--report",
        metavar="FILE",
        output=True,
    )
    json: str | None = option(
        kinds.TEXT, None, "Write what the run came to here, for machines.", "--json", metavar="FILE", output=True
    )
    races_output: str | None = option(
        kinds.TEXT, None, "Write the races that are found here: .sarif for code hosts, or .json. Without --races they are "
        "looked for, and collected.", "--races-output", metavar="FILE", output=True,
    )  # fmt: skip
    flight_recorder: str | None = option(
        kinds.TEXT, None, "Write what each rank called last here, for python -m torch.distributed.flight_recorder.fr_trace.",
        "--flight-recorder", metavar="DIR", output=True,
    )  # fmt: skip
    autotune_report: str | None = option(
        kinds.TEXT, None, "Write the configs that the program's autotuners chose here.", "--autotune-report", metavar="FILE",
        output=True,
    )  # fmt: skip
