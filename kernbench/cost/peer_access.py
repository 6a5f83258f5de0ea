"""How fast a kernel's loads and stores go over the links to peers' memory."""

from __future__ import annotations

from kernbench.cost.generations import CollectiveConstants, generation_of
from kernbench.topology.device import DeviceSpec

FEW_BLOCKS = 36
"""Blocks of the kernels that ``direct_share`` was fitted to (vLLM's custom all-reduce, csrc/custom_all_reduce.cuh)."""

BLOCK_THREADS = 512
"""Threads of each of these."""


def share_of_blocks(constants: CollectiveConstants, blocks: int) -> float:
    """What ``blocks`` of as many threads as those of :data:`FEW_BLOCKS` get of a link's payload bandwidth.

    Each keeps so many loads on their way and no more: few blocks leave links idle. Many get what an all-to-all gets.
    """
    return min(constants.direct_share * blocks / FEW_BLOCKS, constants.all_to_all_share)


def peer_share(device: DeviceSpec, programs: int) -> float:
    """What ``programs`` blocks of a kernel that run side by side get of a link's payload bandwidth."""
    return share_of_blocks(generation_of(device).collectives, min(max(programs, 1), device.pes))
