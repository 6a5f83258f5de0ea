"""Options of ``kernbench run`` about steps and requests of a program, and what is printed and written of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kernbench.commands.run_progress import RunProgress
    from kernbench.html_report.server import ReportServer
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.trace.run_result import RunResult

F = TypeVar("F", bound=Callable[..., Any])

_COUNT = click.IntRange(min=1)


def _limits(ctx: click.Context, _: click.Parameter, value: str | None) -> dict[str, float] | None:
    if value is None or ctx.resilient_parsing:
        return None
    from kernbench.trace.serving_figures import limits_of

    return limits_of(value)


_OPTIONS = (
    click.option("--steps", type=_COUNT, metavar="K", help="Stop the program after K optimizer steps."),
    click.option("--extrapolate", type=_COUNT, metavar="N", help="Say how long N steps would take."),
    click.option("--tokens-per-step", type=_COUNT, metavar="N", help="Tokens that all ranks together train on in a step; by "
                 "default what the program tells (kernbench.report_batch)."),
    click.option("--samples-per-step", type=_COUNT, metavar="N", help="The same in samples."),
    click.option("--goodput", metavar="LIMITS", callback=_limits, help="Of a serving engine, count the requests within these: "
                 "ttft=0.5s,tpot=50ms (also itl, latency)."),
    click.option("--progress/--no-progress", default=None, envvar="KERNBENCH_PROGRESS", help="Show how far the run has got, on "
                 "stderr; by default if it is a terminal (KERNBENCH_PROGRESS=1|0)."),
    click.option("--json", metavar="FILE", help="Write what the run came to here, for machines."),
)  # fmt: skip


@dataclass(frozen=True)
class StepsOptions:
    """What the user asks about steps and requests. See the options' help."""

    steps: int | None
    extrapolate: int | None
    tokens_per_step: int | None
    samples_per_step: int | None
    goodput: dict[str, float] | None
    progress: bool | None
    json: str | None

    def begin(self, ctx: RuntimeContext) -> RunProgress:
        """Have the program stopped after its steps, and begin to show how far it has got."""
        from kernbench.commands.run_progress import RunProgress

        ctx.simulation.steps.stop_after(self.steps)
        if ctx.fold is not None:
            ctx.fold.tell = self.progress is not False
        shown = RunProgress(ctx.simulation, self.progress)
        shown.start()
        return shown

    def print_steps(self, ctx: RuntimeContext) -> None:
        """Print the table of steps and what they achieve; nothing for a program without any."""
        from kernbench.trace.step_times import StepTimes, achieved
        from kernbench.trace.steps_report import steps_report

        times = StepTimes.of(ctx.simulation)
        figures = achieved(times, ctx.topology.device, tokens=self.tokens_per_step, samples=self.samples_per_step)
        wanted = bool(self.steps or self.tokens_per_step or self.samples_per_step)
        for line in steps_report(times, figures, extrapolate=self.extrapolate, wanted=wanted):
            click.echo(line)

    def print_serving(self, ctx: RuntimeContext) -> None:
        """Print the table of a serving engine's requests; nothing for a program without any."""
        if not ctx.simulation.requests.of_rank:
            return
        from kernbench.trace.serving_figures import serving_result
        from kernbench.trace.serving_report import serving_report

        hosts = ctx.simulation.hosts
        gpus = len(hosts.of_rank) if hosts.folding is None else hosts.folding.world
        for line in serving_report(serving_result(ctx.simulation.requests, gpus, self.goodput)):
            click.echo(line)

    def write_json(
        self, ctx: RuntimeContext, program: str, arguments: Sequence[str], errors: Mapping[int, BaseException]
    ) -> None:
        """Write the result, if it is wanted."""
        if self.json is not None:
            from kernbench.trace.run_result import write_result

            write_result(self.json, self._result(ctx, program, arguments, errors))

    def write_report(
        self,
        ctx: RuntimeContext,
        path: str | None,
        program: str,
        arguments: Sequence[str],
        errors: Mapping[int, BaseException],
        live: ReportServer | None = None,
    ) -> None:
        """Write the report for the browser, where it is wanted: to a file, and to who has followed the run."""
        from kernbench.html_report import page_of, source_of_run
        from kernbench.html_report.page import write_page

        result = self._result(ctx, program, arguments, errors)
        page = page_of(source_of_run(ctx, result, errors=errors))
        if path is not None:
            write_page(path, page)
        if live is not None:
            live.reported(page)

    def _result(
        self, ctx: RuntimeContext, program: str, arguments: Sequence[str], errors: Mapping[int, BaseException]
    ) -> RunResult:
        from kernbench.trace.run_result import result_of

        return result_of(
            ctx.simulation, program=program, arguments=arguments, errors=errors, tokens=self.tokens_per_step,
            samples=self.samples_per_step, extrapolate=self.extrapolate, limits=self.goodput,
        )  # fmt: skip


def steps_options(function: F) -> F:
    """Decorate a click command function: it gets the options above as one ``asked`` argument."""

    @wraps(function)
    def command(**values: Any) -> Any:
        own = {each.name: values.pop(each.name) for each in fields(StepsOptions)}
        return function(asked=StepsOptions(**own), **values)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]
