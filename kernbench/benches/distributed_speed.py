"""How long torch.distributed programs take on the host: simulated ranks beside torch's own ways and gloo processes.

    python -m kernbench.benches.distributed_speed [--isolation process] [--ranks 8,64,1024] [--only "all_reduce"] [--json FILE]

Wall-clock time of this machine, all sides in turns, because only their ratios mean something: kernbench's ranks as threads
that take turns, as greenlets, and as processes; torch's threaded process group; ``LocalTensorMode``, where it can run the
program; 8 processes with gloo. ``--isolation process`` takes the figures of ranks that are processes instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import kernbench
from kernbench.benches.harness.distributed_sides import SIDES, Run, clock, simulated
from kernbench.benches.harness.scaling import sizes
from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import Comparison, Outcome, Side

NAME = "distributed_speed"
RANKS = 8
SMALL, LARGE = 256, 16 << 20
"""Elements of fp32: 1 KiB and 64 MiB."""
WARM_UP = 5
"""Steps until a rank that is a process keeps what DTensor and torch do of a step, as gloo's have it from the rounds before."""
LASTING = ("kernbench", "threaded", "local tensors", "gloo, started before")
"""Sides of what does not include their start."""


# -- programs: run in every rank by every side ---------------------------------------------------------------------------


def first_all_reduce(rank: int, world_size: int) -> None:
    """What a start costs: everything up to the end of the first collective."""
    dist.all_reduce(torch.ones(SMALL))


def all_reduces(rank: int, world_size: int, size: int, repeats: int) -> list[float]:
    """Seconds of one all-reduce of ``size`` elements, mean of the quickest of five batches of ``repeats``."""
    tensor = torch.zeros(size)
    dist.all_reduce(tensor)
    times = []
    for _ in range(5):
        begin = clock()
        for _ in range(repeats):
            dist.all_reduce(tensor)
        times.append((clock() - begin) / repeats)
    return [min(times)]


def training(rank: int, world_size: int, steps: int, warm_up: int = 1) -> list[float]:
    """A tensor-parallel MLP by DTensor; seconds per step, the first ``warm_up`` left out."""
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
        if step == warm_up:
            begin = clock()
        optimizer.zero_grad()
        model(torch.ones(32, 256)).square().mean().backward()
        optimizer.step()
    return [(clock() - begin) / (steps - warm_up)]


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


def _on(names: Sequence[str], pick: Callable[[Callable[..., Run]], float]) -> Callable[[], dict[str, Side]]:
    """Sides by name, each sampled by ``pick(side)``."""
    return lambda: {name: Side(lambda run=SIDES[name]: pick(run)) for name in names}  # type: ignore[misc]


def _start(ranks: int) -> Callable[[], float]:
    return lambda: simulated(ranks, first_all_reduce).seconds / ranks


def starts(ranks: int) -> Comparison:
    """From nothing to the end of the first all-reduce: up to 64 ranks beside threads, above per rank beside 8 ranks."""
    if ranks > 64:
        sides = {f"{ranks} ranks": Side(_start(ranks)), f"{RANKS} ranks": Side(_start(RANKS))}
        return Comparison(
            f"start to first all_reduce, per rank of {ranks}", "ms", lambda: sides, {f"{RANKS} ranks": 1.0}
        )
    names = ("kernbench", "threaded", "processes")
    goal = {8: 0.6, 64: 0.25}.get(ranks)
    goals = {} if goal is None else {"threaded": goal}
    return Comparison(
        f"start to first all_reduce x {ranks}",
        "ms",
        _on(names, lambda side: side(ranks, first_all_reduce).seconds),
        goals,
    )


def all_reduce(label: str, unit: str, size: int, repeats: int, goals: Mapping[str, float]) -> Comparison:
    """One all-reduce, of many in a row."""
    return Comparison(
        f"all_reduce {label} x {RANKS}",
        unit,
        _on(LASTING, lambda side: side(RANKS, all_reduces, size, repeats).result[0]),
        goals,
    )


class EmptyMode(TorchDispatchMode):
    """What the least that sees every operation costs: torch's own mode, which does nothing."""

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        return func(*args, **(kwargs or {}))


def additions(
    rank: int = 0, world_size: int = 1, calls: int = 200, side: int = 64, device: str = "cpu", *, in_place: bool = False
) -> list[float]:
    """Seconds of one addition of two square tensors: mean of the quickest of several loops."""
    x, y = torch.ones(side, side, device=device), torch.ones(side, side, device=device)
    add = x.add_ if in_place else x.add
    times = []
    for _ in range(10):
        begin = clock()
        for _ in range(calls):
            add(y)
        times.append((clock() - begin) / calls)
    return [min(times)]


def on_gpu(*, data: bool, side: int, in_place: bool = False) -> float:
    """The same of tensors on a simulated GPU, in a rank with a thread of its own."""
    found: list[float] = []

    def worker(rank: int) -> None:
        found.extend(additions(side=side, device="cuda", in_place=in_place))

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    return found[0]


def _first_of(measure: Callable[..., list[float]], **options: object) -> float:
    return measure(**options)[0]


def path_of_an_operation() -> list[Comparison]:
    """What an operation on a simulated GPU takes, beside torch's operations in an empty mode: with values less the same
    outside, without data as a whole (its 32 MiB are neither computed nor touched)."""

    def in_mode(in_place: bool) -> float:
        with EmptyMode():
            return additions(in_place=in_place)[0]

    figures = []
    for in_place, name in ((False, "a + b"), (True, "in place")):
        plain = partial(_first_of, additions, in_place=in_place)
        sides = {
            "kernbench": Side(partial(on_gpu, data=True, side=64, in_place=in_place), plain),
            "empty mode": Side(partial(in_mode, in_place), plain),
        }
        figures.append(Comparison(f"added on a GPU, {name}", "us", partial(dict, sides), {"empty mode": 1.8}))
    hollow = {
        "kernbench": Side(lambda: on_gpu(data=False, side=2896)), "empty mode": Side(lambda: in_mode(False)),
    }  # fmt: skip
    return [*figures, Comparison("hollow operation, 32 MiB", "us", lambda: hollow, {"empty mode": 2.5})]


def recording() -> Comparison:
    """What recording adds to an operation, beside what an empty dispatch mode adds."""

    def in_mode() -> float:
        with EmptyMode():
            return additions()[0]

    def plain() -> float:
        return additions()[0]

    def in_rank() -> float:
        return simulated(1, additions).result[0]

    sides = {"kernbench": Side(in_rank, plain), "empty mode": Side(in_mode, plain)}
    return Comparison("added to a torch operation", "us", lambda: sides, {"empty mode": 1.2})


def memory(ranks: int = 1024) -> float:
    """Resident bytes of a process of its own with that many carriers, each with a small model."""
    program = (
        "from kernbench.benches.distributed_speed import small_model\n"
        "from kernbench.benches.harness.distributed_sides import simulated\n"
        f"print(simulated({ranks}, small_model).result[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def memory_per_process(ranks: int = 8) -> float:
    """Bytes that one more rank adds, which is a process and waits: what so many beyond the first add, shared pages in parts."""
    program = (
        "from kernbench.benches.distributed_speed import family_memory\n"
        "from kernbench.benches.harness.distributed_sides import forked\n"
        f"print(*(forked(count, family_memory).result[0] for count in (1, {ranks} + 1)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    one, all_of_them = map(float, done.stdout.split()[-2:])
    return (all_of_them - one) / ranks


def family_memory(rank: int, world_size: int) -> list[float]:
    """Bytes of the simulation and of all ranks, which wait: proportional set sizes (Linux), in rank 0."""
    dist.all_reduce(torch.ones(SMALL))
    found = 0
    if rank == 0:
        simulation = os.getppid()
        with open(f"/proc/{simulation}/task/{simulation}/children") as file:
            found = sum(map(proportional, (simulation, *map(int, file.read().split()))))
    dist.barrier()
    return [float(found)]


def proportional(process: int) -> int:
    """Memory of a process, bytes; of pages that several have, each has its part."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def process_figures(ranks: Sequence[int] = (8, 64, 1024), steps: int = 10) -> list[Comparison]:
    """Of ranks that are processes, in the order of the table."""
    import torch.distributed.tensor.parallel  # noqa: F401  # as the processes with gloo, they have imported before

    lasting = ("processes", "kernbench", "gloo, started before")

    def start(count: int) -> Comparison:
        sides = _on(("processes", "kernbench"), lambda side: side(count, first_all_reduce).seconds)
        return Comparison(f"start to first all_reduce x {count}", "ms", sides, limit={8: 150.0, 64: 800.0}.get(count))

    def all_reduce(label: str, unit: str, size: int, repeats: int, **goals: Any) -> Comparison:
        sides = _on(lasting, lambda side: side(RANKS, all_reduces, size, repeats).result[0])
        return Comparison(f"all_reduce {label} x {RANKS}", unit, sides, **goals)

    return [
        *(start(count) for count in ranks),
        all_reduce("1 KiB", "us", SMALL, 20, limit=250.0),
        all_reduce("64 MiB", "ms", LARGE, 1, goals={"gloo, started before": 0.6}),
        Comparison(
            f"DTensor training step x {RANKS}", "ms",
            _on(lasting, lambda side: side(RANKS, training, steps + WARM_UP, WARM_UP).result[0]),
            {"gloo, started before": 0.7},
        ),
        Comparison("memory of an idle rank", "MiB", lambda: {"processes": Side(memory_per_process)}, limit=25.0),
    ]  # fmt: skip


def figures(ranks: Sequence[int] = (8, 64, 1024), steps: int = 10) -> list[Comparison]:
    """Of ranks that share this process, in the order of the table."""
    return [
        *(starts(count) for count in ranks),
        all_reduce("1 KiB", "us", SMALL, 20, {"local tensors": 0.8}),
        all_reduce("64 MiB", "ms", LARGE, 1, {"gloo, started before": 0.6}),
        recording(),
        *path_of_an_operation(),
        Comparison(
            f"DTensor training step x {RANKS}", "ms", _on(LASTING, lambda side: side(RANKS, training, steps).result[0]),
            {"gloo, started before": 0.8, "threaded": 1.0},
        ),
        Comparison(
            f"{steps} such steps from start to end", "s",
            _on(("kernbench", "gloo"), lambda side: side(RANKS, training, steps).seconds), {"gloo": 1 / 8},
        ),
        Comparison("memory of 1024 ranks with a small model", "GiB", lambda: {"kernbench": Side(memory)}, limit=2.0),
    ]  # fmt: skip


def run(ctx: object = None, speed: SpeedRun | None = None, isolation: str = "carrier", **options: Any) -> list[Outcome]:
    """Measure and print. ``ctx`` is not used: every measurement opens a simulation of its own."""
    make = process_figures if isolation == "process" else figures
    return (speed or SpeedRun()).run(NAME, make(**options))


@click.command(name=NAME, help=__doc__)
@click.option(
    "--isolation",
    type=click.Choice(["carrier", "process"]),
    default="carrier",
    show_default=True,
    help="What our ranks are.",
)
@click.option(
    "--ranks", callback=sizes, default="8,64,1024", help="World sizes to start, separated by commas.", show_default=True
)
@click.option("--steps", type=click.IntRange(min=2), default=10, show_default=True, help="Training steps.")
@speed_options
def command(speed: SpeedRun, isolation: str, ranks: tuple[int, ...], steps: int) -> None:
    """Measure and print."""
    run(speed=speed, isolation=isolation, ranks=ranks, steps=steps)


if __name__ == "__main__":
    command()
