"""How fast the runtime itself is: switches, spawns, collectives, large worlds, each beside the least that could do the same.

    python -m kernbench.benches.runtime_speed [--only "switch"] [--json FILE]

The sides are measured in turns. Bare locks and bare greenlets hand over as ranks do, and do nothing else; the locks have the
same effects on the process (:class:`kernbench.scheduler.HostEffects`). Times are of the host (not virtual), of
switches CPU seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import click
import greenlet
import torch

import kernbench
from kernbench.benches.distributed_speed import SMALL, all_reduces
from kernbench.benches.harness.distributed_sides import local_tensors
from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import CPU, Comparison, Outcome, Side, seconds
from kernbench.scheduler import RankScheduler

NAME = "runtime_speed"
RANKS = 8


def idle(rank: int) -> None:
    """A rank that does nothing."""


# -- switches ------------------------------------------------------------------------------------------------------------
# In CPU seconds: one of them runs at a time, on one core, which others may want, too.


def switches(isolation: str, turns: int = 200) -> float:
    """Seconds of one switch from a rank to the next; greenlets pass main on the way."""
    scheduler = RankScheduler()

    def body() -> None:
        for _ in range(turns):
            scheduler.pause()

    scheduler.start([body] * RANKS, isolation=isolation)
    with scheduler.at_work():
        begin = CPU()
        scheduler.run_ready()
        return (CPU() - begin) / (RANKS * turns)


def bare_locks(turns: int = 200) -> float:
    """Seconds in which a thread opens the next one's lock and waits at its own."""
    locks = [threading.Lock() for _ in range(RANKS)]
    for lock in locks:
        lock.acquire()

    def body(rank: int) -> None:
        mine, after = locks[rank], locks[(rank + 1) % RANKS]
        for _ in range(turns):
            mine.acquire()
            after.release()

    with RankScheduler().at_work():
        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        begin = CPU()
        locks[0].release()
        for thread in threads:
            thread.join()
        return (CPU() - begin) / (RANKS * turns)


def bare_greenlets(turns: int = 200) -> float:
    """Seconds of a switch from a greenlet to the next."""
    ring: list[greenlet.greenlet] = []

    def body(rank: int) -> None:
        after = ring[(rank + 1) % RANKS]
        for _ in range(turns):
            after.switch(*() if after else ((rank + 1) % RANKS,))

    ring.extend(greenlet.greenlet(body) for _ in range(RANKS))
    begin = CPU()
    ring[0].switch(0)
    return (CPU() - begin) / (RANKS * turns)


def bare_greenlets_by_main(turns: int = 200) -> float:
    """Seconds of two switches: from a greenlet to main, and from there to the next."""
    main = greenlet.getcurrent()

    def body() -> None:
        for _ in range(turns):
            main.switch()

    ring = [greenlet.greenlet(body) for _ in range(RANKS)]
    begin = CPU()
    for _ in range(turns):
        for each in ring:
            each.switch()
    return (CPU() - begin) / (RANKS * turns)


# -- spawns --------------------------------------------------------------------------------------------------------------


def spawns(isolation: str, ranks: int) -> float:
    """Seconds of a spawn of ranks that do nothing, in a simulation that has had one before."""
    with kernbench.simulate(nodes=-(-ranks // 8)) as ctx:
        once = seconds(lambda: ctx.multiprocessing.spawn(idle, nprocs=ranks, isolation=isolation))
        once()
        return min(once() for _ in range(3))


def bare_threads(ranks: int) -> None:
    """Start threads that do nothing, and wait for them."""
    threads = [threading.Thread(target=idle, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def bare_starts(ranks: int) -> None:
    """Run greenlets that do nothing."""
    for rank in range(ranks):
        greenlet.greenlet(idle).switch(rank)


# -- collectives and large worlds ----------------------------------------------------------------------------------------


def small_all_reduce(calls: int = 50) -> float:
    """Seconds of one all-reduce of 1 KiB over 8 ranks that are greenlets, by ``ctx.distributed``."""
    tensors = [torch.zeros(SMALL) for _ in range(RANKS)]
    with kernbench.simulate() as ctx:

        def worker(rank: int) -> None:
            for _ in range(calls):
                ctx.distributed.all_reduce(tensors[rank])

        return min(
            seconds(lambda: ctx.multiprocessing.spawn(worker, nprocs=RANKS, isolation="greenlet"))() for _ in range(3)
        ) / calls  # fmt: skip


def by_local_tensors() -> float:
    """The same in ``LocalTensorMode``."""
    return local_tensors(RANKS, all_reduces, SMALL, 20).result[0]


def large_all_reduce() -> dict[str, Side]:
    """An all-reduce of 64 MiB of fp32 over 8 ranks, and reading all inputs and writing all outputs once."""
    tensors = [torch.zeros(16 << 20) for _ in range(RANKS)]
    total = torch.empty(256 << 10)

    def touch() -> None:
        for begin in range(0, 16 << 20, len(total)):
            part = slice(begin, begin + len(total))
            for tensor in tensors:
                total.copy_(tensor[part])
            for tensor in tensors:
                tensor[part].copy_(total)

    def reduce() -> float:
        with kernbench.simulate() as ctx:

            def worker(rank: int) -> None:
                ctx.distributed.all_reduce(tensors[rank])

            return seconds(lambda: ctx.multiprocessing.spawn(worker, nprocs=RANKS, isolation="greenlet"))()

    return {"kernbench": Side(reduce), "memory": Side(seconds(touch))}


def time_only(ranks: int) -> float:
    """Seconds of a first ring all-reduce of 4 MiB without data; it includes building the schedule."""
    with kernbench.simulate(nodes=-(-ranks // 8), enable_data=False) as ctx:

        def worker(rank: int) -> None:
            ctx.distributed.all_reduce(ctx.empty(1 << 20))

        return seconds(lambda: ctx.multiprocessing.spawn(worker, nprocs=ranks, isolation="greenlet"))()


def per_step(ranks: int) -> Side:
    """The same by step of the ring and rank."""
    return Side(lambda: time_only(ranks) / (2 * ranks * (ranks - 1)))


def resident() -> int:
    """Resident memory of this process, bytes (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bytes_per_idle_rank(ranks: int) -> float:
    """Resident memory of a rank that sleeps, stack and all, bytes; in a process that has had none."""
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


def bytes_per_logged_collective(calls: int = 5000) -> float:
    """Resident memory that each member's part of a small all-reduce takes once it has ended, bytes; in a process of its own."""
    tensors = [torch.zeros(SMALL) for _ in range(RANKS)]
    with kernbench.simulate() as ctx:

        def worker(rank: int, calls: int) -> None:
            for _ in range(calls):
                ctx.distributed.all_reduce(tensors[rank])

        ctx.multiprocessing.spawn(worker, (1000,), nprocs=RANKS, isolation="greenlet")
        before = resident()
        ctx.multiprocessing.spawn(worker, (calls,), nprocs=RANKS, isolation="greenlet")
        return (resident() - before) / (RANKS * calls)


def in_a_process(expression: str) -> float:
    """What an expression over this module gives in a process of its own."""
    program = f"from kernbench.benches import runtime_speed\nprint(runtime_speed.{expression})"
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def _both(isolation: str, ranks: int, bare: Callable[[int], None]) -> Callable[[], dict[str, Side]]:
    return lambda: {"kernbench": Side(lambda: spawns(isolation, ranks)), "bare": Side(seconds(lambda: bare(ranks)))}


def figures() -> list[Comparison]:
    """In the order of the table."""
    greenlets = {
        "kernbench": Side(lambda: switches("greenlet")), "bare greenlets": Side(bare_greenlets),
        "bare, by way of main": Side(bare_greenlets_by_main),
    }  # fmt: skip
    carriers = {"kernbench": Side(lambda: switches("carrier")), "bare locks": Side(bare_locks)}
    small = {"kernbench": Side(small_all_reduce), "local tensors": Side(by_local_tensors)}
    return [
        Comparison("switch of greenlets", "us", lambda: greenlets, {"bare greenlets": 2.0}),
        Comparison("switch of carriers", "us", lambda: carriers, {"bare locks": 1.5}),
        Comparison("spawn 8 greenlets", "ms", _both("greenlet", 8, bare_starts)),
        Comparison("spawn 1024 greenlets", "ms", _both("greenlet", 1024, bare_starts)),
        Comparison("spawn 8 carriers", "ms", _both("carrier", 8, bare_threads)),
        Comparison("all_reduce 1 KiB x 8, greenlets", "us", lambda: small, {"local tensors": 0.6}),
        Comparison("all_reduce 64 MiB x 8, greenlets", "ms", large_all_reduce, {"memory": 1.5}),
        Comparison(
            "time-only ring all_reduce, per step of 1024 ranks", "us",
            lambda: {"1024 ranks": per_step(1024), "64 ranks": per_step(64)}, {"64 ranks": 1.0},
        ),
        Comparison(
            "memory of a member's part of a logged all_reduce", "B",
            lambda: {"kernbench": Side(lambda: in_a_process("bytes_per_logged_collective()"))}, limit=100.0,
        ),
        Comparison(
            "memory per idle rank, 4096 ranks", "KiB",
            lambda: {"kernbench": Side(lambda: in_a_process("bytes_per_idle_rank(4096)"))}, limit=16.0,
        ),
    ]  # fmt: skip


def run(ctx: object = None, speed: SpeedRun | None = None) -> list[Outcome]:
    """Measure and print. ``ctx`` is not used: every measurement opens a simulation of its own."""
    return (speed or SpeedRun()).run(NAME, figures())


@click.command(name=NAME, help=__doc__)
@speed_options
def command(speed: SpeedRun) -> None:
    """Measure and print."""
    run(speed=speed)


if __name__ == "__main__":
    command()
