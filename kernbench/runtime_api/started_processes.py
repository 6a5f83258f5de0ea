"""Processes that a program starts itself: those that have an interpreter of their own may join a simulation; of others the run
says that they are outside."""

from __future__ import annotations

import errno
import functools
import inspect
import multiprocessing
import multiprocessing.process
import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing

from kernbench.errors import KernbenchError
from kernbench.scheduler.host_effects import with_room
from kernbench.torch_backend.patches import Patches

_NO_ROOM = (
    "the system does not fork this process: it would have to promise the child all memory that is reserved here. Tensors "
    "without data (--no-data) reserve their size and use none of it: give DataLoader num_workers=0, or let the system promise "
    "more than it has (sysctl vm.overcommit_memory=1)"
)

_HELPERS = sys.stdlib_module_names | {"torch", "kernbench"}
"""Packages whose processes are helpers (a DataLoader's workers, a pool's): what they do is not theirs to say."""


def install(
    patches: Patches,
    remark: Callable[[str], object],
    spawn: Callable[..., object],
    let_join: Callable[[], None] | None = None,
    *,
    lone: bool = False,
) -> None:
    """What starts processes in a program makes simulated ranks (``spawn``), or a remark: a sentence for each function of the
    program that it has run in a process.

    ``let_join`` is called before one is started that is no fork: its environment may then name a simulation to join. None: it
    cannot. ``lone``: whether such processes have GPUs of their own.
    """

    for name in ("spawn", "start_processes"):
        patches.set(torch.multiprocessing, name, spawn)
        patches.set(sys.modules["torch.multiprocessing.spawn"], name, spawn)
    stock: Any = multiprocessing.process.BaseProcess.start

    @functools.wraps(stock)
    def start(self: object) -> None:
        runs = type(self) if (target := vars(self).get("_target")) is None else target
        while isinstance(runs, functools.partial):
            runs = runs.func
        if _package(runs) not in _HELPERS:
            name = getattr(runs, "__qualname__", runs)
            if let_join is not None and _method(self) != "fork":
                let_join()
                remark(
                    f"processes that the program starts itself, running {name}: ranks among them have a simulation of their "
                    "own, whose summary stands above this one; what is written to files is of this one"
                )
            elif _method(self) == "fork" or not lone:
                remark(
                    f"not simulated: processes that the program starts itself, running {name}: they have no "
                    "simulated GPU, and no rank meets them (torch.multiprocessing.spawn and --nproc-per-node make ranks; "
                    "under 'kernbench run -- python SCRIPT' such processes join; those that are no forks "
                    "have GPUs of their own under 'kernbench run')"
                )
        try:
            with_room(lambda: stock(self))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise KernbenchError(_NO_ROOM) from error

    patches.set(multiprocessing.process.BaseProcess, "start", start)


def _package(runs: object) -> str:
    """Whose code a process is to run: of a method, that of the class or object it is bound to, which may have inherited it."""
    owner = getattr(runs, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        runs = owner if isinstance(owner, type) else type(owner)
    return str(getattr(runs, "__module__", "")).partition(".")[0]


def _method(process: object) -> str:
    """How a process of multiprocessing is started."""
    method: str | None = getattr(type(process), "_start_method", None)
    return method or multiprocessing.get_start_method()
