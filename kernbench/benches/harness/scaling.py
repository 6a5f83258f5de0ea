"""What the tensor-parallel benches share: one measurement per system and tensor parallel size, and their comparison.

The question they answer is the one before buying or booking: how long does a step take on which system, split over how many
devices, and where does the time go.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kernbench.benches.harness.progress import ProgressBar
from kernbench.benching import OUTPUT, SimulationOptions, simulation_options
from kernbench.errors import ConfigError
from kernbench.output_files import replacing, write_file

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Layout:
    """How the ranks of one simulation are used: ``tp x dp`` of them."""

    tp: int = 1
    dp: int = 1

    @property
    def world(self) -> int:
        return self.tp * self.dp


@dataclass(frozen=True)
class Measurement:
    """One simulation. Times are modelled seconds per step, of the slowest rank.

    Attributes:
        system: name of the system.
        layout: how its ranks were used.
        step: from the first rank's begin to the last one's end.
        compute: a kernel ran.
        communication: a collective was under way and nothing was computed meanwhile.
        overlapped: a collective was under way while something was computed.
        host: the host was launching, and none of the above.
        wall: seconds of this machine that the simulation took, all of it.
        figures: what else the bench has to say, by name.
    """

    system: str
    layout: Layout
    step: float
    compute: float
    communication: float
    overlapped: float
    host: float
    wall: float
    figures: dict[str, Any] = field(default_factory=dict)


class StepTimer:
    """Inside ranks: marks where the measured steps begin and end. One per simulation, shared by its ranks."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx
        self._begin: dict[int, float] = {}
        self._end: dict[int, float] = {}
        self._created = time.perf_counter()

    def begin(self, rank: int) -> None:
        """This rank starts its steps; the ranks line up first."""
        self._ctx.distributed.barrier()
        self._begin[rank] = self._ctx.now()

    def end(self, rank: int) -> None:
        """This rank has done its steps, and everything that it enqueued has ended."""
        self._ctx.synchronize()
        self._end[rank] = self._ctx.now()

    def measurement(self, layout: Layout, steps: int, **figures: object) -> Measurement:
        """After the ranks have ended: what the steps took."""
        from kernbench.trace import summary

        wall = time.perf_counter() - self._created
        window = min(self._begin.values()), max(self._end.values())
        ranks = summary(self._ctx, window).ranks
        worst = max(ranks, key=lambda rank: rank.compute + rank.communication, default=None)
        shares = {
            name: 0.0
            if worst is None
            else max(0.0, getattr(worst, name)) / steps  # differences of sums may round below 0
            for name in ("compute", "communication", "overlapped", "host")
        }
        step = (window[1] - window[0]) / steps
        name = self._ctx.topology.system.name
        return Measurement(name, layout, step, **shares, wall=wall, figures=figures)


# -- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScalingOptions:
    """What the command line asks for: ``layouts`` on each of ``systems``."""

    simulation: SimulationOptions
    systems: tuple[str | None, ...]
    layouts: tuple[Layout, ...]
    steps: int
    plot: Path | None
    json: Path | None

    @property
    def points(self) -> list[tuple[str | None, Layout]]:
        return [(system, layout) for system in self.systems for layout in self.layouts]

    def sweep(
        self,
        name: str,
        measure: Callable[[Any, Layout], Measurement],
        *,
        enable_data: bool = True,
        progress: bool = True,
    ) -> list[Measurement]:
        """``measure(ctx, layout)`` in a simulation of its own per point. ``--trace`` is of the last point.

        ``progress``: count points on a bar; False for a bench that counts something of its own.
        """
        points, results = self.points, []
        with ProgressBar(len(points), name) if progress else nullcontext() as bar:
            for number, (system, layout) in enumerate(points, 1):
                simulation = dataclasses.replace(
                    self.simulation, system=system, ranks=layout.world,
                    trace=self.simulation.trace if number == len(points) else None,
                )  # fmt: skip
                with simulation.open(name, enable_data=enable_data) as ctx:
                    results.append(measure(ctx, layout))
                if bar is not None:
                    bar.advance()
        return results


def sizes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """An option's callback: world sizes with commas. Raises :class:`click.BadParameter` for anything else."""
    try:
        found = tuple(int(part) for part in value.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(f"{value!r}: expected sizes such as 1,2,4,8", ctx, param)
    return found


def scaling_options(tp: str = "1,2,4,8", steps: int = 2) -> Callable[[F], F]:
    """Decorate a click command function: it gets ``--tp``, ``--dp`` and the others as one ``scaling`` argument."""

    def decorate(function: F) -> F:
        @click.option("--tp", callback=sizes, default=tp, show_default=True, help="Tensor parallel sizes, with commas.")
        @click.option("--dp", type=click.IntRange(min=1), default=1, show_default=True, help="Data parallel size.")
        @click.option("--steps", type=click.IntRange(min=1), default=steps, show_default=True, help="Steps per point.")
        @click.option("--plot", type=OUTPUT, metavar="FILE", help="Draw the comparison: .png, .svg or .pdf.")
        @click.option("--json", "json_file", type=OUTPUT, metavar="FILE", help="Write the measurements as JSON.")
        @simulation_options
        @functools.wraps(function)
        def command(simulation: SimulationOptions, **values: Any) -> Any:
            if simulation.ranks is not None:
                raise click.UsageError("the world has --tp x --dp ranks: leave --ranks out")
            systems: tuple[str | None, ...] = tuple(simulation.system.split(",")) if simulation.system else (None,)
            layouts = tuple(Layout(size, values["dp"]) for size in values.pop("tp"))
            del values["dp"]
            scaling = ScalingOptions(
                simulation, systems, layouts, values.pop("steps"), values.pop("plot"), values.pop("json_file")
            )
            return function(scaling=scaling, **values)

        return command  # type: ignore[return-value]

    return decorate


# -- reports ---------------------------------------------------------------------------------------------------------


def comparison(results: Sequence[Measurement]) -> list[str]:
    """A table of the measurements. Speed-up and efficiency are against the same system's smallest world."""
    extra = list(dict.fromkeys(name for result in results for name in result.figures))
    head = ["system", "tp", "dp", "step us", "speed-up", "effic. %", "compute us", "comm. us", "overlap us", "host us"]
    rows = [[*head, *extra, "wall s"]]
    for result in results:
        base = next(other for other in results if other.system == result.system)
        speedup = base.step / result.step
        rows.append([
            result.system, str(result.layout.tp), str(result.layout.dp), f"{result.step * 1e6:.2f}", f"{speedup:.2f}",
            f"{100 * speedup * base.layout.world / result.layout.world:.0f}",
            *(f"{seconds * 1e6:.2f}" for seconds in (result.compute, result.communication, result.overlapped, result.host)),
            *(_text(result.figures.get(name)) for name in extra), f"{result.wall:.2f}",
        ])  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [f"# {lines[0]}", *(f"  {line}" for line in lines[1:]), *_advice(results)]


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _advice(results: Sequence[Measurement]) -> list[str]:
    """The fastest point, and the largest one that still uses its devices well."""
    if len(results) < 2:
        return []
    fastest = min(results, key=lambda result: result.step)
    lines = [f"# fastest: {_name(fastest)}, {fastest.step * 1e6:.2f} us per step"]
    for system in dict.fromkeys(result.system for result in results):
        mine = [result for result in results if result.system == system]
        base = mine[0]
        good = [r for r in mine if base.step * base.layout.world >= 0.5 * r.step * r.layout.world]
        largest = max(good, key=lambda result: result.layout.world)
        lines.append(f"# {system}: efficiency of 50 % or more up to tp {largest.layout.tp} x dp {largest.layout.dp}")
    return lines


def _name(result: Measurement) -> str:
    return f"{result.system} tp {result.layout.tp} x dp {result.layout.dp}"


def write_json(path: Path, name: str, results: Sequence[Measurement], **settings: object) -> None:
    """The measurements, SI units, and the settings that they were made with."""
    document = {"bench": name, "settings": settings, "results": [dataclasses.asdict(result) for result in results]}
    write_file(path, json.dumps(document, indent=1) + "\n")


def plot_comparison(path: Path, title: str, results: Sequence[Measurement]) -> None:
    """Step time over world size, one line per system, with the share that is communication."""
    pyplot = plotting()
    figure, (times, shares) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for system in dict.fromkeys(result.system for result in results):
        mine = [result for result in results if result.system == system]
        worlds = [result.layout.world for result in mine]
        (line,) = times.plot(worlds, [result.step * 1e6 for result in mine], marker="o", label=system)
        ideal = [mine[0].step * 1e6 * worlds[0] / world for world in worlds]
        times.plot(worlds, ideal, linestyle=":", color=line.get_color())
        share = [100 * result.communication / result.step for result in mine]
        shares.plot(worlds, share, marker="o", color=line.get_color(), label=system)
    times.set(xlabel="ranks", ylabel="modelled step, us", xscale="log", yscale="log", title=title)
    shares.set(xlabel="ranks", ylabel="waiting for communication, %", xscale="log", ylim=(0, 100))
    for axes in (times, shares):
        axes.set_xticks(sorted({result.layout.world for result in results}))
        axes.xaxis.set_major_formatter(pyplot.matplotlib.ticker.ScalarFormatter())
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    times.legend(title="dotted: ideal")
    with replacing(path) as part:
        figure.savefig(part, format=path.suffix[1:] or None)
    pyplot.close(figure)


def plotting() -> Any:
    """matplotlib's pyplot, without a display. Raises ConfigError if it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'kernbench[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def report(name: str, title: str, scaling: ScalingOptions, results: Sequence[Measurement], **settings: object) -> None:
    """Print the comparison, and write what ``--json`` and ``--plot`` ask for."""
    for line in comparison(results):
        click.echo(line)
    if scaling.json is not None:
        write_json(scaling.json, name, results, **settings)
    if scaling.plot is not None:
        plot_comparison(scaling.plot, title, results)
