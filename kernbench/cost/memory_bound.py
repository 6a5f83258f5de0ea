"""How long kernels take that move more than they compute: elementwise operations, softmax, norms (ADR 0033).

``start + traffic / bandwidth``: the traffic is what the operation reads and writes, each pass counted; the bandwidth is
that of the memory or, for what fits, of the last cache, but never more than the kernel itself keeps up with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from kernbench.cost.devices import GivenDevice, resolve_device
from kernbench.cost.estimate import Estimate
from kernbench.cost.generations import generation_of
from kernbench.cost.operator import Kind, Model
from kernbench.cost.operators import find
from kernbench.cost.uncertainty import band_interval
from kernbench.errors import ConfigError
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES, canonical_dtype

US = 1e-6


@dataclass(frozen=True, slots=True)
class OpKind:
    """What a kind of operation does per element of its result, and how well its usual kernel does it.

    Attributes:
        reads, writes: elements that it must read and write per element of the result.
        pace: most traffic that the kernel keeps up with when a cache feeds it, in units of :data:`_LANE` for each PE and
            clock (on AMD devices, of the copy bandwidth): what its instructions take, however fast the memory is.
        memory: what it keeps up with when memory feeds it, in the same units: more latency to hide.
        ceiling: most that it reaches of the copy bandwidth: more where it reads more than it writes, less by extra passes.
        hip: factor of both on AMD devices, whose kernels reach less.
        start: beyond what every kernel takes, seconds.
        least: of the whole kernel beyond the launch, seconds: the life of one block.
        row: of one row on one PE, seconds; zero for operations without rows.
        whole_row: longest row that AMD's kernel reads once; longer ones are read twice more.
        each_row: of one row on one PE of an NVIDIA device, seconds: a warp or a block starts, reduces and ends.
        short: how that falls for rows of fewer than 128 elements, several of which are a warp's: a power of the share.
        each: of one element, all PEs at work, seconds on an H100, where it is elements that take time, not bytes.
        by_element: its instructions handle elements one at a time: those of less than four bytes take as long as of four.
        launches: kernels that make up the operation; what the second of two reads again is partly still in the cache.
    """

    reads: float
    writes: float
    pace: float
    memory: float
    hip: float = 0.7
    ceiling: float = 1.0
    start: float = 0.0
    least: float = 0.0
    row: float = 0.0
    whole_row: float = float("inf")
    each_row: float = 0.0
    short: float = 0.0
    each: float = 0.0
    by_element: bool = False
    launches: int = 1


# What has no other source here was measured on an H100 (80GB HBM3, torch 2.11, CUDA 13.0) by kernbench.programs.gpu_times, and
# is in units of the device: taken to hold for other devices of NVIDIA. [H] marks it.
OPS: Mapping[str, OpKind] = {
    "copy": OpKind(1, 1, pace=1.6, memory=3.0),
    # rows become columns, element by element: 0.18 to 0.21 of a copy's bandwidth in 16 bits [H]. The naive kernel of "An
    # Efficient Matrix Transpose in CUDA C/C++" (developer.nvidia.com/blog) reaches 55.3 of 136.0 GB/s on a K20c in 32 bits
    "transpose": OpKind(1, 1, pace=0.40, memory=3.0, ceiling=0.40, by_element=True),
    # operands that are broadcast, strided, or of another format than the result: loads are not vectors [H]
    "strided": OpKind(1, 1, pace=1.05, memory=3.0, ceiling=1.05, by_element=True),
    "rolled": OpKind(
        1, 1, pace=0.62, memory=3.0, ceiling=0.62, by_element=True
    ),  # an index is computed for each element [H]
    "mixed": OpKind(2, 1, pace=0.65, memory=3.0, ceiling=0.65),  # formats differ [H]
    "fill": OpKind(0, 1, pace=2.2, memory=3.0, ceiling=1.12),  # [H]
    "random": OpKind(0, 1, pace=0.6, memory=3.0, ceiling=0.6, start=3.5 * US, by_element=True),  # [H]
    "dropout": OpKind(1, 1.5, pace=0.75, memory=3.0, ceiling=0.89, start=0.7 * US),  # [H]
    "gathered": OpKind(1, 1, pace=1.6, memory=3.0, ceiling=0.92, start=0.7 * US, each_row=0.075 * US),  # [H]
    "added_rows": OpKind(1, 1, pace=0.3, memory=3.0, ceiling=0.24, start=1 * US),  # atomics of 16 bits [H]
    "sorted": OpKind(1, 1, pace=1.6, memory=3.0, start=15 * US, each=20e-12),  # [H]
    "scan": OpKind(1, 1, pace=1.6, memory=3.0, ceiling=0.83, start=2 * US),  # [H]
    "batch_norm": OpKind(2, 1, pace=0.42, memory=3.0, ceiling=0.38, start=2 * US),  # [H], of bf16 with channels last
    "group_norm": OpKind(2, 1, pace=0.76, memory=3.0, ceiling=0.76, start=3 * US, by_element=True),  # [H]
    "transform": OpKind(1, 1, pace=0.8, memory=3.0, ceiling=0.62, start=2 * US),  # of Fourier [H]
    "histogram": OpKind(1, 0, pace=1.6, memory=3.0, start=2 * US, each=7e-12),  # [H]
    "searched": OpKind(1, 1, pace=1.6, memory=3.0, each=39e-12),  # [H]: a million of them in 65,536
    "ranked": OpKind(1, 0, pace=1.6, memory=3.0, start=18 * US, each=22e-12),  # the k-th, the median [H]
    "mirrored": OpKind(1, 1, pace=1.6, memory=3.0, each=5.9e-12),  # [H]
    "shuffled": OpKind(1, 1, pace=1.6, memory=3.0, each=3.2e-12),  # [H]
    "unfolded": OpKind(0.1, 1, pace=1.6, memory=3.0, each=3.6e-12),  # windows of pixels [H]
    "folded": OpKind(1, 0.1, pace=1.6, memory=3.0, each=8.9e-12),  # windows that are added up [H]
    "bags": OpKind(1, 1, pace=0.7, memory=3.0, ceiling=0.65, start=0.7 * US),  # rows added up [H]
    "unary": OpKind(1, 1, pace=1.6, memory=3.0),
    "stepped": OpKind(1, 1, pace=1.6, memory=3.0, ceiling=0.89),  # fused steps of optimizers [H]
    "binary": OpKind(2, 1, pace=1.63, memory=3.0, ceiling=1.08),
    "two_binary": OpKind(3.4, 1.6, pace=1.63, memory=3.0, ceiling=1.06, launches=2),
    "gelu": OpKind(1, 1, pace=0.90, memory=0.83, hip=0.54, start=0.5 * US),
    "gated_activation": OpKind(2, 1, pace=0.66, memory=0.66, start=0.4 * US),
    "rope": OpKind(1, 1, pace=0.62, memory=0.535, start=0.7 * US),
    "softmax": OpKind(1, 1, pace=1.0, memory=2.0, ceiling=0.93, hip=0.5, start=0.7 * US, row=0.1 * US, whole_row=1024),
    "layer_norm": OpKind(
        1, 1, pace=0.68, memory=0.66, hip=0.47, least=5 * US, row=0.9 * US, each_row=0.135 * US
    ),  # row of CUDA [H]
    "norm_gradient": OpKind(
        1, 1, pace=0.68, memory=0.66, hip=0.47, least=5 * US, row=0.9 * US, each_row=0.5 * US
    ),  # [H]
    "rms_norm": OpKind(1, 1, pace=0.63, memory=0.42, start=2.0 * US, ceiling=0.72),
    "reduce": OpKind(1, 0, pace=1.9, memory=3.0, ceiling=0.98, start=1.2 * US, each_row=0.017 * US, short=0.22),  # [H]
    "reduce_all": OpKind(1, 0, pace=1.3, memory=3.0, ceiling=1.0, start=2.0 * US),  # to one number [H]
    "reduce_columns": OpKind(1, 0, pace=1.3, memory=3.0, ceiling=0.98, start=7.0 * US, each_row=0.12 * US),  # [H]
    "extreme": OpKind(
        1, 0, pace=1.15, memory=3.0, ceiling=0.86, start=1.0 * US, each_row=0.045 * US, short=0.75
    ),  # [H]
    "indexed": OpKind(
        1, 0, pace=0.56, memory=3.0, ceiling=0.58, start=1.2 * US, each_row=0.065 * US, short=0.75
    ),  # value and place, or moments [H]
}

# Names that measured tables and programs' blocks go by, and that torch has not.
NAMES: Mapping[str, str] = {
    "add/gated": "binary",
    "add/plain": "two_binary",  # a block that adds both attention and MLP to its input
    "vecadd": "binary",
    "mlp_act": "gated_activation",
    "mlp_act/gated": "gated_activation",
    "mlp_act/plain": "gelu",
    "silu_and_mul": "gated_activation",
    "swiglu": "gated_activation",
    "attn_rope": "rope",
    "attn_rope/gated": "rope",
    "attn_rope/plain": "rope",
    "layernorm": "layer_norm",
    "input_layernorm": "layer_norm",
    "input_layernorm/gated": "rms_norm",
    "input_layernorm/plain": "layer_norm",
    "post_attention_layernorm": "rms_norm",
    "post_attention_layernorm/gated": "rms_norm",
    "post_attention_layernorm/plain": "layer_norm",
    "rmsnorm": "rms_norm",
}
_BINARY = frozenset(
    {"add", "sub", "mul", "div"}
)  # by name alone they are of two tensors, other pointwise operators of one
_LAUNCHED = (Kind.COMPUTE, Kind.TRANSFER)
_PACED = (Model.TRAFFIC, Model.ROWS, Model.BATCH_NORM)

_WARP_ROW = 128
_H100_CLOCK = 1.83e9
_H100_LANES = 132 * _H100_CLOCK
_LANE = 10.57  # bytes that one PE of an A100 moves per clock when all of them copy
_SHARP = 6.0
_KERNEL = 1.0 * US  # of the launch's latency passes before the device counts a kernel as running
_COLD_START = 3.7 * US  # a launch timed alone with events
_DIRTY = 0.25  # of the cache: lines that clearing it left to be written back


def op_kind(op: str) -> OpKind:
    """The row of :data:`OPS` for a name of its own, of a measured table or of a torch operator that moves bytes.

    Raises ConfigError for one that is not known.
    """
    name = NAMES.get(op, op)
    if name not in OPS and (row := find(op)) is not None and row.model in _PACED and row.kind in _LAUNCHED:
        name = row.pace if row.pace != "pointwise" else "binary" if op in _BINARY else "unary"
    if name not in OPS:
        raise ConfigError(
            f"unknown memory-bound operation {op!r}; known: {', '.join(sorted({*OPS, *NAMES}))}, and torch's"
        )
    return OPS[name]


def traffic_of(op: str, shape: Sequence[int], dtype: str) -> float:
    """Bytes that an operation with a result of ``shape`` reads and writes at least."""
    kind = op_kind(op)
    return prod(shape) * ITEM_BYTES[canonical_dtype(dtype)] * (kind.reads + kind.writes)


def memory_bound_time(
    device: GivenDevice, op: str, shape: Sequence[int], *, dtype: str, cold: bool = False
) -> Estimate:
    """How long an elementwise operation, a softmax or a norm takes on the device.

    Args:
        device: shipped name, YAML path or DeviceSpec.
        op: a key of :data:`OPS` or :data:`NAMES`, or a torch operator.
        shape: of the result; the last dimension is the row of a softmax or a norm.
        dtype: of the elements.
        cold: the operands are in memory, as in a benchmark that clears caches; else what fits is in the last cache,
            where the operation before left it.

    Returns:
        An :class:`Estimate`; ``algbw`` is traffic over time, ``algorithm`` what limits: launch, kernel, cache, memory.

    Raises:
        ConfigError: unknown device, operation or dtype, a negative dimension.
    """
    spec, kind = resolve_device(device), op_kind(op)
    try:
        canonical_dtype(dtype)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    dims = tuple(shape)
    if any(isinstance(dim, bool) or dim != int(dim) or dim < 0 for dim in dims):
        raise ConfigError(f"shape is {dims}; expected whole numbers >= 0")
    return traffic_time(spec, kind, dims, traffic_of(op, dims, dtype), cold=cold)


def traffic_time(
    spec: DeviceSpec, kind: OpKind, dims: tuple[int, ...], traffic: float, *, cold: bool = False
) -> Estimate:
    """How long a kernel of a kind takes that moves ``traffic`` bytes; ``dims``: shape of what it passes over, by rows."""
    seconds, traffic, limit = _time(spec, kind, dims, traffic, cold)
    low, high = band_interval("memory_bound", np.asarray(seconds), np.asarray(seconds))
    rate = traffic / seconds
    return Estimate(seconds, float(low), float(high), limit, "", rate, rate)


def _time(
    spec: DeviceSpec, kind: OpKind, dims: tuple[int, ...], traffic: float, cold: bool
) -> tuple[float, float, str]:
    start = start_of(spec, False) * kind.launches + kind.start
    backend = kind.hip if spec.target.backend == "hip" else 1.0
    copy = spec.hbm_copy_bandwidth * backend
    from_cache, from_memory = _rates(spec, kind, copy)
    moved = traffic
    if cold:
        start += _COLD_START
        moved += traffic_when_cold(spec, traffic)
    if dims and dims[-1] > kind.whole_row and spec.target.backend == "hip":
        moved += 2 * traffic * kind.reads / (kind.reads + kind.writes)
    resident = 0.0 if cold else cache_share(spec, traffic)
    fetching = moved * (resident / from_cache + (1 - resident) / from_memory)
    each_row = kind.row if spec.target.backend == "hip" else kind.each_row * _H100_CLOCK / spec.clock
    if kind.short and dims:
        each_row *= min(1.0, max(dims[-1], 1) / _WARP_ROW) ** kind.short
    rows = (prod(dims[:-1]) if traffic else 0) * each_row / spec.pes
    elements = prod(dims) * kind.each * _H100_LANES / (spec.pes * spec.clock) if kind.each else 0.0
    took = max(fetching, kind.least, rows + elements)
    limit = "kernel" if took > fetching else "cache" if resident > 0.5 else "memory"
    return start + took, traffic, "launch" if took < start else limit


def _rates(spec: DeviceSpec, kind: OpKind, copy: float) -> tuple[float, float]:
    """Traffic that a kernel keeps up with, fed from the last cache and fed from memory, bytes/s."""
    if spec.target.backend == "hip":
        return kind.pace * copy, min(kind.memory, kind.ceiling) * copy
    lanes = _LANE * generation_of(spec).copy_pace * spec.pes * spec.clock
    # Instructions and memory overlap; where both take about as long, neither hides wholly behind the other.
    both = ((kind.memory * lanes) ** -_SHARP + (kind.ceiling * copy) ** -_SHARP) ** (-1 / _SHARP)
    return max(kind.pace * lanes, both), both


def start_of(spec: DeviceSpec, cold: bool) -> float:
    """Seconds until a plain kernel is at work; ``cold``: timed alone, after caches were cleared."""
    return max(spec.launch.latency - _KERNEL, 0.5 * US) + (_COLD_START if cold else 0.0)


def traffic_when_cold(spec: DeviceSpec, traffic: float) -> float:
    """Bytes that go to memory on behalf of what was cleared."""
    return _DIRTY * min(traffic, spec.l2.size if spec.l2 else 0)


def cache_share(spec: DeviceSpec, traffic: float) -> float:
    """Share of the traffic that the last cache serves; it fades as the operands outgrow the cache."""
    cache = spec.llc or spec.l2
    return min(1.0, max(0.0, 1.5 - traffic / cache.size)) if cache else 0.0
