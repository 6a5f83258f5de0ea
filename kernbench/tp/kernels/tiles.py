"""The tile of a gemm, chosen by a model of the device instead of by timing (ADR 0051).

Nothing is measured, so the choice is the same on every machine and every run. For a tile of ``m x n`` that walks the inner
dimension in steps of ``k``, one processing element needs per tile

    compute  = 2 m n K / (matrix rate per PE)
    feed     = (m + n) K itemsize / (TCM bandwidth of a PE)             operands into registers
    fetch    = (m + n) K itemsize / (L2, SRAM or HBM bandwidth per PE)  operands into TCM
    store    = m n itemsize / (HBM bandwidth per PE)

of which the first three overlap when the pipeline is deep enough. A gemm takes ``waves = ceil(tiles / PEs)`` times

    max(compute, feed, fetch) + steps * sync + fill + store

with ``sync`` two TCM latencies (operands out of TCM, barrier before the slot is refilled) and ``fill`` the first step's
fetch after one HBM latency.

``K`` is rounded up to whole steps, and edge tiles cost as whole ones: that is what makes a large tile bad for a small or
ragged product. A tile is allowed if its pipeline stages fit the TCM of one block and its accumulators half the registers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import canonical_dtype


@dataclass(frozen=True)
class Tile:
    """Sizes of one program's work: ``m x n`` results, steps of ``k``; ``group`` rows of tiles share operands in L2."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    group: int = 8


_SIDES = (
    (16, 16),
    (16, 32),
    (32, 32),
    (32, 64),
    (64, 32),
    (64, 64),
    (64, 128),
    (128, 64),
    (128, 128),
    (128, 256),
    (256, 128),
)
_STEPS = (16, 32, 64, 128)
_STAGES = (2, 3, 4)


def _format(dtype: torch.dtype) -> str:
    """As descriptions of devices call it; one that they do not list counts as fp32."""
    try:
        return canonical_dtype(dtype)
    except ValueError:
        return "fp32"


def _warps(m: int, n: int) -> int:
    """Warps (of 32 threads) such that each holds at most 64 x 64 results, between 1 and 8."""
    return max(1, min(8, m * n // 2048))


CANDIDATES = tuple(Tile(m, n, k, _warps(m, n), stages) for m, n in _SIDES for k in _STEPS for stages in _STAGES)


def tile_seconds(tile: Tile, rows: int, columns: int, inner: int, dtype: torch.dtype, device: DeviceSpec) -> float:
    """Modelled duration of ``[rows, inner] @ [inner, columns]`` with ``tile``; infinite if the tile does not fit."""
    itemsize = dtype.itemsize
    pes = device.pes
    step_bytes = (tile.m + tile.n) * tile.k * itemsize
    if tile.stages * step_bytes > device.pe.tcm_per_block or tile.m * tile.n * 4 > device.pe.registers / 2:
        return float("inf")
    shared = device.memory_port("sram" if device.cubes or device.l2 else "hbm").bandwidth
    if device.cubes is None and device.l2 is not None:
        shared = device.l2.bandwidth / pes
    steps = -(-inner // tile.k)
    compute = 2 * tile.m * tile.n * steps * tile.k / (device.matrix_rate(_format(dtype)) / pes)
    feed = steps * step_bytes / device.pe.tcm.bandwidth
    fetch = steps * step_bytes / shared
    in_flight = min(1.0, (tile.stages - 1) * step_bytes / (shared * device.hbm.latency))
    sync = 2 * device.pe.tcm.latency
    fill = step_bytes / shared + device.hbm.latency
    store = tile.m * tile.n * itemsize / (device.hbm_copy_bandwidth / pes)
    waves = -(-(-(-rows // tile.m) * -(-columns // tile.n)) // pes)
    return waves * (max(compute, feed, fetch / in_flight) + steps * sync + fill + store)


@functools.lru_cache(maxsize=4096)
def choose_tile(rows: int, columns: int, inner: int, dtype: torch.dtype, device: DeviceSpec) -> Tile:
    """The candidate with the least modelled duration; of equals, the one with fewer stages and smaller sizes."""
    return min(
        CANDIDATES,
        key=lambda tile: (tile_seconds(tile, rows, columns, inner, dtype, device), tile.stages, tile.m * tile.n),
    )
