"""What is printed and written of the steps and requests of a program that ``kernbench run`` has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kernbench.options import RunOptions, changed

if TYPE_CHECKING:
    from kernbench.commands.run_progress import RunProgress
    from kernbench.html_report.server import ReportServer
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.runtime_api.lone_processes import LoneProcesses
    from kernbench.trace.run_result import RunResult


class RunOutput:
    """Of one run.

    Args:
        asked: its options.
        ctx: its simulation.
        program, arguments: what runs.
        lone: the processes that it starts which are no ranks.
    """

    def __init__(
        self, asked: RunOptions, ctx: RuntimeContext, program: str, arguments: Sequence[str], lone: LoneProcesses
    ) -> None:
        self._lone = lone
        self._asked = asked
        self._ctx = ctx
        self._program = program
        self._arguments = arguments

    def begin(self) -> RunProgress:
        """Begin to show how far the program has got."""
        from kernbench.commands.run_progress import RunProgress

        if self._ctx.fold is not None:
            self._ctx.fold.tell = self._asked.progress is not False
        shown = RunProgress(self._ctx.simulation, self._asked.progress)
        shown.start()
        return shown

    def print_steps(self) -> None:
        """Print the table of steps and what they achieve; nothing for a program without any."""
        from kernbench.trace.step_times import StepTimes, achieved
        from kernbench.trace.steps_report import steps_report

        asked, times = self._asked, StepTimes.of(self._ctx.simulation)
        figures = achieved(
            times, self._ctx.topology.device, tokens=asked.tokens_per_step, samples=asked.samples_per_step
        )
        wanted = bool(asked.stop_after_steps or asked.tokens_per_step or asked.samples_per_step)
        for line in steps_report(times, figures, extrapolate=asked.extrapolate, wanted=wanted):
            click.echo(line)

    def print_serving(self) -> None:
        """Print the table of a serving engine's requests; nothing for a program without any."""
        simulation = self._ctx.simulation
        if not simulation.requests.of_rank:
            return
        from kernbench.trace.serving_figures import serving_result
        from kernbench.trace.serving_report import serving_report

        gpus = len(simulation.hosts.of_rank) if simulation.hosts.folding is None else simulation.hosts.folding.world
        for line in serving_report(serving_result(simulation.requests, gpus, self._asked.goodput)):
            click.echo(line)

    def print_processes(self) -> None:
        """Print what processes have taken that are no ranks, and had GPUs of their own; nothing if there were none."""
        from kernbench.trace.process_figures import process_lines

        for line in process_lines(self._lone.figures(), races=self._asked.races == "warn"):
            click.echo(line)

    def write_json(self, path: str, errors: Mapping[int, BaseException]) -> None:
        """Write the result."""
        from kernbench.trace.run_result import write_result

        write_result(path, self._result(errors))

    def write_report(self, errors: Mapping[int, BaseException], live: ReportServer | None) -> None:
        """Write the report for the browser, where it is wanted: to a file, and to those that have followed the run."""
        from kernbench.html_report import page_of, source_of_run
        from kernbench.html_report.page import write_page

        page = page_of(source_of_run(self._ctx, self._result(errors), errors=errors))
        if self._asked.report_file is not None:
            write_page(self._asked.report_file, page)
        if live is not None:
            live.reported(page)

    def _result(self, errors: Mapping[int, BaseException]) -> RunResult:
        from kernbench.trace.run_result import result_of

        asked = self._asked
        return result_of(
            self._ctx.simulation, program=self._program, arguments=self._arguments, options=changed(asked), errors=errors,
            tokens=asked.tokens_per_step, samples=asked.samples_per_step, extrapolate=asked.extrapolate, limits=asked.goodput,
            processes=self._lone.figures(),
        )  # fmt: skip
