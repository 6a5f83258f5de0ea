"""How fast a kernel's loads and stores go over the links to peers' memory."""

from __future__ import annotations

from kernbench.cost.generations import generation_of
from kernbench.topology.device import DeviceSpec

FEW_BLOCKS = 36
"""Blocks of the kernels that ``direct_share`` was fitted to (vLLM's custom all-reduce, csrc/custom_all_reduce.cuh)."""


def peer_share(device: DeviceSpec, programs: int) -> float:
    """What ``programs`` blocks that run side by side get of a link's payload bandwidth.

    Each keeps so many loads on their way and no more: few blocks leave links idle. Many get what an all-to-all gets.
    """
    generation = generation_of(device).collectives
    running = min(max(programs, 1), device.pes)
    return min(generation.direct_share * running / FEW_BLOCKS, generation.all_to_all_share)
