"""How a process that somebody else has started becomes a rank of the simulation that ``KERNBENCH_JOIN`` names (ADR 0128).

:mod:`kernbench.runtime_api.start_up.sitecustomize` calls :func:`at_import_of_torch`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.torch_backend.process_groups import late

GPUS = "KERNBENCH_GPUS"
"""The environment variable that says how many GPUs a node has."""

TAKEN = "KERNBENCH_RANK"
"""The environment variable in which a rank tells the processes that it starts which rank is taken: they inherit its RANK."""

Generators = Mapping[str, tuple[Callable[[], Any], Any]]
"""Of modules with a random generator: how to read its state, and what that was when the module was imported."""

_joined: list[Any] = []
"""The context of the simulation that this process is a rank of."""


def at_import_of_torch(generators: Generators) -> None:
    """The process has imported torch: join at once if its environment says who it is, else when it says so itself."""
    who = late.named()
    if who is not None and os.environ.get(TAKEN) != _taken(*who):
        try:
            join(*who, _used(generators))
        except KernbenchError as error:
            print(f"kernbench: error: {error}", file=sys.stderr, flush=True)
            sys.exit(2)
        return

    def read() -> bytes:
        return bytes(torch.get_rng_state().numpy())

    generators = {**generators, "torch": (read, read())}
    late.install(lambda rank, size: _join_late(rank, size, _used(generators)), int(os.environ.get(GPUS, "0")))


def _used(generators: Generators) -> Collection[str]:
    """Those that the program has seeded, or drawn from."""
    return [name for name, (read, fresh) in generators.items() if read() != fresh]


def _taken(rank: int, size: int) -> str:
    return f"{rank}/{size}"


def _join_late(rank: int, size: int, keep: Collection[str]) -> None:
    if os.environ.get(TAKEN):
        raise KernbenchError(
            f"init_process_group(rank={rank}, world_size={size}): this process was started by rank {os.environ[TAKEN]}, and is "
            "none itself: it cannot meet others. Call torch.distributed in the rank, or start all ranks elsewhere"
        )
    join(rank, size, keep)


def join(rank: int, size: int, keep: Collection[str] = ()) -> None:
    """Be this rank of a world of ``size``, from here on until the process ends.

    ``keep``: modules whose random generators go on where they are; the others are seeded, as those of all ranks are.

    Raises:
        KernbenchError: there is no simulation, or it refuses.
    """
    # here: a process that is no rank does without the simulation's code
    from kernbench.processes.seat import ADDRESS, Hello, Seat
    from kernbench.runtime_api.context import simulate

    if _joined:
        raise KernbenchError("this process is a rank already")
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    seat = Seat(os.environ[ADDRESS], Hello(rank, size, int(local) if local.isdigit() else 0))
    os.environ[TAKEN] = _taken(rank, size)
    opened = simulate(stop_after_steps=seat.welcome.stop_after_steps, **seat.welcome.options)
    ctypes.pythonapi.Py_IncRef(
        ctypes.py_object(opened)
    )  # never closed: torch is the rank's to the last of Python's end
    ctx = opened.__enter__()
    _joined.append(ctx)
    ctx.multiprocessing.take(seat, size, keep)
