"""How long torch.distributed programs take on the host: simulated ranks beside gloo processes and torch's threaded group.

    python -m benches.distributed_speed [--ranks 8 64] [--no-gloo]

Wall-clock seconds of this machine, all in one run, because only their ratios mean something.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

import kernbench

REPEATS = 20
SIZES = {"1 KB": 256, "64 MB": 16 << 20}
_clock = time.perf_counter  # the host's: inside ranks `time` is virtual


def _all_reduces(rank: int, size: int, repeats: int, out: list[float]) -> None:
    tensor = torch.ones(size)
    dist.all_reduce(tensor)
    begin = _clock()
    for _ in range(repeats):
        dist.all_reduce(tensor)
    if rank == 0:
        out.append((_clock() - begin) / repeats)


def _start(rank: int) -> None:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(256))


def _training(rank: int, world_size: int, steps: int, out: list[float]) -> None:
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
    begin = _clock()
    for step in range(steps):
        if step == 1:
            begin = _clock()
        optimizer.zero_grad()
        model(torch.ones(32, 256)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        out.append((_clock() - begin) / (steps - 1))


def _simulated(body: Callable[..., Any], world_size: int, *args: Any) -> float:
    with kernbench.simulate(nodes=-(-world_size // 8) if world_size > 8 else None) as ctx:
        begin = _clock()
        ctx.multiprocessing.spawn(body, args=args, nprocs=world_size)
        return _clock() - begin


def _sim_all_reduces(rank: int, size: int, repeats: int, out: list[float]) -> None:
    dist.init_process_group("gloo")
    _all_reduces(rank, size, repeats, out)


def _sim_training(rank: int, world_size: int, steps: int, out: list[float]) -> None:
    dist.init_process_group("gloo")
    _training(rank, world_size, steps, out)


def _gloo_process(rank: int, world_size: int, steps: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    times: list[float] = []
    dist.all_reduce(torch.ones(256))
    for name, size in SIZES.items():
        _all_reduces(rank, size, 3 if size > 1 << 20 else REPEATS, times)
        if rank == 0:
            print(f"  all_reduce {name} x {world_size}: {times[-1] * 1e6:.0f} us")
    _training(rank, world_size, steps, times)
    if rank == 0:
        print(f"  training step x {world_size}: {times[-1] * 1e3:.1f} ms")
    dist.destroy_process_group()


def run(ctx: Any = None, *, ranks: tuple[int, ...] = (8, 64), gloo: bool = True, steps: int = 10) -> None:
    """Measure and print. ``ctx`` is not used: every measurement opens a simulation of its own."""
    _simulated(_start, 2)  # imports
    print("simulated ranks")
    for world_size in ranks:
        best = min(_simulated(_start, world_size) for _ in range(5))
        print(f"  spawn + init + first all_reduce x {world_size}: {best * 1e3:.1f} ms")
    for name, size in SIZES.items():
        times: list[float] = []
        _simulated(_sim_all_reduces, 8, size, 3 if size > 1 << 20 else REPEATS, times)
        print(f"  all_reduce {name} x 8: {times[0] * 1e6:.0f} us")
    times = []
    whole = _simulated(_sim_training, 8, 8, steps, times)
    print(f"  training step x 8: {times[0] * 1e3:.1f} ms; {steps} steps from the start: {whole:.2f} s")
    if gloo:
        print("gloo processes")
        begin = _clock()
        torch.multiprocessing.spawn(_gloo_process, args=(8, steps, 29611), nprocs=8)
        print(f"  everything from the start: {_clock() - begin:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64], help="world sizes to start")
    parser.add_argument("--no-gloo", action="store_true", help="leave out the real processes")
    parser.add_argument("--steps", type=int, default=10, help="training steps")
    args = parser.parse_args()
    run(ranks=tuple(args.ranks), gloo=not args.no_gloo, steps=args.steps)


if __name__ == "__main__":
    main()
