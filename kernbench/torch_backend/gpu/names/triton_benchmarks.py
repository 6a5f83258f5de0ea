"""``triton.testing.do_bench`` on a simulated GPU: modelled time between events of the rank's stream.

What it measures takes the same time whenever it runs, so it runs as few times as ``do_bench`` can be made to: its own estimate,
for which the cache is cleared several times between two events, receives a time beyond every budget.

A cleared cache makes what follows cold (ADR 0039): it reads its operands from memory. Clearing keeps the device busy, so
that the host runs ahead, as on hardware: what is slower to enqueue than to run shows.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.cost.work import ramp_of
from kernbench.torch_backend.gpu.device.devices import bound_devices, current_index
from kernbench.torch_backend.gpu.device.streams import Event
from kernbench.torch_backend.patches import Patches
from kernbench.triton_engine.driver import torch_names

_CLEARED = (256 * 10**6 // 4,)
"""Elements of 4 bytes of the buffer by which Triton's drivers clear a cache (triton/backends/nvidia/driver.py)."""


class TimedEvent(Event):
    """An event that knows how many times the cache had been cleared. What is between two that follow a clearing is cold."""

    def __init__(self, enable_timing: bool = False, **kwargs: Any) -> None:
        super().__init__(enable_timing, **kwargs)
        self._clears = 0

    def record(self, stream: object = None) -> None:
        """Mark a moment of ``stream``, or of the current one."""
        mine = bound_devices().mine()
        super().record(stream)
        self._clears = mine.cache_clears
        if mine.cold_events:
            mine.cold_events -= 1
            mine.find_cache_cold(bool(mine.cold_events))

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds of virtual time from this event to ``end``; what runs alone is seen to start."""
        if end._clears - self._clears > 1:
            return torch_names.ESTIMATE
        return super().elapsed_time(end) + ramp_of(bound_devices().simulation.topology.device) * 1e3


class Interface:
    """``torch.cuda`` as ``triton.testing`` takes it."""

    Event = TimedEvent

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class TritonsGpu:
    """What Triton's driver receives about the simulated GPU of the rank that runs."""

    def index(self) -> int | None:
        """Its number; None outside ranks."""
        return current_index()

    def interface(self) -> object:
        """What stands for ``torch.cuda``."""
        return Interface()

    def clear_cache(self) -> None:
        """Overwrite the last-level cache: what is enqueued next finds nothing of its own there."""
        mine = bound_devices().mine()
        written = ((_CLEARED, torch.int32),)
        mine.enqueue("clear cache", mine.simulation.op_costs.of("aten::zero_", written, written))
        mine.cache_clears += 1
        mine.cold_events = 2
        mine.find_cache_cold(True)


def install(patches: Patches) -> None:
    """Let Triton's driver ask for the simulated GPUs."""
    patches.set(torch_names, "gpu", TritonsGpu())
