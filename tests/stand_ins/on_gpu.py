"""A function on one simulated GPU: what it gives, or the operations that it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import kernbench


def on_gpu(body: Callable[[], Iterable[Any]], *, system: str = "dgx_h100") -> list[Any]:
    """What ``body()`` gives on a simulated GPU, on the host."""
    found: list[Any] = []

    def worker(rank: int) -> None:
        found.extend(None if each is None else each.cpu() for each in body())

    with kernbench.simulate(system) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    return found


def operations_on_gpu(body: Callable[[], object], *, system: str = "dgx_h100") -> list[Any]:
    """The operations of the log of ``body()`` on a simulated GPU, without data."""

    def worker(rank: int) -> None:
        body()

    with kernbench.simulate(system, enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        return list(ctx.simulation.engine.op_log.operations)
