"""torch's own tables of operators and modules with samples of their arguments.

The tables say what a GPU has when they are imported, once in a process: whichever test is the first, that is done in a rank
with a GPU.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

import kernbench
from kernbench.simulation.active_simulation import current_simulation


def operators() -> Any:
    """``op_db``."""
    return _table("common_methods_invocations").op_db


def modules() -> Any:
    """``module_db``."""
    return _table("common_modules").module_db


def _table(name: str) -> ModuleType:
    found: list[ModuleType] = []

    def read(rank: int = 0) -> None:
        found.append(importlib.import_module(f"torch.testing._internal.{name}"))

    if current_simulation() is None:
        with kernbench.simulate("dgx_h100") as ctx:
            ctx.multiprocessing.spawn(read, nprocs=1)
    else:
        read()
    # their helpers forbid to assign to `torch.backends.cudnn.enabled` and the like in the process from then on
    vars(torch.backends)["__allow_nonbracketed_mutation_flag"] = True
    return found[0]
