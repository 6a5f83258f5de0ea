"""How long a library's matrix product takes (cuBLAS, hipBLASLt): tiles, waves, pipelines and traffic (ADR 0032).

For every tile shape and split of K that a library ships, the product is cut into blocks; each wave of blocks takes its
slowest part (multiply-adds, operands into the PEs) plus filling and draining the pipeline; the whole is never faster
than its memory traffic. The library takes the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.cost.devices import generation_of, resolve_device
from kernbench.cost.estimate import Estimate, Floats, interval
from kernbench.cost.memory_bound import ITEM_BYTES
from kernbench.errors import ConfigError
from kernbench.topology.device import DeviceSpec, Memory
from kernbench.topology.dtypes import canonical_dtype

US = 1e-6

# Rows and columns of a block, and parts that K is cut into, that libraries ship kernels for.
_SQUARE = (
    (256, 256),
    (256, 128),
    (128, 128),
    (128, 64),
    (64, 64),
    (256, 64),
    (192, 128),
    (128, 32),
    (128, 16),
    (64, 32),
)
TILES = (*_SQUARE, *((n, m) for m, n in _SQUARE if m != n))
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_ROW_BYTES = 128  # of K that a block loads at once


@dataclass(frozen=True, slots=True)
class GemmKernels:
    """What the library's kernels make of one generation of devices. Fitted, one row for all devices of a generation.

    Attributes:
        efficiency: share of the matrix peak that the inner loop sustains under power and clock limits, by format.
        operand_reuse: operand bytes that reach the PEs per byte of L2 bandwidth: multicast to a cluster, L1 hits.
        pe_share: most operand bytes of one PE, in units of its share of the L2 bandwidth.
        resident: share of the last cache within which operands are read from memory only once.
        read_share, store_share: of copy bandwidth, for operands and results.
        start: from the launch's latency to a full pipeline, seconds.
        block: start and end of one block, seconds.
        largest: elements of the largest block.
        split: adding the parts of K: a second kernel, or the last block of each.
        wide: what operands of four bytes keep of both: not all layouts of them reach the matrix engine directly.
    """

    efficiency: Mapping[str, float]
    operand_reuse: float
    pe_share: float
    resident: float
    read_share: float
    store_share: float
    start: float
    block: float
    largest: int
    split: float = 3.5 * US
    wide: float = 1.0


KERNELS: Mapping[str, GemmKernels] = {
    "ampere": GemmKernels(
        efficiency={"fp64": 0.9, "fp32": 0.9, "tf32": 0.88, "fp16": 0.89, "fp8": 0.85},
        operand_reuse=0.89,
        pe_share=1.62,
        resident=0.42,
        read_share=0.87,
        store_share=0.82,
        start=0.3 * US,
        block=1.64 * US,
        largest=256 * 128,
    ),
    "hopper": GemmKernels(
        efficiency={"fp64": 0.9, "fp32": 0.9, "tf32": 0.86, "fp16": 0.91, "fp8": 0.78},
        operand_reuse=2.82,
        pe_share=2.8,
        resident=0.39,
        read_share=0.95,
        store_share=0.76,
        start=2.4 * US,
        block=0.94 * US,
        largest=256 * 128,
        wide=0.56,
    ),
    "blackwell": GemmKernels(
        efficiency={"fp64": 0.9, "fp32": 0.9, "tf32": 0.86, "fp16": 0.95, "fp8": 0.72},
        operand_reuse=2.82,
        pe_share=2.8,
        resident=0.39,
        read_share=0.95,
        store_share=0.76,
        start=2.8 * US,
        block=0.6 * US,
        largest=256 * 256,
        wide=0.75,
    ),
    "cdna": GemmKernels(
        efficiency={"fp64": 0.9, "fp32": 1.0, "tf32": 0.62, "fp16": 0.62, "fp8": 0.34},
        operand_reuse=0.55,
        pe_share=2.5,
        resident=0.37,
        read_share=0.51,
        store_share=0.42,
        start=0.8 * US,
        block=1.06 * US,
        largest=256 * 256,
        split=1.0 * US,
    ),
}
_LIKE = {"bf16": "fp16", "fp4": "fp8", "int8": "fp8"}
_WIDTH = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}

_EDGE = 9.4  # operand rows of 16-bit data whose shared-memory traffic costs as much as one row of multiply-adds
_SPLIT_TRAFFIC = 1.3  # passes of fp32 parts over the cache
_MISALIGNED = 1.3  # rows that do not start on 16 bytes
_MEMORY_START = 0.5 * US
_SUSTAINED, _SUSTAINED_AFTER = 0.05, 300 * US  # clocks fall under long loads


def kernels_of(device: DeviceSpec) -> GemmKernels:
    """The row of :data:`KERNELS` for a device."""
    return KERNELS[generation_of(device)]


def gemm_time(
    device: Any, M: Any, N: Any, K: Any, *, dtype: str = "float16", batch: Any = 1, out_dtype: str | None = None
) -> Estimate:
    """How long ``[batch, M, K] @ [batch, K, N]`` takes in the vendor's library.

    Args:
        device: shipped name, YAML path or DeviceSpec.
        M, N, K, batch: numbers, or arrays that broadcast together.
        dtype: of the operands. ``float32`` means full precision; ask for ``tf32`` where that is meant.

        out_dtype: of the result; that of the operands without it, but 16 bits at least.

    Returns:
        An :class:`Estimate`: ``protocol`` is the tile (``"128x256"``, with ``/4`` when K is cut in four), ``algorithm``
        what limits it (``compute`` or ``memory``), ``algbw`` the bytes of operands and result over the time.

    Raises:
        ConfigError: unknown device or dtype, a dimension below one.
    """
    spec = resolve_device(device)
    try:
        name, out = canonical_dtype(dtype), canonical_dtype(out_dtype) if out_dtype else None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if name not in _WIDTH:
        raise ConfigError(f"no matrix product of {name}; known: {', '.join(_WIDTH)}")
    try:
        dims = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (M, N, K, batch)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"M, N, K, batch: {error}") from None
    scalar = dims[0].ndim == 0
    m, n, k, b = (np.atleast_1d(value).ravel() for value in dims)
    for label, value in zip("MNK", (m, n, k), strict=True):
        if np.any(~np.isfinite(value)) or np.any(value < 1) or np.any(value != np.floor(value)):
            raise ConfigError(f"{label} holds {value.min():g}; expected whole numbers of at least 1")
    if np.any(b < 1):
        raise ConfigError(f"batch holds {b.min():g}; expected at least 1")
    step = 4096
    # Results of eight bits are not stored faster than those of sixteen: they are converted on the way.
    result = max(2.0, ITEM_BYTES[out] if out else _WIDTH[name])
    parts = [
        _fastest(spec, name, result, *(value[at : at + step] for value in (m, n, k, b)))
        for at in range(0, m.size, step)
    ]
    seconds, memory, tile = (
        np.concatenate(column).reshape(np.atleast_1d(dims[0]).shape) for column in zip(*parts, strict=True)
    )
    width = _WIDTH[name]
    read = width * sum(np.atleast_1d(dims[i] * dims[2]) for i in (0, 1))
    moved = np.atleast_1d(dims[3]) * (read + result * np.atleast_1d(dims[0] * dims[1]))
    low, high = interval(seconds, *_spread(seconds))
    limit = np.where(memory, "memory", "compute")
    values = (seconds, low, high, limit, tile, moved / seconds, moved / seconds)
    return Estimate(*(value.item() if scalar else value for value in values))


def efficiency(spec: DeviceSpec, kernels: GemmKernels, name: str) -> float:
    """Share of the matrix peak that large tiles sustain; a device's own measured figure scales the generation's."""
    if name == "tf32" and spec.matrix.tf32 is None:
        name = "fp32"  # whose engine multiplies instead
    found = kernels.efficiency[_LIKE.get(name, name)]
    if spec.matrix_efficiency is not None:
        found *= spec.matrix_efficiency / kernels.efficiency["fp16"]
    return min(found, 1.0)


def shared_memory(spec: DeviceSpec) -> Memory:
    """Where all PEs take their operands from: the last cache before them, or device memory where there is none."""
    if spec.l2 is not None:
        return spec.l2
    return Memory.model_construct(size=0, bandwidth=spec.hbm_copy_bandwidth, latency=spec.hbm.latency)


def _configurations() -> tuple[Floats, Floats, Floats]:
    grid = np.array([(*tile, split) for tile in TILES for split in SPLITS], dtype=np.float64)
    return grid[:, 0], grid[:, 1], grid[:, 2]


_ROWS, _COLUMNS, _PARTS = _configurations()
_NAMES = np.array(
    [f"{int(m)}x{int(n)}" + (f"/{int(s)}" if s > 1 else "") for m, n, s in zip(_ROWS, _COLUMNS, _PARTS, strict=True)]
)


def _fastest(
    spec: DeviceSpec, name: str, result: float, m: Floats, n: Floats, k: Floats, b: Floats
) -> tuple[Floats, Any, Any]:
    """Seconds, whether memory limits, and the tile's name, of the fastest configuration of each product."""
    kernels, width = kernels_of(spec), _WIDTH[name]
    m, n, k, b = (value[:, None] for value in (m, n, k, b))
    rows, columns, parts = _ROWS[None], _COLUMNS[None], _PARTS[None]
    pes = spec.pes
    cache = shared_memory(spec)
    wide = kernels.wide if width >= 4 else 1.0
    shared = cache.bandwidth * kernels.operand_reuse * wide
    own = cache.bandwidth * kernels.pe_share * wide / pes
    copy = spec.hbm_copy_bandwidth

    down, across = np.ceil(m / rows), np.ceil(n / columns)
    blocks = down * across * b * parts
    waves = np.ceil(blocks / pes)
    steps = _ROW_BYTES / width
    depth = np.ceil(k / parts / steps) * steps
    share = 1 / (1 + _EDGE * width / 2 * (1 / rows + 1 / columns))
    rate = spec.matrix_rate(name) * efficiency(spec, kernels, name) / pes
    multiplying = 2 * rows * columns * depth / (rate * share)
    loading = (rows + columns) * depth * width / np.minimum(shared * waves / blocks, own)
    block = kernels.block + rows * columns * result / own
    working = waves * (np.maximum(multiplying, loading) + block)

    # A wave covers a rectangle of blocks as square as the grid allows; its operands are read from memory once.
    wave = np.minimum(pes, down * across)
    tall = np.minimum(down, np.maximum(1, np.sqrt(wave * columns / rows)))
    wide = np.minimum(across, np.ceil(wave / tall))
    once = b * (m * k + k * n) * width
    again = np.ceil(down * across / wave) * (tall * rows + wide * columns) * k * width * b
    last = max(cache.size, spec.llc.size if spec.llc else 0)
    read = np.where(once < last * kernels.resident, once, np.maximum(once, again))
    moving = read / (copy * kernels.read_share) + b * m * n * result / (copy * kernels.store_share) + _MEMORY_START

    misaligned = ((n * width) % 16 != 0) | ((k * width) % 16 != 0)
    adding = np.where(parts > 1, kernels.split + parts * b * m * n * 4 * _SPLIT_TRAFFIC / shared, 0.0)
    start = spec.launch.latency + kernels.start
    exists = np.where(rows * columns > kernels.largest, np.inf, 0.0)
    total = np.maximum(working, moving) * np.where(misaligned, _MISALIGNED, 1.0) + start + adding + exists
    best = np.argmin(total, axis=1)
    at = np.arange(best.size)
    seconds = total[at, best]
    seconds = seconds * (1 + _SUSTAINED * seconds / (seconds + _SUSTAINED_AFTER))
    return seconds, (moving > working)[at, best], _NAMES[best]


# Shares below and above the estimate between which 80 % of measurements lie, by estimated time.
_SPREAD = ((10 * US, 0.22, 0.25), (200 * US, 0.16, 0.19), (np.inf, 0.10, 0.12))


def _spread(seconds: Floats) -> tuple[Floats, Floats]:
    row = np.searchsorted([band[0] for band in _SPREAD], seconds)
    return np.asarray([band[1] for band in _SPREAD])[row], np.asarray([band[2] for band in _SPREAD])[row]
