"""kernbench: a cooperative multi-rank runtime simulator.

Runs an N-rank ``torch.distributed`` + Triton program in one process with no accelerator: exact values, modelled time,
full determinism, and an explanation instead of a hang.

    import kernbench

    def worker(rank, world_size, torch):
        x = torch.full((4,), float(rank))
        torch.distributed.all_reduce(x)
        print(rank, x.tolist(), torch.now())

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, args=(8, ctx), nprocs=8)

The names below are imported when they are first used, so that ``import kernbench`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernbench.version import __version__

_ROOMS = ("autotune", "precompile", "sweep")
"""Packages that are imported when they are first used; those with a function of their own name can be called."""

_HOMES = {
    "report_batch": "kernbench.reporting",
    "report_engine_step": "kernbench.reporting",
    "report_request": "kernbench.reporting",
    "report_step": "kernbench.reporting",
    "simulate": "kernbench.runtime_api.context",
    "simulated_gpu": "kernbench.runtime_api.adoption",
    "assume": "kernbench.runtime_api.assuming",
    "RuntimeContext": "kernbench.runtime_api.context",
    "SpawnException": "kernbench.runtime_api.multiprocessing",
    "DeviceSelector": "kernbench.runtime_api.types",
    "resolve_topology": "kernbench.topology",
    "load_system": "kernbench.topology",
    "KernbenchError": "kernbench.errors",
    "ConfigError": "kernbench.errors",
    "DeadlockError": "kernbench.errors",
    "CollectiveMismatchError": "kernbench.errors",
    "MemoryAccessError": "kernbench.errors",
    "RaceError": "kernbench.errors",
    "UndefinedMemoryError": "kernbench.errors",
    "OutOfMemoryError": "kernbench.errors",
}
__all__ = ["__version__", *_HOMES, *_ROOMS]

if TYPE_CHECKING:
    from kernbench.errors import (
        CollectiveMismatchError as CollectiveMismatchError,
    )
    from kernbench.errors import (
        ConfigError as ConfigError,
    )
    from kernbench.errors import (
        DeadlockError as DeadlockError,
    )
    from kernbench.errors import (
        KernbenchError as KernbenchError,
    )
    from kernbench.errors import (
        MemoryAccessError as MemoryAccessError,
    )
    from kernbench.errors import (
        OutOfMemoryError as OutOfMemoryError,
    )
    from kernbench.errors import (
        RaceError as RaceError,
    )
    from kernbench.reporting import report_batch as report_batch
    from kernbench.reporting import report_engine_step as report_engine_step
    from kernbench.reporting import report_request as report_request
    from kernbench.reporting import report_step as report_step
    from kernbench.runtime_api.adoption import simulated_gpu as simulated_gpu
    from kernbench.runtime_api.assuming import assume as assume
    from kernbench.runtime_api.context import RuntimeContext as RuntimeContext
    from kernbench.runtime_api.context import simulate as simulate
    from kernbench.runtime_api.multiprocessing import SpawnException as SpawnException
    from kernbench.runtime_api.types import DeviceSelector as DeviceSelector
    from kernbench.topology import load_system as load_system
    from kernbench.topology import resolve_topology as resolve_topology


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"kernbench.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'kernbench' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
