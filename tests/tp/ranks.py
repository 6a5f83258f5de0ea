"""Running a function on every rank of a small world, simulated or real."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import kernbench
from kernbench import tp

SEED = 1234


def simulated(
    world: int, fn: Callable[..., Any], *args: Any, tensor: int | None = None, system: str | None = None,
    isolation: str = "carrier", init: bool = True, **sizes: Any,
) -> list[Any]:  # fmt: skip
    """``fn(*args)`` on each of ``world`` simulated ranks, with model parallelism set up; the results by rank.

    Args:
        tensor: tensor parallel size, default ``world``; ``sizes``: the other arguments of ``initialize_model_parallel``.
        init: call ``torch.distributed.init_process_group`` first.
    """
    results: list[Any] = [None] * world

    def body(rank: int) -> None:
        if init and isolation == "carrier":
            dist.init_process_group("gloo")
        tp.initialize_model_parallel(world if tensor is None else tensor, **sizes)
        tp.model_parallel_manual_seed(SEED)
        results[rank] = fn(*args)

    with kernbench.simulate(system) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=world, isolation=isolation)
    return results


def _process(rank: int, world: int, port: int, results: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    tp.initialize_model_parallel(world)
    tp.model_parallel_manual_seed(SEED)
    results[rank] = {
        name: value.numpy() for name, value in fn(*args).items()
    }  # tensors would travel by file descriptor
    dist.barrier()
    dist.destroy_process_group()


def processes(world: int, fn: Callable[..., Any], *args: Any) -> list[dict[str, torch.Tensor]]:
    """``fn(*args)``, a mapping of tensors, on each of ``world`` gloo processes; ``fn`` is a module's function."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with torch.multiprocessing.Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.spawn(_process, (world, port, results, fn, args), nprocs=world)
        return [{name: torch.from_numpy(v) for name, v in results[rank].items()} for rank in range(world)]


def fixed(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal random numbers that depend on shape and seed only."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def part(whole: torch.Tensor, dim: int) -> torch.Tensor:
    """The running rank's part of a tensor that is split over its tensor group."""
    size, rank = tp.get_tensor_model_parallel_world_size(), tp.get_tensor_model_parallel_rank()
    return whole.chunk(size, dim)[rank].clone()


def fill(parameter: torch.nn.Parameter | None, whole: torch.Tensor, dim: int | None) -> None:
    """Give a parameter the running rank's part of ``whole``."""
    if parameter is not None:
        with torch.no_grad():
            parameter.copy_(whole if dim is None else part(whole, dim))


def assert_equal_everywhere(results: list[torch.Tensor]) -> None:
    """Every rank has the same bits."""
    for rank, value in enumerate(results[1:], 1):
        assert torch.equal(results[0], value), f"rank {rank} differs from rank 0 by {(results[0] - value).abs().max()}"
