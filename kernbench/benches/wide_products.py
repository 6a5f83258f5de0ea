"""16-bit products on this CPU: its own against those computed in 32 bits and rounded once.

``python -m kernbench.benches.wide_products`` measures both in turns, one thread each, and their errors against doubles.
``ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2`` in the environment shows what a CPU without 16-bit engines does.
"""

from __future__ import annotations

import click
import torch

from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import Comparison, Outcome, Side, seconds
from kernbench.cost.host_speed import one_intra_op_thread

NAME = "wide_products"
SHAPES = {
    "512 x 1024 x 1024": ((512, 1024), (1024, 1024)),
    "8 x 1024 x 1024": ((8, 1024), (1024, 1024)),
    "64 x 64 x 64": ((64, 64), (64, 64)),
    "16 of 256 x 64 x 256": ((16, 256, 64), (16, 64, 256)),
}


def _own(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right


def _wide(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.float() @ right.float()).to(left.dtype)


def figures() -> list[Comparison]:
    """One for each format and shape."""
    return [
        Comparison(f"{str(dtype).removeprefix('torch.')} {name}", "us", lambda d=dtype, s=shapes: _sides(d, s))  # type: ignore[misc]
        for dtype in (torch.bfloat16, torch.float16)
        for name, shapes in SHAPES.items()
    ]


def _sides(dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Side]:
    left, right = (torch.randn(shape).to(dtype) for shape in shapes)
    return {"in 32 bits": Side(seconds(lambda: _wide(left, right))), "own": Side(seconds(lambda: _own(left, right)))}


def errors() -> dict[str, dict[str, float]]:
    """For each format and shape: of both, the largest error over the largest value, against double precision."""
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        for name, shapes in SHAPES.items():
            left, right = (torch.randn(shape).to(dtype) for shape in shapes)
            exact = left.double() @ right.double()
            found[f"{str(dtype).removeprefix('torch.')} {name}"] = {
                side: float((product(left, right).double() - exact).abs().max() / exact.abs().max())
                for side, product in (("own", _own), ("in 32 bits", _wide))
            }
    return found


def run(ctx: object = None, speed: SpeedRun | None = None) -> list[Outcome]:
    """Measure and print, with one thread."""
    with one_intra_op_thread():
        return (speed or SpeedRun()).run(NAME, figures())


@click.command(name=NAME, help=__doc__)
@speed_options
def command(speed: SpeedRun) -> None:
    """Measure and print."""
    run(speed=speed)
    for name, row in errors().items():
        click.echo(f"# error of {name:<36} own {row['own']:.1e}, in 32 bits {row['in 32 bits']:.1e}")


if __name__ == "__main__":
    command()
