"""How fast the runtime itself is: switches, spawns, small and large collectives, large worlds.

    python -m benches.runtime_speed [--json FILE] [--quick]

Every figure stands beside its goal. What is compared with memory bandwidth is measured in the same run, in turns with
it, so that a busy machine slows both. Medians; times are of the host (not virtual).
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
import torch
from rich.console import Console
from rich.table import Table

import kernbench
from kernbench.scheduler import RankScheduler


class Figure(NamedTuple):
    """One measured figure and what it should be at most."""

    name: str
    value: float
    unit: str
    goal: float | None = None

    @property
    def verdict(self) -> str:
        return "" if self.goal is None else "ok" if self.value <= self.goal else f"x {self.value / self.goal:.1f}"


def seconds(work: Callable[[], Any]) -> float:
    """Wall seconds of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def median(work: Callable[[], Any], repeats: int) -> float:
    """Median wall seconds of a call, after one that does not count."""
    work()
    return statistics.median(seconds(work) for _ in range(repeats))


def idle(rank: int) -> None:
    """A rank that does nothing."""


def switches(isolation: str, ranks: int = 8, turns: int = 1000) -> float:
    """Seconds of one switch from a rank to the next; greenlets pass main on the way."""

    def run() -> None:
        scheduler = RankScheduler()

        def body() -> None:
            for _ in range(turns):
                scheduler.pause()

        scheduler.start([body] * ranks, isolation=isolation)
        with scheduler.at_work():
            scheduler.run_ready()

    return median(run, 5) / (ranks * turns)


def spawns(isolation: str, ranks: int, repeats: int) -> float:
    """Seconds of a spawn of ranks that do nothing."""
    with kernbench.simulate(nodes=-(-ranks // 8)) as ctx:
        return median(lambda: ctx.multiprocessing.spawn(idle, nprocs=ranks, isolation=isolation), repeats)


def resident() -> int:
    """Resident memory of this process, bytes (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bytes_per_idle_rank(ranks: int) -> float:
    """Resident memory of a rank that sleeps, stack and all, bytes."""
    with kernbench.simulate(nodes=-(-ranks // 8), enable_data=False) as ctx:
        held: list[int] = []

        def worker(rank: int) -> None:
            if rank == ranks - 1:
                held.append(resident())
            ctx.sleep(1.0)

        ctx.multiprocessing.spawn(worker, nprocs=8, isolation="greenlet")
        before = resident()
        ctx.multiprocessing.spawn(worker, nprocs=ranks, isolation="greenlet")
        return (held[-1] - before) / ranks


def small_all_reduce(isolation: str, calls: int = 50) -> float:
    """Seconds of one all-reduce of 1 KiB over 8 ranks."""
    tensors = [torch.zeros(256) for _ in range(8)]
    with kernbench.simulate() as ctx:

        def worker(rank: int) -> None:
            for _ in range(calls):
                ctx.distributed.all_reduce(tensors[rank])

        return median(lambda: ctx.multiprocessing.spawn(worker, nprocs=8, isolation=isolation), 5) / calls


def large_all_reduce(repeats: int) -> tuple[float, float]:
    """Seconds of an all-reduce of 64 MiB of fp32 over 8 ranks, and of reading all inputs and writing all outputs once."""
    tensors = [torch.zeros(16 << 20) for _ in range(8)]
    total = torch.empty(256 << 10)

    def touch() -> None:
        for begin in range(0, 16 << 20, len(total)):
            rows = slice(begin, begin + len(total))
            for tensor in tensors:
                total.copy_(tensor[rows])
            for tensor in tensors:
                tensor[rows].copy_(total)

    with kernbench.simulate() as ctx:

        def reduce() -> None:
            ctx.multiprocessing.spawn(
                lambda rank: ctx.distributed.all_reduce(tensors[rank]), nprocs=8, isolation="greenlet"
            )

        pairs = [(seconds(reduce), seconds(touch)) for _ in range(repeats + 1)][1:]
    return statistics.median(ours for ours, _ in pairs), statistics.median(theirs for _, theirs in pairs)


def time_only(ranks: int) -> float:
    """Seconds of a first ring all-reduce of 4 MiB without data; it includes building the schedule."""
    with kernbench.simulate(nodes=-(-ranks // 8), enable_data=False) as ctx:

        def worker(rank: int) -> None:
            ctx.distributed.all_reduce(ctx.empty(1 << 20))

        return seconds(lambda: ctx.multiprocessing.spawn(worker, nprocs=ranks, isolation="greenlet"))


def figures(quick: bool) -> Iterator[Figure]:
    """Measure, in the order of the table."""
    yield Figure("switch rank -> main -> rank, greenlet", switches("greenlet") * 1e6, "us", 1.0)
    yield Figure("switch from rank to rank, carrier", switches("carrier") * 1e6, "us", 6.0)
    yield Figure("spawn 8 ranks, greenlet", spawns("greenlet", 8, 21) * 1e3, "ms", 0.3)
    yield Figure("spawn 1024 ranks, greenlet", spawns("greenlet", 1024, 5) * 1e3, "ms", 60.0)
    yield Figure("spawn 8 ranks, carrier", spawns("carrier", 8, 11) * 1e3, "ms")
    yield Figure("memory per idle rank, 4096 ranks", bytes_per_idle_rank(4096) / 1024, "KiB", 16.0)
    yield Figure("all_reduce 1 KiB x 8, greenlet", small_all_reduce("greenlet") * 1e6, "us", 150.0)
    yield Figure("all_reduce 1 KiB x 8, carrier", small_all_reduce("carrier") * 1e6, "us")
    ours, memory = large_all_reduce(3 if quick else 7)
    yield Figure("all_reduce 64 MiB x 8", ours * 1e3, "ms")
    yield Figure("  read all inputs, write all outputs once", memory * 1e3, "ms")
    yield Figure("  ratio", ours / memory, "x", 1.5)
    per_step = {}
    for ranks in (64, 256, 1024):
        wall = time_only(ranks)
        per_step[ranks] = wall / (2 * ranks * (ranks - 1))
        yield Figure(f"time-only ring all_reduce, {ranks} ranks", wall, "s", 2.0 if ranks == 1024 else None)
    yield Figure("  cost per step, 1024 ranks / 64 ranks", per_step[1024] / per_step[64], "x", 1.0)


@click.command(help=__doc__)
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Also write the figures to this file.")
@click.option("--quick", is_flag=True, help="Fewer repeats.")
def main(json_file: str | None, quick: bool) -> None:
    """Measure and print."""
    table = Table("figure", "measured", "goal", "", title=f"kernbench {kernbench.__version__}: speed of the runtime")
    found = []
    for figure in figures(quick):
        found.append(figure)
        goal = "" if figure.goal is None else f"<= {figure.goal:g} {figure.unit}"
        table.add_row(figure.name, f"{figure.value:.3g} {figure.unit}", goal, figure.verdict)
    Console().print(table)
    if json_file:
        with open(json_file, "w") as file:
            json.dump([figure._asdict() for figure in found], file, indent=2)


if __name__ == "__main__":
    main()
