"""How a process that another launcher has started becomes a rank of the simulation that ``KERNBENCH_JOIN`` names (ADR 0128).

:mod:`kernbench.runtime_api.start_up.sitecustomize` calls :func:`at_import_of_torch`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from kernbench.driver_tools.before_joining import let_load_nvml
from kernbench.errors import KernbenchError
from kernbench.input_files import whole_number
from kernbench.runtime_api.node_variables import CUDA, GPUS, PROPERTIES
from kernbench.runtime_api.start_up import ALONE
from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus
from kernbench.torch_backend.process_groups import late_joining

TAKEN = "KERNBENCH_RANK"
"""The environment variable in which a rank tells the processes that it starts which rank is taken, and of which simulation: its
RANK is inherited. The rank itself does not see it."""

Generators = Mapping[str, tuple[Callable[[], Any], Any]]
"""Of modules with a random generator: how to read its state, and what that was when the module was imported."""

ADDRESS = "KERNBENCH_JOIN"
"""The environment variable that names the simulation which processes join: a name of a socket that no folder has."""

_joined: list[object] = []
"""The context of the simulation that this process is a rank of."""


def taken(address: str, rank: int | str, size: int | str, local: str) -> str:
    """Value of :data:`TAKEN`. ``local``: LOCAL_WORLD_SIZE of the rank, empty if it has none."""
    return f"{rank}/{size} {local} {address}"


def _starter() -> tuple[str, str, str]:
    """Of the rank that has started this process: itself and the size of its world, its LOCAL_WORLD_SIZE, its simulation; empty
    if none has."""
    whose, local, simulation = (os.environ.get(TAKEN) or "  ").split(" ", 2)
    return whose, local, simulation


def at_import_of_torch(generators: Generators) -> None:
    """The process has imported torch: join at once if its environment says who it is, else when it says so itself."""
    who = _named()
    if who is not None:
        try:
            join(*who, _used(generators))
        except KernbenchError as error:
            print(f"kernbench: error: {error}", file=sys.stderr, flush=True)
            sys.exit(2)
        return

    def read() -> bytes:
        return bytes(torch.get_rng_state().numpy())

    generators = {**generators, "torch": (read, read())}
    properties = json.loads(os.environ.get(PROPERTIES, "{}"))
    gpus = NodeGpus(*json.loads(os.environ.get(GPUS, "[0]")))
    let_load_nvml()
    late_joining.install(
        lambda rank, size: _join_late(rank, size, _used(generators)), _named, gpus, properties, os.environ.get(CUDA),
        _be_alone if os.environ.get(ALONE) else None,
    )  # fmt: skip


def _named() -> tuple[int, int] | None:
    """Rank and size of the world that the environment names, if there is a simulation to join and these have not been inherited
    from a rank."""
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if (
        ADDRESS not in os.environ
        or whole_number(rank) is None
        or whole_number(size) is None
        or _starter()[0] == f"{rank}/{size}"
    ):
        return None
    return int(rank), int(size)


def _used(generators: Generators) -> Collection[str]:
    """Those that the program has seeded, or drawn from."""
    return [name for name, (read, fresh) in generators.items() if read() != fresh]


def _be_alone() -> None:
    from kernbench.runtime_api import being_alone  # here: a process that uses no GPU does without the simulation's code

    being_alone.begin()


def _join_late(rank: int, size: int, keep: Collection[str]) -> None:
    whose, _, simulation = _starter()
    if ADDRESS not in os.environ or (whose and simulation == os.environ[ADDRESS]):
        raise KernbenchError(
            f"init_process_group(rank={rank}, world_size={size}): this process was started by "
            f"{f'rank {whose}' if whose else 'a rank'}, and is none itself: it cannot meet others. Call torch.distributed "
            "in the rank, or start all ranks elsewhere"
        )
    join(rank, size, keep)


def join(rank: int, size: int, keep: Collection[str] = ()) -> None:
    """Be this rank of a world of ``size``, from here on until the process ends.

    ``keep``: modules whose random generators go on where they are; the others are seeded, as those of all ranks are.

    Raises:
        KernbenchError: there is no simulation, or it refuses.
    """
    if _joined:
        raise KernbenchError("this process is a rank already")
    from kernbench.processes import companion_waits

    companion_waits.end()  # first: what is imported next keeps the machine's clock
    # here: a process that is no rank does without the simulation's code
    from kernbench.processes.seat import Hello, Seat
    from kernbench.runtime_api.context import simulate

    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    whose, inherited, _ = _starter()
    of_its_starter = local == inherited and whose.rpartition("/")[2] != str(size)
    if os.environ.get("WORLD_SIZE") != str(size) or of_its_starter:  # what it says of nodes is of another world
        local = ""
    seat = Seat(os.environ[ADDRESS], Hello(rank, size, whole_number(local) or 0))
    of_children = {TAKEN: taken(os.environ[ADDRESS], rank, size, local)}
    opened = simulate(stop_after_steps=seat.welcome.stop_after_steps, **seat.welcome.options)
    ctypes.pythonapi.Py_IncRef(
        ctypes.py_object(opened)
    )  # never closed: torch is the rank's to the last of Python's end
    ctx = opened.__enter__()
    _joined.append(ctx)
    ctx.multiprocessing.take(seat, size, keep, of_children)
