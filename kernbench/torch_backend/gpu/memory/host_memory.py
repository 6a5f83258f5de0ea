"""This machine's memory, in which the tensors of simulated GPUs are where their values are computed."""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.relies_on import Reliance


def _refuses(empty: Any) -> bool:
    try:
        empty(1 << 60, dtype=torch.uint8)
    except RuntimeError as error:
        return refused(error) == 1 << 60
    return False


RELIES_ON = (
    Reliance("torch.empty", "the allocator says how many bytes it was asked for and does not have", holds=_refuses),
)

_WORDS = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes", re.DOTALL)


def refused(error: RuntimeError) -> int | None:
    """How many bytes the host's allocator was asked for, where this is its error; else None."""
    found = _WORDS.search(str(error))
    return int(found[1]) if found else None


def explain(error: RuntimeError, simulation: Simulation, name: str) -> None:
    """Say what the host's allocator says, if it is that, for a simulation: raises :class:`KernbenchError` then.

    Args:
        name: the operation that asked for memory.
    """
    nbytes = refused(error)
    if nbytes is None:
        return
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    advice = (
        "what a run with data computes, on all GPUs that are simulated, is in it. Run with --no-data (enable_data=False), or "
        "make it smaller"
        if simulation.engine.enable_data
        else "whole numbers of the host are computed without data, too. Make it smaller"
    )
    raise KernbenchError(
        f"{name} needs {nbytes / 2**30:.4g} GiB of this machine's memory, which has {has / 2**30:.4g} GiB: {advice}"
    ) from None


def explain_operation(error: RuntimeError, device: RankDevice, name: str, args: Any, kwargs: Any) -> None:
    """The same of an operation of a rank. What its GPU has no room for is reported to the program first.

    Raises ``torch.OutOfMemoryError`` then.
    """
    nbytes = refused(error)
    if nbytes is None:
        return
    blocks = (block_of(each) for each in listed_tensors((*args, *(kwargs or {}).values())))
    block, wanted = next(filter(None, blocks), None), (kwargs or {}).get("device")
    if wanted is not None and wanted.type == "cuda":
        device.memory_at(wanted).hold(nbytes)
    elif block is not None:
        block.memory.hold(nbytes)
    explain(error, device.simulation, name)
