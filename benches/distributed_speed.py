"""How long torch.distributed programs take on the host: simulated ranks beside torch's own ways and gloo processes.

    python -m benches.distributed_speed [--ranks 8,64,1024] [--only kernbench,gloo] [--json FILE]

Wall-clock time of this machine, all sides in one run, because only their ratios mean something: kernbench's ranks as threads
that take turns, and as processes; torch's
threaded process group; ``LocalTensorMode``, where it can run the program; 8 processes with gloo. Beside them stand the goals.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import click
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

import kernbench
from benches.harness.distributed_sides import SIDES, Run, clock, simulated
from benches.harness.scaling import sizes
from kernbench.scheduler import RankScheduler

RANKS = 8
SMALL, LARGE = 256, 16 << 20
"""Elements of fp32: 1 KiB and 64 MiB."""


# -- programs: run in every rank by every side ---------------------------------------------------------------------------


def first_all_reduce(rank: int, world_size: int) -> None:
    """What a start costs: everything up to the end of the first collective."""
    dist.all_reduce(torch.ones(SMALL))


def all_reduces(rank: int, world_size: int, size: int, repeats: int) -> list[float]:
    """Median seconds of one all-reduce of ``size`` elements, in batches of ``repeats``."""
    tensor = torch.zeros(size)
    dist.all_reduce(tensor)
    times = []
    for _ in range(5):
        begin = clock()
        for _ in range(repeats):
            dist.all_reduce(tensor)
        times.append((clock() - begin) / repeats)
    return [statistics.median(times)]


def training(rank: int, world_size: int, steps: int) -> list[float]:
    """A tensor-parallel MLP by DTensor; seconds per step, the first left out."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    model = parallelize_module(
        nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), mesh,
        {"0": ColwiseParallel(), "2": RowwiseParallel()},
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin = clock()
    for step in range(steps):
        if step == 1:
            begin = clock()
        optimizer.zero_grad()
        model(torch.ones(32, 256)).square().mean().backward()
        optimizer.step()
    return [(clock() - begin) / (steps - 1)]


def small_model(rank: int, world_size: int) -> list[float]:
    """Forward, backward and gradient all-reduce of a small layer; resident memory at its end (bytes, in rank 0)."""
    layer = torch.nn.Linear(64, 64)
    layer(torch.ones(4, 64)).sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
    dist.barrier()
    return [float(resident())]


def resident() -> int:
    """Resident memory of this process, bytes (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- figures -------------------------------------------------------------------------------------------------------------


class Figure(NamedTuple):
    """One line of the table.

    Attributes:
        values: by side, in ``unit``; a text where the side could not run it.
        goal: for kernbench, in ``unit``; or, with ``beside``, at most that many times the value of that side.
    """

    name: str
    unit: str
    values: dict[str, float | str]
    goal: float | None = None
    beside: str | None = None

    @property
    def ours(self) -> float | None:
        value = self.values.get("kernbench")
        return value if isinstance(value, float) else None

    @property
    def limit(self) -> float | None:
        """The goal in ``unit``."""
        if self.beside is None or self.goal is None:
            return self.goal
        other = self.values.get(self.beside)
        return self.goal * other if isinstance(other, float) else None

    @property
    def verdict(self) -> str:
        if self.limit is None or self.ours is None:
            return ""
        return "ok" if self.ours <= self.limit else f"x {self.ours / self.limit:.1f}"

    def ratio(self, side: str) -> str:
        """``value (its ratio to ours)`` of a side."""
        value = self.values.get(side, "")
        if isinstance(value, str) or not self.ours or side == "kernbench":
            return value if isinstance(value, str) else f"{value:.3g}"
        return f"{value:.3g} ({value / self.ours:.2g}x)"


class Bench:
    """Runs programs on the wanted sides."""

    def __init__(self, sides: Sequence[str], steps: int) -> None:
        self.sides = sides
        self.steps = steps

    def on_sides(self, pick: Callable[[Callable[..., Run]], float], *, sides: Sequence[str] = tuple(SIDES)) -> Any:
        """``pick(side)`` for each side; what a side raises stands in its place."""
        values: dict[str, float | str] = {}
        for name in sides:
            if name in self.sides:
                try:
                    values[name] = pick(SIDES[name])
                except Exception as error:
                    values[name] = f"cannot: {type(error).__name__}: {str(error).strip().splitlines()[0][:40]}"
        return values

    def start(self, ranks: int, goal: float | None) -> Figure:
        def best(side: Callable[..., Run]) -> float:
            repeats = 1 if side is SIDES["gloo"] else 25 if ranks <= RANKS else 7 if ranks <= 64 else 2
            return min(side(ranks, first_all_reduce).seconds for _ in range(repeats)) * 1e3

        names = ["kernbench"]
        names += ["processes", "threaded"] if ranks <= 64 else []
        names += ["gloo"] if ranks <= RANKS else []
        return Figure(f"start to first all_reduce x {ranks}", "ms", self.on_sides(best, sides=names), goal)

    def all_reduce(self, label: str, size: int, repeats: int, unit: str, scale: float, **goal: Any) -> Figure:
        values = self.on_sides(lambda side: side(RANKS, all_reduces, size, repeats).result[0] * scale)
        return Figure(f"all_reduce {label} x {RANKS}", unit, values, **goal)

    def train(self) -> Iterator[Figure]:
        whole: dict[str, float | str] = {}
        steps = self.steps

        def per_step(side: Callable[..., Run]) -> float:
            run = side(RANKS, training, steps)
            name = next(name for name, each in SIDES.items() if each is side)
            whole[name] = run.seconds
            return run.result[0] * 1e3

        values = self.on_sides(per_step)
        yield Figure(f"DTensor training step x {RANKS}", "ms", values, 1.0, "gloo")
        yield Figure(f"  start to end, {steps} steps", "s", whole, 1 / 8, "gloo")

    def figures(self, ranks: Sequence[int]) -> Iterator[Figure]:
        """Measure, in the order of the table."""
        simulated(2, first_all_reduce)  # imports
        yield from self.train()
        for count in ranks:
            yield self.start(count, {8: 5.0, 64: 20.0, 1024: 500.0}.get(count))
        yield Figure("switch from carrier to carrier", "us", {"kernbench": switch() * 1e6}, 6.0)
        yield self.all_reduce("1 KiB", SMALL, 20, "us", 1e6, goal=150.0)
        yield self.all_reduce("64 MiB", LARGE, 1, "ms", 1e3, goal=0.6, beside="gloo")
        yield Figure("recording a torch operation", "us", {"kernbench": recording() * 1e6}, 5.0)
        yield Figure("memory of 1024 ranks with a small model", "GiB", {"kernbench": memory() / 2**30}, 2.0)


def switch(ranks: int = RANKS, turns: int = 500) -> float:
    """Seconds of one hand-over between carriers; the process-wide state of ranks not included."""

    def run() -> float:
        scheduler = RankScheduler()

        def body() -> None:
            for _ in range(turns):
                scheduler.pause()

        scheduler.start([body] * ranks, isolation="carrier")
        with scheduler.at_work():
            begin = clock()
            scheduler.run_ready()
            return (clock() - begin) / (ranks * turns)

    return statistics.median(run() for _ in range(5))


def recording(calls: int = 2000) -> float:
    """Seconds that recording adds to a torch operation of a rank."""
    x = torch.ones(64, 64)

    def loop() -> float:
        begin = clock()
        for _ in range(calls):
            torch.add(x, x)
        return (clock() - begin) / calls

    found: list[float] = []

    def body(rank: int, world_size: int) -> list[float]:
        loop()
        return [loop()]

    for _ in range(5):
        loop()
        plain = loop()
        found.append(simulated(1, body).result[0] - plain)
    return statistics.median(found)


def memory(ranks: int = 1024) -> float:
    """Resident bytes of a process of its own with that many carriers, each with a small model."""
    program = (
        "from benches.distributed_speed import small_model\nfrom benches.harness.distributed_sides import simulated\n"
        f"print(simulated({ranks}, small_model).result[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def run(
    ctx: Any = None, *, ranks: Sequence[int] = (8, 64), sides: Sequence[str] = tuple(SIDES), steps: int = 10
) -> list[Figure]:
    """Measure and print; returns the figures. ``ctx`` is not used: every measurement opens a simulation of its own."""
    names = [name for name in SIDES if name in sides]
    table = Table("figure", "unit", *names, "goal", "", title=f"kernbench {kernbench.__version__}: torch.distributed")
    found = list(Bench(names, steps).figures(ranks))
    for figure in found:
        goal = "" if figure.goal is None else f"<= {figure.goal:g}" + (f" x {figure.beside}" if figure.beside else "")
        table.add_row(figure.name, figure.unit, *(figure.ratio(name) for name in names), goal, figure.verdict)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return found


@click.command(help=__doc__)
@click.option(
    "--ranks", callback=sizes, default="8,64,1024", show_default=True, help="World sizes to start, separated by commas."
)
@click.option("--only", default=",".join(SIDES), show_default=True, help="The sides to run, separated by commas.")
@click.option("--steps", default=10, show_default=True, help="Training steps.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Also write the figures to this file.")
def main(ranks: tuple[int, ...], only: str, steps: int, json_file: str | None) -> None:
    """Measure and print."""
    sides = [name.strip() for name in only.split(",")]
    unknown = [name for name in sides if name not in SIDES]
    if unknown:
        raise click.UsageError(f"unknown side {unknown[0]!r}: expected some of {', '.join(SIDES)}")
    found = run(ranks=ranks, sides=sides, steps=steps)
    if json_file:
        with open(json_file, "w") as file:
            json.dump([figure._asdict() for figure in found], file, indent=2)


if __name__ == "__main__":
    main()
