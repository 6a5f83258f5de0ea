"""Modules whose source has been changed, and what is said of programs with them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

import kernbench


def said_of(source: str, path: Path, program: Callable[[ModuleType], object], world: int = 2) -> list[str]:
    """What is said of a ``program`` with a module of this source, which is written to ``path``: races, or what ranks raise."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        program(module)

    with kernbench.simulate("dgx_h100", races="warn") as ctx:
        try:
            ctx.multiprocessing.spawn(worker, nprocs=world)
        except kernbench.SpawnException as failure:
            return [f"{type(error).__name__}: {error}" for error in failure.errors.values()]
        return [str(each) for each in ctx.simulation.order.races.found]
