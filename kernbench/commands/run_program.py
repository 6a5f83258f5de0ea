"""What ``kernbench run`` does once its arguments are known."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.child_processes import leaving_none
from kernbench.commands.run_command import GRACE, RankCommand, found
from kernbench.commands.run_failures import ShownFailures, status_of
from kernbench.commands.run_options import LIVE
from kernbench.commands.run_output import RunOutput
from kernbench.commands.torchrun_options import DASHES
from kernbench.defaults import FOLDED_ABOVE
from kernbench.environment_variables import variables_set
from kernbench.errors import ConfigError, OutputError
from kernbench.input_files import exists
from kernbench.interruption import Interrupted, ending_signals
from kernbench.options import RunOptions, command_line
from kernbench.order import check_findings_path, write_findings
from kernbench.output_files import require_folder, require_place
from kernbench.plugins.manager import default_manager
from kernbench.plurals import counted
from kernbench.processes.gate import INHERITED
from kernbench.runtime_api import launcher
from kernbench.runtime_api.context import simulate
from kernbench.runtime_api.lone_processes import LoneProcesses
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.scheduler.host_effects import settled_heap
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


SIMULATED = (
    "seed", "enable_data", "unknown", "memory_limit", "exact_dtype", "fill_uninitialized", "races", "memory", "jitter",
    "stragglers",
)  # fmt: skip
"""Options of the simulation that hold for all processes which join it, too."""


def run(asked: RunOptions, program: str, args: tuple[str, ...], variables: dict[str, str]) -> None:
    """Run ``program`` with ``args``, write what was asked for, and exit with the run's code.

    A signal ends the program; what was asked for is written, up to there, and the exit code is a shell's for that signal.
    ``variables``: of the ranks' environment.
    """
    here = click.get_current_context()
    of_run = {TRACEBACK: asked.traceback} | ({} if asked.hang_after is None else {HANG_AFTER: str(asked.hang_after)})
    here.with_resource(variables_set(of_run))
    differs = "" if INHERITED in os.environ else relies_on.warning()  # a run beside another one does not say it again
    if differs:
        click.echo(f"kernbench: {differs}", err=True)
    if asked.trace is not None:
        check_trace_path(asked.trace)
    if asked.races_output is not None:
        check_findings_path(asked.races_output)
        asked = replace(asked, races="warn" if asked.races == "off" else asked.races)
    if asked.json is not None:
        require_place(asked.json, option="--json")
    if asked.flight_recorder is not None:
        require_folder(asked.flight_recorder, option="--flight-recorder")
    live: ReportServer | None = here.meta.get(LIVE)
    reports = asked.report_file is not None or live is not None
    report = None
    if asked.autotune_report is not None and asked.isolation == "process":
        raise ConfigError(
            "--autotune-report: what tuners choose in processes is not collected: use --isolation carrier"
        )
    if asked.autotune_report is not None:
        from kernbench.autotune.report import AutotuneReport

        require_place(asked.autotune_report, option="--autotune-report")
        report = AutotuneReport(asked.autotune_report)
    given = {name: getattr(asked, name) for name in SIMULATED}
    starter: RankCommand | None = None
    compiled: launcher.RankProgram | None = None
    if not asked.module and asked.nproc_per_node is not None and _is_on_path(program):
        raise ConfigError(
            f"{program} is a command, not a file: one behind -- starts the ranks itself, so leave --nproc-per-node out "
            "(or give it to the command); to have the ranks started here, name the file of the program instead"
        )
    if not asked.module and asked.nproc_per_node is None and _is_command(program):
        if report is not None:
            raise ConfigError(
                "--autotune-report: what tuners choose in processes that join is not collected: leave it out"
            )
        if asked.schedule is not None:
            raise ConfigError("--schedule: ranks that others start are processes, which have no schedule: leave it out")
        starter = RankCommand((program, *args), {"nodes": asked.nodes, **given})
    else:
        compiled = (launcher.RankProgram.module if asked.module else launcher.RankProgram.script)(program, args)
    errors: dict[int, BaseException] = {}
    plugins = [] if report is None else [report]
    handle = resolve_topology(asked.system, nodes=asked.nodes, plugins=default_manager().extended(plugins))
    nnodes = asked.nodes or 1
    per_node = _per_node(handle.topology_obj, asked.nproc_per_node)
    devices = _first_of_each_node(handle.topology_obj, nnodes, per_node)
    folded = not asked.enable_data and per_node * nnodes > FOLDED_ABOVE
    ranks = asked.ranks if asked.ranks is not None else "auto" if folded else "all"
    signalled: Interrupted | None = None
    with (
        ending_signals(),
        simulate(
            handle,
            plugins=plugins,
            devices=devices,
            ranks=ranks,
            **given,
            schedule=asked.schedule,
            stop_after_steps=asked.stop_after_steps,
        ) as ctx,
        leaving_none(GRACE, unless=lambda: signalled is None and not ctx.simulation.scheduler.has_given_up),
        ExitStack() as stack,
    ):
        stack.enter_context(standing_in(asked.stand_ins))
        lone = stack.enter_context(closing(LoneProcesses(handle.path, {"nodes": asked.nodes, **given})))
        if starter is None:
            ctx.multiprocessing.of_children = lone.variables_of(handle.topology_obj)
        else:
            stack.enter_context(variables_set(lone.variables))
        if reports and asked.isolation == "carrier" and starter is None:
            ctx.simulation.describe_operations()
        if live is not None:
            live.watch(ctx.simulation)
        output = RunOutput(asked, ctx, program, args, lone)
        progress = output.begin()
        if (
            asked.ranks is None
            and not folded
            and not asked.enable_data
            and asked.isolation == "carrier"
            and starter is None
        ):
            from kernbench.commands.fold_hint import FoldHint

            FoldHint(ctx.simulation, sys.stderr if progress.wanted else None)
        stack.callback(progress.stop)
        failures = ShownFailures()
        code = 0
        try:
            if starter is not None:
                code, errors = starter.run(ctx, handle.path, failures)
            elif compiled is None or asked.nproc_per_node is None:
                assert compiled is not None
                beside = _beside(ctx, handle.path, asked)
                with nullcontext() if beside is None else closing(beside):
                    launcher.run_once(
                        ctx, compiled, prefix=asked.prefix, at_end=None if report is None else report.look,
                        isolation=asked.isolation, variables=variables, let_join=None if beside is None else beside.let_join,
                    )  # fmt: skip
            else:
                ctx.simulation.scheduler.on_first_failure = failures.first
                launcher.run_ranks(
                    ctx, compiled, nproc_per_node=per_node, nnodes=nnodes, prefix=asked.prefix,
                    per_rank_modules=(*asked.per_rank_modules, *of_each_rank(asked.stand_ins)), variables=variables,
                    isolation=asked.isolation,
                )  # fmt: skip
        except SpawnException as error:
            errors = failures.all(error)
        except Interrupted as error:
            signalled = error
            ctx.simulation.interrupted = signal.Signals(error.signum).name
        except SystemExit as end:
            errors = {0: end}
            if not isinstance(end.code, int):
                click.echo(end.code, err=True)
        except Exception as error:
            if compiled is None or asked.nproc_per_node is not None or not failures.script(error, compiled.file):
                raise
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
        if asked.trace is not None:
            outputs.write(write_trace, ctx, asked.trace)
        if asked.flight_recorder is not None:
            from kernbench.torch_backend.process_groups.flight_recorder import write_flight_record

            outputs.write(write_flight_record, ctx.simulation, asked.flight_recorder)
        if report is not None:
            _write_autotune_report(report)
        if asked.races_output is not None and ctx.simulation.order is not None:
            outputs.write(write_findings, asked.races_output, ctx.simulation.order.races)
        races_found, lost = 0, None
        try:
            races_found = _print_races(ctx)
            if asked.summary:
                print_summary(ctx, failed=bool(errors))
                output.print_steps()
                output.print_serving()
                output.print_processes()
        except OSError as error:  # standard output takes nothing more, which files do not depend on
            lost = error
        if reports:
            outputs.write(output.write_report, errors, live)
        if asked.json is not None:
            outputs.write(output.write_json, asked.json, errors)
        if lost is not None:
            raise lost
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

    def write(self, write: Callable[..., Any], *args: object) -> None:
        """Call ``write``; say it if the file cannot be written."""
        try:
            write(*args)
        except OutputError as error:
            self.failed = error.exit_code
            click.echo(f"kernbench: error: {error}", err=True)


def _beside(ctx: RuntimeContext, system: Path, asked: RunOptions) -> RunBeside | None:
    """What a script's own processes may join; None if they cannot, as the context is."""
    from kernbench.commands.run_beside import RunBeside

    if ctx.simulation.hooks is not None or ctx.simulation.order is not None:
        return None
    told = command_line(replace(asked, system=str(system)), ("system", "nodes", *SIMULATED))
    return RunBeside([*told, *([] if asked.summary else ["--no-summary"])], ctx.topology)


def _is_command(program: str) -> bool:
    """Whether PROGRAM is a command that starts the ranks itself: one behind ``--``, or what is no file here but on the path."""
    if program.endswith(".py"):
        return False
    return bool(click.get_current_context().meta.get(DASHES)) or _is_on_path(program)


def _is_on_path(program: str) -> bool:
    """Whether PROGRAM is no file here, but a command on the path."""
    return not exists(program) and found(program) is not None


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
        click.echo(f"kernbench: {counted(rows, 'tuned config')} written to {report.path}", err=True)


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
    ran = len(times)
    world = counted(ran, "rank") if folding is None else f"{counted(folding.world, 'rank')}, of which {ran} ran"
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
            f"{item.name}: {counted(item.calls, 'call')}, {item.nbytes:,} bytes over all ranks{(folding and ' that ran') or ''}"
        )
    for note in notes_of(ctx.simulation, times):
        click.echo(note)
