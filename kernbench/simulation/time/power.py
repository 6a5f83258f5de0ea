"""What a described device's kernels lose to its board's power limit."""

from __future__ import annotations

from kernbench.cost.generations import generation_of
from kernbench.sim_engine.clock_limits import ClockLimit, PowerLimit, SustainedProducts
from kernbench.topology.device import DeviceSpec

STREAMING = 0.65
"""Share of a device's copy bandwidth from which on a product waits for its memory, whose clock stays: it is not slowed down
with that of the matrix engines (ADR 0191)."""


def clock_limit(device: DeviceSpec) -> ClockLimit | None:
    """How its kernels give way; None: nothing is known of it."""
    generation = generation_of(device)
    draw, streaming = generation.draw, STREAMING * device.hbm_copy_bandwidth
    if draw is not None:
        return PowerLimit(
            (device.power or draw.limit) - draw.rest, draw.product, draw.attention["flash"], draw.byte, draw.clock_exponent,
            draw.product_share, draw.attention_share, draw.other_share, device.hbm_copy_bandwidth, streaming,
        )  # fmt: skip
    kernels = generation.gemm
    return SustainedProducts(kernels.sustained, kernels.sustained_between, streaming) if kernels.sustained else None
