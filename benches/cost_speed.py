"""Closed-form estimates per second: one call over many sizes, and one call each.

``python -m benches.cost_speed`` prints a table; ``run(ctx)`` returns the figures. The goal of the models is 100 000 estimates a
second over an array of sizes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.cost import collective_time, gemm_time, memory_bound_time
from kernbench.cost.op_estimates import OpCosts
from kernbench.topology import load_device

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


def run(ctx: Any = None) -> dict[str, float]:
    """Estimates per second of CPU time, by case."""
    rates = {}
    for name, (body, count) in CASES.items():
        body(min(count, 2))  # read the descriptions
        begin = time.process_time()
        body(count)
        rates[name] = count / max(time.process_time() - begin, 1e-9)
    return rates


def main() -> int:
    print(f"{'estimates':<36} {'per second':>14} {'each':>12}")
    for name, rate in run().items():
        print(f"{name:<36} {rate:>14,.0f} {1e6 / rate:>9.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
