"""16-bit products on this CPU: its own against those computed in 32 bits and rounded once.

``python -m benches.wide_products`` prints a table: rates of both, by turns, and the error of each against double precision.
``ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2`` in the environment shows what a CPU without 16-bit engines does.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

SHAPES = {
    "512 x 1024 x 1024": ((512, 1024), (1024, 1024)),
    "8 x 1024 x 1024": ((8, 1024), (1024, 1024)),
    "64 x 64 x 64": ((64, 64), (64, 64)),
    "16 of 256 x 64 x 256": ((16, 256, 64), (16, 64, 256)),
}
_TURNS = 7


def _own(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right


def _wide(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.float() @ right.float()).to(left.dtype)


def run(ctx: Any = None) -> dict[str, dict[str, float]]:
    """For each format and shape: ``own`` and ``wide``, GFLOP/s of one thread; ``ratio``; ``own_error`` and ``wide_error``, the
    largest error over the largest value."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            f"{str(dtype).removeprefix('torch.')} {name}": _measure(*(torch.randn(shape).to(dtype) for shape in shapes))
            for dtype in (torch.bfloat16, torch.float16)
            for name, shapes in SHAPES.items()
        }
    finally:
        torch.set_num_threads(threads)


def _measure(left: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
    exact = left.double() @ right.double()
    figures = {"own": float("inf"), "wide": float("inf")}
    for turn in range(_TURNS):
        for name, product in (("own", _own), ("wide", _wide)):
            begin = time.perf_counter()
            result = product(left, right)
            took = time.perf_counter() - begin
            figures[f"{name}_error"] = float((result.double() - exact).abs().max() / exact.abs().max())
            if turn:  # the first warms caches
                figures[name] = min(figures[name], took)
    operations = 2 * left.numel() * right.shape[-1]
    rates = {name: operations / figures[name] / 1e9 for name in ("own", "wide")}
    return {**figures, **rates, "ratio": figures["own"] / figures["wide"]}


def main() -> int:
    print(f"{'product':<36} {'own':>10} {'in 32 bits':>14} {'ratio':>7} {'errors':>18}")
    for name, row in run().items():
        errors = f"{row['own_error']:.1e} {row['wide_error']:.1e}"
        print(f"{name:<36} {row['own']:>7.1f} GF {row['wide']:>11.1f} GF {row['ratio']:>7.2f} {errors:>18}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
