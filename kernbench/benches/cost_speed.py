"""Closed-form estimates: CPU seconds of one, in a call over many sizes and in a call each.

    python -m kernbench.benches.cost_speed

The goal of the models is 100 000 estimates a second over an array of sizes: 10 us each.
"""

from __future__ import annotations

from collections.abc import Callable

import click
import numpy as np

from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import CPU, Comparison, Outcome, Sampler, Side, seconds
from kernbench.cost import collective_time, gemm_time, memory_bound_time
from kernbench.cost.op_costs import OpCosts
from kernbench.topology import load_device

NAME = "cost_speed"
GOAL = 10.0
"""us."""
POINTS = 20_000
_SINGLE = 200


def _collectives(count: int) -> None:
    sizes = np.linspace(1 << 10, 1 << 30, count).astype(np.int64)
    collective_time("dgx_h100", "all_reduce", sizes, ranks=16, nodes=2)


def _products(count: int) -> None:
    gemm_time("h100_sxm", np.arange(1, count + 1), 4096, 4096)


def _memory_bound(count: int) -> None:
    for rows in range(1, count + 1):
        memory_bound_time("h100_sxm", "softmax", (rows, 4096), dtype="float16")


def _recorded(count: int) -> None:
    costs = OpCosts(load_device("h100_sxm"))
    tensors = (((512, 512), "float16"),) * 2
    for _ in range(count):
        costs.of("mm", tensors, tensors[:1])


def _large(count: int) -> None:
    for _ in range(count):
        collective_time("gh200_alps", "all_reduce", 1 << 26, ranks=2048, nodes=512)


CASES: dict[str, tuple[Callable[[int], None], int]] = {
    "collectives, an array of sizes": (_collectives, POINTS),
    "2048-rank all-reduce, one size": (_large, _SINGLE),
    "products, an array of sizes": (_products, POINTS),
    "memory-bound kernels, one by one": (_memory_bound, _SINGLE * 10),
    "recorded operations, known shapes": (_recorded, POINTS),
}


def figures() -> list[Comparison]:
    """One for each case; the models' goal holds where one call has many sizes."""
    return [
        Comparison(
            name, "us", lambda body=body, count=count: {"kernbench": Side(_each(body, count))},  # type: ignore[misc]
            limit=GOAL if "array" in name else None,
        )
        for name, (body, count) in CASES.items()
    ]  # fmt: skip


def _each(body: Callable[[int], None], count: int) -> Sampler:
    once = seconds(lambda: body(count), clock=CPU)
    return lambda: once() / count


def run(ctx: object = None, speed: SpeedRun | None = None) -> list[Outcome]:
    """CPU seconds of one estimate, by case."""
    return (speed or SpeedRun()).run(NAME, figures())


@click.command(name=NAME, help=__doc__)
@speed_options
def command(speed: SpeedRun) -> None:
    """Measure and print."""
    run(speed=speed)


if __name__ == "__main__":
    command()
