"""``torch.cuda.MemPool``: memory of a simulated GPU that a program keeps apart from the rest of its cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.types import Device

from kernbench.torch_backend.gpu.device.devices import bound_devices, current_device
from kernbench.torch_backend.gpu.memory.memory_names import memory_snapshot

_numbers = itertools.count(1)
_kept: set[int] = set()
"""Numbers of the pools that the program keeps by a :class:`MemPool`."""


def new_number() -> int:
    """A number that no pool has, the program's own or one of CUDA graphs."""
    return next(_numbers)


def is_kept(number: int) -> bool:
    """Whether the program keeps a pool itself."""
    return number in _kept


_NO_LAST_RESORT = (
    "torch.cuda.MemPool(use_on_oom=True): what is free in it is not given to others when a GPU is full, so that out of "
    "memory comes earlier here"
)


class MemPool:
    """``torch.cuda.MemPool``.

    Args:
        allocator: kept, and not asked: the memory is the simulated GPU's.
        use_on_oom: not modelled, which the summary says.
        no_split: likewise without effect: segments are split as others are.
    """

    def __init__(self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        self.allocator = allocator
        self.id = (0, new_number())
        _kept.add(self.id[1])
        self._uses = 1
        if use_on_oom:
            bound_devices().simulation.remarks.setdefault(_NO_LAST_RESORT)

    def use_count(self) -> int:
        """How many have it: the program, and blocks that allocate from it."""
        return self._uses

    def snapshot(self, include_traces: bool = True) -> list[dict[str, object]]:
        """Its segments, as torch shows them."""
        segments: list[dict[str, Any]] = memory_snapshot((*self.id, include_traces))["segments"]
        return segments

    def __del__(self) -> None:
        _kept.discard(self.id[1])
        device = current_device()
        if device is not None:
            for memory in device.simulation.memories.of(device.host):
                if self.id[1] in memory.graph_pools:
                    continue
                memory.allocator.let_go(self.id[1])


@contextmanager
def use_mem_pool(pool: MemPool, device: Device = None) -> Iterator[None]:
    """``torch.cuda.use_mem_pool``: for the length of a block, the rank allocates from the pool (on whichever GPU)."""
    host = bound_devices().mine().host
    before, host.memory_pool = host.memory_pool, pool.id[1]
    pool._uses += 1
    try:
        yield
    finally:
        host.memory_pool = before
        pool._uses -= 1
