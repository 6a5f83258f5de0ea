"""What ``kernbench run`` does once its arguments are known."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.commands.report_option import LIVE
from kernbench.commands.run_command import RankCommand, found
from kernbench.commands.run_failures import ShownFailures, status_of
from kernbench.commands.steps_options import StepsOptions
from kernbench.commands.torchrun_options import DASHES
from kernbench.defaults import FOLDED_ABOVE
from kernbench.environment_variables import variables_set
from kernbench.errors import ConfigError, OutputError
from kernbench.input_files import exists
from kernbench.order import check_findings_path, write_findings
from kernbench.output_files import require_place
from kernbench.plugins.manager import default_manager
from kernbench.processes.gate import INHERITED
from kernbench.runtime_api import launcher
from kernbench.runtime_api.context import simulate
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.scheduler.host_effects import settled_heap
from kernbench.scheduler.interruption import Interrupted, ending_signals
from kernbench.scheduler.standstill import VARIABLE as HANG_AFTER
from kernbench.scheduler.tracebacks import VARIABLE as TRACEBACK
from kernbench.stand_ins import of_each_rank, remarks, standing_in
from kernbench.standard_output import require_output
from kernbench.topology import resolve_topology
from kernbench.torch_backend import relies_on
from kernbench.trace import check_trace_path, write_trace

if TYPE_CHECKING:
    from kernbench.autotune.report import AutotuneReport
    from kernbench.commands.run_beside import RunBeside
    from kernbench.html_report.server import ReportServer
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.topology import Topology


def run(
    *,
    nproc_per_node: int | str | None,
    nnodes: int,
    system: str | None,
    seed: int,
    memory_limit: str,
    trace: str | None,
    report_file: str | None,
    flight_recorder: str | None,
    autotune_report: str | None,
    per_rank_modules: tuple[str, ...],
    isolation: str,
    data: bool,
    unknown: str,
    ranks: str | None,
    exact_dtype: bool,
    fill_uninitialized: str,
    races: str,
    races_output: str | None,
    memory: str,
    jitter: float,
    stragglers: tuple[tuple[int, float], ...],
    schedule: str | None,
    traceback: str,
    hang_after: float | None,
    prefix: bool,
    summary: bool,
    stand_ins: tuple[str, ...],
    module: bool,
    program: str,
    args: tuple[str, ...],
    variables: dict[str, str],
    asked: StepsOptions,
) -> None:
    """Run it, write what was asked for, and exit with the run's code. The arguments are the command's.

    A signal ends the program; what was asked for is written, up to there, and the exit code is a shell's for that signal.
    """
    here = click.get_current_context()
    of_run = {TRACEBACK: traceback} | ({} if hang_after is None else {HANG_AFTER: str(hang_after)})
    here.with_resource(variables_set(of_run))
    differs = "" if INHERITED in os.environ else relies_on.warning()  # a run beside another one does not say it again
    if differs:
        click.echo(f"kernbench: {differs}", err=True)
    if trace is not None:
        check_trace_path(trace)
    if races_output is not None:
        check_findings_path(races_output)
        races = "warn" if races == "off" else races
    if asked.json is not None:
        require_place(asked.json, option="--json")
    live: ReportServer | None = here.meta.get(LIVE)
    reports = report_file is not None or live is not None
    report = None
    if autotune_report is not None and isolation == "process":
        raise ConfigError(
            "--autotune-report: what tuners choose in processes is not collected: use --isolation carrier"
        )
    if autotune_report is not None:
        from kernbench.autotune.report import AutotuneReport

        require_place(autotune_report, option="--autotune-report")
        report = AutotuneReport(autotune_report)
    given: dict[str, Any] = {
        "seed": seed, "enable_data": data, "unknown": unknown, "memory_limit": memory_limit, "exact_dtype": exact_dtype,
        "fill_uninitialized": fill_uninitialized, "races": races, "memory": memory,
        "jitter": jitter, "stragglers": dict(stragglers),
    }  # fmt: skip
    starter: RankCommand | None = None
    compiled: launcher.RankProgram | None = None
    if not module and nproc_per_node is None and _is_command(program):
        if report is not None:
            raise ConfigError(
                "--autotune-report: what tuners choose in processes that join is not collected: leave it out"
            )
        if schedule is not None:
            raise ConfigError("--schedule: ranks that others start are processes, which have no schedule: leave it out")
        starter = RankCommand((program, *args), {"nodes": nnodes if nnodes > 1 else None, **given})
    else:
        compiled = (launcher.RankProgram.module if module else launcher.RankProgram.script)(program, args)
    errors: dict[int, BaseException] = {}
    plugins = [] if report is None else [report]
    handle = resolve_topology(system, nodes=nnodes if nnodes > 1 else None, plugins=default_manager().extended(plugins))
    per_node = _per_node(handle.topology_obj, nproc_per_node)
    devices = _first_of_each_node(handle.topology_obj, nnodes, per_node)
    unchosen = ranks is None
    if ranks is None:
        ranks = "auto" if not data and per_node * nnodes > FOLDED_ABOVE else "all"
    signalled: Interrupted | None = None
    with (
        ending_signals(),
        simulate(
            handle,
            plugins=plugins,
            devices=devices,
            ranks=ranks,
            **given,
            schedule=schedule,
        ) as ctx,
        ExitStack() as stack,
    ):
        stack.enter_context(standing_in(stand_ins))
        if reports and isolation == "carrier" and starter is None:
            ctx.simulation.describe_operations()
        if live is not None:
            live.watch(ctx.simulation)
        progress = asked.begin(ctx)
        if ranks == "all" and unchosen and not data and isolation == "carrier" and starter is None:
            from kernbench.commands.fold_hint import FoldHint

            FoldHint(ctx.simulation, sys.stderr if progress.wanted else None)
        stack.callback(progress.stop)
        failures = ShownFailures()
        code = 0
        try:
            if starter is not None:
                code, errors = starter.run(ctx, handle.path, failures)
            elif compiled is None or nproc_per_node is None:
                assert compiled is not None
                if isolation == "process":
                    ctx.simulation.remarks.setdefault(_NO_RANK)
                beside = _beside(ctx, handle.path, nnodes, summary, given) if isolation == "carrier" else None
                with nullcontext() if beside is None else closing(beside):
                    launcher.run_once(
                        ctx, compiled, prefix=prefix, at_end=None if report is None else report.look, isolation=isolation,
                        variables=variables, let_join=None if beside is None else beside.let_join,
                    )  # fmt: skip
            else:
                ctx.simulation.scheduler.on_first_failure = failures.first
                launcher.run_ranks(
                    ctx, compiled, nproc_per_node=per_node, nnodes=nnodes, prefix=prefix,
                    per_rank_modules=(*per_rank_modules, *of_each_rank(stand_ins)), variables=variables, isolation=isolation,
                )  # fmt: skip
        except SpawnException as error:
            errors = failures.all(error)
        except Interrupted as error:
            signalled = error
            ctx.simulation.interrupted = signal.Signals(error.signum).name
        except Exception as error:
            if compiled is None or nproc_per_node is not None or not failures.script(error, compiled.file):
                raise
            if isolation == "process":
                click.echo(_NO_RANK, err=True)
            errors = {0: error}
        finally:
            ctx.simulation.scheduler.on_first_failure = None
        for remark in remarks():
            ctx.simulation.remarks.setdefault(remark)
        stack.enter_context(settled_heap())  # what has run is not looked through again while it is summed up
        progress.summing_up()
        if live is not None:
            live.summing_up()
        outputs = Outputs()
        if trace is not None:
            outputs.write(write_trace, ctx, trace)
        if flight_recorder is not None:
            from kernbench.torch_backend.process_groups.flight_recorder import write_flight_record

            outputs.write(write_flight_record, ctx.simulation, flight_recorder)
        if report is not None:
            _write_autotune_report(report)
        races_found = _print_races(ctx)
        if races_output is not None and ctx.simulation.order is not None:
            outputs.write(write_findings, races_output, ctx.simulation.order.races)
        if summary:
            print_summary(ctx, failed=bool(errors))
            asked.print_steps(ctx)
            asked.print_serving(ctx)
        if reports:
            outputs.write(asked.write_report, ctx, report_file, program, args, errors, live)
        outputs.write(asked.write_json, ctx, program, args, errors)
    ends_with = (
        code if starter is not None else (status_of(errors) or 1) if errors or races_found else 0
    ) or outputs.failed
    if signalled is not None:
        click.echo(f"kernbench: {ctx.simulation.interrupted} has ended the run", err=True)
        ends_with = signalled.exit_code
    if ctx.simulation.scheduler.has_given_up:  # Python would wait for a thread that never ends
        require_output()
        os._exit(ends_with)
    sys.exit(ends_with)


class Outputs:
    """The files that a run writes in the end: one that cannot be written costs none of the others."""

    def __init__(self) -> None:
        self.failed = 0
        """The exit code that this makes, 0 for none."""

    def write(self, write: Callable[..., Any], *args: Any) -> None:
        """Call ``write``; say it if the file cannot be written."""
        try:
            write(*args)
        except OutputError as error:
            self.failed = error.exit_code
            click.echo(f"kernbench: error: {error}", err=True)


_NO_RANK = (
    "the script itself had no simulated GPU: with --isolation process it is no rank, only what it spawns is. "
    "--nproc-per-node 1 makes it one"
)


def _beside(
    ctx: RuntimeContext, system: Path, nnodes: int, summary: bool, given: Mapping[str, Any]
) -> RunBeside | None:
    """What a script's own processes may join; None if they cannot, as the context is."""
    from kernbench.commands.run_beside import RunBeside

    if ctx.simulation.hooks is not None or ctx.simulation.order is not None:
        return None
    options = [
        "--system", str(system), "--nnodes", str(nnodes), "--seed", str(given["seed"]), "--memory-limit",
        str(given["memory_limit"]), "--unknown", given["unknown"], *(["--exact-dtype"] if given["exact_dtype"] else []),
        *([] if given["enable_data"] else ["--no-data"]), *([] if summary else ["--no-summary"]),
    ]  # fmt: skip
    return RunBeside(options, ctx.topology)


def _is_command(program: str) -> bool:
    """Whether PROGRAM is a command that starts the ranks itself: one behind ``--``, or what is no file here but on the path."""
    if program.endswith(".py"):
        return False
    return bool(click.get_current_context().meta.get(DASHES)) or (not exists(program) and found(program) is not None)


def _print_races(ctx: RuntimeContext) -> int:
    """Print the races that were collected, and say which are excused; gives how many were found."""
    order = ctx.simulation.order
    if order is None or order.races.mode == "off":
        return 0
    races = order.races
    if races.mode == "warn":
        for race in races.found:
            times = races.count(race)
            click.echo(f"{race}" + (f"\nThe two lines met so {times} times." if times > 1 else ""), err=True)
    for race in races.excused:
        click.echo(f"excused: {race.kind} at {race.where}: {race.excuse}", err=True)
    if not races.found:
        click.echo(
            "no races among the streams, hosts, collectives and kernels of what ran, and no read of "
            "unwritten memory (docs/order.md)",
            err=True,
        )
    return len(races.found)


def _first_of_each_node(topology: Topology, nnodes: int, per_node: int) -> Sequence[int] | str:
    """The SIPs that ranks drive, as torchrun's ranks do: the first ``per_node`` of every node that the environment lets see."""
    from kernbench.torch_backend.gpu.device.visible_devices import visible_first

    if nnodes == 1 or not 0 < per_node < topology.sips_per_node:
        return "all"
    return [sip for node in range(nnodes) for sip in visible_first(topology, topology.sips_of(node))[:per_node]]


def _per_node(topology: Topology, asked: int | str | None) -> int:
    """Ranks per node; ``gpu`` and ``auto``: one per GPU that the environment lets see. Raises ConfigError if that is none."""
    from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus, words

    if not isinstance(asked, str):
        return asked or 0
    gpus = NodeGpus.of(topology)
    found = len(gpus.visible())
    if not found:
        raise ConfigError(f"--nproc-per-node {asked}: {words(os.environ, gpus.backend)} hides all GPUs: give a number")
    return found


def _write_autotune_report(report: AutotuneReport) -> None:
    """A report that cannot be written is no reason for a run to fail."""
    try:
        rows = report.write()
    except Exception as error:
        click.echo(f"kernbench: no autotune report: {type(error).__name__}: {error}", err=True)
    else:
        click.echo(f"kernbench: {rows} tuned config{'' if rows == 1 else 's'} written to {report.path}", err=True)


def print_summary(ctx: RuntimeContext, *, failed: bool = False) -> None:
    """Print modelled time per rank and bytes by collective, what no model knows, and what the log has not kept.

    Of a program that ``failed`` before anything took time there is no table.
    """
    from kernbench.trace.memory_report import memory_lines
    from kernbench.trace.notes import notes_of
    from kernbench.trace.rank_times import rank_times, time_lines, traffic
    from kernbench.trace.report import length_of
    from kernbench.trace.timeline import Timeline

    times = rank_times(ctx.simulation)
    if not times or (failed and not any(line.total for line in times)):
        for note in notes_of(ctx.simulation, times):
            click.echo(note)
        return
    folding = ctx.simulation.hosts.folding
    world = f"{len(times)} ranks" if folding is None else f"{folding.world} ranks, of which {len(times)} ran"
    click.echo(f"\nmodelled on {ctx.topology.system.name}, {world}")
    for text in time_lines(times):
        click.echo(text)
    timeline = Timeline.of(ctx, max_steps=0)
    length = length_of(timeline.spans)
    path = ", ".join(f"{name} {took / length.seconds:.1%}" for name, took in length.shares.items() if took)
    click.echo(
        f"{length.seconds * 1e3:.4f} ms in all, 80 % between {length.low * 1e3:.4f} and {length.high * 1e3:.4f}; "
        f"critical path: {path or 'empty'}"
    )
    for text in memory_lines(ctx):
        click.echo(text)
    for item in traffic(ctx.simulation):
        click.echo(
            f"{item.name}: {item.calls} calls, {item.nbytes:,} bytes over all ranks{(folding and ' that ran') or ''}"
        )
    for note in notes_of(ctx.simulation, times):
        click.echo(note)
