"""How long a library's matrix product takes (cuBLAS, hipBLASLt): tiles, waves, pipelines and traffic (ADR 0032).

For every tile shape and split of K that a library ships, the product is cut into blocks; each wave of blocks takes its
slowest part (multiply-adds, operands into the PEs) plus filling and draining the pipeline; the whole is never faster
than its memory traffic. The library takes the fastest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench.cost.devices import GivenDevice, resolve_device
from kernbench.cost.estimate import Estimate, Floats
from kernbench.cost.generations import GemmKernels, generation_of
from kernbench.cost.uncertainty import band_interval
from kernbench.errors import ConfigError
from kernbench.topology.device import DeviceSpec, MemorySpec
from kernbench.topology.dtypes import ITEM_BYTES, canonical_dtype

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


_LIKE = {"bf16": "fp16", "fp4": "fp8", "int8": "fp8"}
_WIDTH = {name: ITEM_BYTES[name] for name in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")}

_EDGE = 9.4  # operand rows of 16-bit data whose shared-memory traffic costs as much as one row of multiply-adds
_SPLIT_TRAFFIC = 1.3  # passes of fp32 parts over the cache
_MISALIGNED_LOADS = 1.3  # rows that do not start on 16 bytes
_MEMORY_START = 0.5 * US
_SMALL = (
    64  # rows and columns up to which one block computes a product of a batch, several of which are on a PE at once
)
_SMALL_TILE = 32
_SMALL_BLOCK = 0.42 * US  # of a PE for one of those, at an H100's clock [H]: kernbench.programs.gpu_times
_H100_CLOCK = 1.83e9


def kernels_of(device: DeviceSpec) -> GemmKernels:
    """What the library's matrix kernels make of a device."""
    return generation_of(device).gemm


def tile_share(loaded: Any) -> Any:
    """What a tile keeps of the matrix rate when it loads ``loaded`` operand bytes for each operation."""
    return 1 / (1 + _EDGE * loaded)


def gemm_time(
    device: GivenDevice, M: Any, N: Any, K: Any, *, dtype: str = "float16", batch: Any = 1, out_dtype: str | None = None,
    accumulate: bool = False, distinct: tuple[float, float] = (1.0, 1.0), packed: float = 1.0,
) -> Estimate:  # fmt: skip
    """How long ``[batch, M, K] @ [batch, K, N]`` takes in the vendor's library.

    Args:
        device: shipped name, YAML path or DeviceSpec.
        M, N, K, batch: numbers, or arrays that broadcast together.
        dtype: of the operands. ``float32`` means full precision; ask for ``tf32`` where that is meant.

        out_dtype: of the result; that of the operands without it, but 16 bits at least.
        accumulate: the product is added to what the result holds, which is read too.
        distinct: shares of the operands' elements that are in memory: a convolution's pixels are in several rows of one.
        packed: bytes of the second operand's elements, in memory and on the way to the PEs, as a share of what they have in
            ``dtype``: less than one where they are unpacked in front of the matrix engines.

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
    step = 512  # products at a time: what fits the cache of a CPU core
    # Results of eight bits are not stored faster than those of sixteen: they are converted on the way.
    result = max(2.0, ITEM_BYTES[out] if out else _WIDTH[name])
    held = result * accumulate
    parts = [
        _fastest(spec, name, (result, held), (*distinct, packed), *(value[at : at + step] for value in (m, n, k, b)))
        for at in range(0, m.size, step)
    ]
    seconds, memory, tile = (
        np.concatenate(column).reshape(np.atleast_1d(dims[0]).shape) for column in zip(*parts, strict=True)
    )
    width = _WIDTH[name]
    read = width * sum(np.atleast_1d(dims[i] * dims[2]) for i in (0, 1))
    moved = np.atleast_1d(dims[3]) * (read + (result + held) * np.atleast_1d(dims[0] * dims[1]))
    low, high = band_interval("gemm", seconds, seconds)
    limit = np.where(memory, "memory", "compute")
    values = (seconds, low, high, limit, tile, moved / seconds, moved / seconds)
    return Estimate(*(value.item() if scalar else value for value in values))


def efficiency(spec: DeviceSpec, kernels: GemmKernels, name: str) -> float:
    """Share of the matrix peak that large tiles sustain; a device's own measured figure, or its power limit, scales the
    generation's (ADR 0109)."""
    if name == "tf32" and spec.matrix.tf32 is None:
        name = "fp32"  # whose engine multiplies instead
    found = kernels.efficiency[name if name in kernels.efficiency else _LIKE.get(name, name)]
    if spec.matrix_efficiency is not None:
        found *= spec.matrix_efficiency / kernels.efficiency["fp16"]
    if spec.power is not None and kernels.power and name not in ("fp32", "fp64"):
        found *= min(1.0, (spec.power / kernels.power) ** kernels.power_exponent)
    return min(found, 1.0)


def sustained(seconds: Any, kernels: GemmKernels) -> Any:
    """A load's duration at the clocks that it leaves the device at."""
    return seconds * (1 + kernels.throttle * seconds / (seconds + kernels.throttle_after))


def shared_memory(spec: DeviceSpec) -> MemorySpec:
    """Where all PEs take their operands from: the last cache before them, or device memory where there is none."""
    if spec.l2 is not None:
        return spec.l2
    return MemorySpec.model_construct(size=0, bandwidth=spec.hbm_copy_bandwidth, latency=spec.hbm.latency)


def _configurations() -> tuple[Floats, Floats, Floats]:
    grid = np.array([(*tile, split) for tile in TILES for split in SPLITS], dtype=np.float64)
    return grid[:, 0], grid[:, 1], grid[:, 2]


_ROWS, _COLUMNS, _PARTS = _configurations()
_NAMES = np.array(
    [f"{int(m)}x{int(n)}" + (f"/{int(s)}" if s > 1 else "") for m, n, s in zip(_ROWS, _COLUMNS, _PARTS, strict=True)]
)


def _fastest(
    spec: DeviceSpec, name: str, stored: tuple[float, float], of: tuple[float, float, float], m: Floats, n: Floats,
    k: Floats, b: Floats,
) -> tuple[Floats, object, Any]:  # fmt: skip
    """Seconds, whether memory limits, and the tile's name, of the fastest configuration of each product.

    ``stored``: bytes of an element of the result that are written, and that were there before and are read. ``of``:
    ``distinct`` and ``packed`` of :func:`gemm_time`.
    """
    kernels, width = kernels_of(spec), _WIDTH[name]
    (result, held), (of_left, of_right, packed) = stored, of
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
    share = tile_share(width / 2 * (1 / rows + 1 / columns))
    rate = spec.matrix_rate(name) * efficiency(spec, kernels, name) / pes
    multiplying = 2 * rows * columns * depth / (rate * share)
    loading = (rows + columns * packed) * depth * width / np.minimum(shared * waves / blocks, own)
    block = kernels.block + rows * columns * (result + held) / own
    working = waves * (np.maximum(multiplying, loading) + block)

    # A wave covers a rectangle of blocks as square as the grid allows; its operands are read from memory once.
    wave = np.minimum(pes, down * across)
    tall = np.minimum(down, np.maximum(1, np.sqrt(wave * columns / rows)))
    wide = np.minimum(across, np.ceil(wave / tall))
    of_right = of_right * packed
    once = b * (m * k * of_left + k * n * of_right) * width
    again = np.ceil(down * across / wave) * (tall * rows * of_left + wide * columns * of_right) * k * width * b
    last = max(cache.size, spec.llc.size if spec.llc else 0)
    read = np.where(once < last * kernels.resident, once, np.maximum(once, again))
    read = read + b * m * n * held
    moving = read / (copy * kernels.read_share) + b * m * n * result / (copy * kernels.store_share) + _MEMORY_START

    # vector units load numbers one by one, wherever rows start
    misaligned = (((n * width) % 16 != 0) | ((k * width) % 16 != 0)) & (name not in ("fp32", "fp64"))
    adding = np.where(parts > 1, kernels.split + parts * b * m * n * 4 * _SPLIT_TRAFFIC / shared, 0.0)
    start = spec.launch.latency + kernels.start
    missing = rows * columns > kernels.largest
    for tile in kernels.without:
        missing |= (rows == tile[0]) & (columns == tile[1])
    exists = np.where(missing, np.inf, 0.0)
    of_engines, of_loads = np.where(misaligned, kernels.misaligned, 1.0), np.where(misaligned, _MISALIGNED_LOADS, 1.0)
    total = np.maximum(working * of_engines, moving * of_loads) + start + adding + exists
    best = np.argmin(total, axis=1)
    at = np.arange(best.size)
    small = (m <= _SMALL) & (n <= _SMALL) & (b > pes)
    if np.any(small):
        each = np.ceil(m / _SMALL_TILE) * np.ceil(n / _SMALL_TILE) * b / pes
        tile = 2 * _SMALL_TILE**2 * np.ceil(k / steps) * steps / (rate * tile_share(width / _SMALL_TILE))
        lean = each * (_SMALL_BLOCK * _H100_CLOCK / spec.clock + tile)
        lean = np.maximum(lean, moving.min(axis=1, keepdims=True)) * of_loads[:, :1] + spec.launch.latency
        total = np.where(small, np.minimum(total, lean), total)
    seconds = total[at, best]
    return sustained(seconds, kernels), (moving > working)[at, best], _NAMES[best]
