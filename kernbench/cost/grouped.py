"""How long products of many small groups take, each with operands of its own: the experts of a layer (ADR 0190)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench.cost.devices import GivenDevice, resolve_device
from kernbench.cost.estimate import Estimate
from kernbench.cost.gemm import efficiency, kernels_of
from kernbench.cost.uncertainty import band_interval
from kernbench.errors import ConfigError
from kernbench.topology.dtypes import ITEM_BYTES, canonical_dtype

TILE = 128  # rows and columns of a block


def grouped_gemm_time(
    device: GivenDevice,
    groups: Any,
    M: Any,
    N: Any,
    K: Any,
    *,
    dtype: str = "float16",
    out_dtype: str | None = None,
    accumulate: bool = False,
    issue: float = 0.0,
    slowdown: float = 0.0,
    stored: float = 1.0,
) -> Estimate:
    """How long ``groups`` products ``[M, K] @ [K, N]`` of different operands take, one after the other on the device.

    Each reads operands that no product before it has brought to a cache, and is too short to hide that behind its
    multiply-adds: both add up.

    Args:
        device: shipped name, YAML path or DeviceSpec.
        groups, M, N, K: numbers, or arrays that broadcast together.
        dtype, out_dtype, accumulate: as of :func:`kernbench.cost.gemm.gemm_time`.
        issue: seconds between two products at least, where each is a launch of its own.
        slowdown: share by which multiply-adds take longer: the clock of a device that has been multiplying for long.
        stored: bytes of the second operands in memory, as a share of what they have in ``dtype``.

    Raises:
        ConfigError: unknown device or dtype, a dimension below one.
    """
    spec = resolve_device(device)
    try:
        name, out = canonical_dtype(dtype), canonical_dtype(out_dtype or dtype)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    sizes = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (groups, M, N, K)))
    if any(np.any(~(value >= 1)) for value in sizes):
        raise ConfigError("groups, M, N, K: expected numbers of at least 1")
    count, m, n, k = sizes
    kernels = kernels_of(spec)
    rate = spec.matrix_rate(name) * efficiency(spec, kernels, name)
    multiplying = 2 * (np.ceil(m / TILE) * TILE) * (np.ceil(n / TILE) * TILE) * k / rate * (1 + slowdown)
    result = max(2.0, ITEM_BYTES[out]) * (1 + accumulate)
    moved = ITEM_BYTES[name] * (m * k + stored * k * n) + result * m * n
    moving = moved / spec.hbm_copy_bandwidth
    seconds = spec.launch.latency + kernels.start + count * np.maximum(multiplying + moving, issue)
    low, high = band_interval("gemm", seconds, seconds)
    limit = np.where(multiplying > moving, "compute", "memory")
    rates = count * moved / seconds
    values = (seconds, low, high, limit, np.full(seconds.shape, f"{TILE}x{TILE}"), rates, rates)
    return Estimate(*(value.item() if not seconds.shape else value for value in map(np.asarray, values)))
