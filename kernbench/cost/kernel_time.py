"""How long a kernel of one's own takes: from what its programs did and what they need of a PE (ADR 0039).

The executor counts bytes, operations and trips; the compiler says registers, shared memory, warps and stages. Programs run
in waves of as many as the PEs hold; a wave takes its slowest part; the launch is never faster than its memory traffic. The
constants of a generation are those of :mod:`kernbench.cost.gemm`, so that a kernel of good tiles comes out near the library.

Runtime, autotuning and ``do_bench`` all ask here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil, inf
from typing import Protocol

from kernbench.cost.contention import Contention
from kernbench.cost.devices import GivenDevice, resolve_device
from kernbench.cost.estimate import Estimate
from kernbench.cost.gemm import efficiency, kernels_of, shared_memory, sustained, tile_share
from kernbench.cost.generations import GemmKernels
from kernbench.cost.memory_bound import cache_share, start_of, traffic_when_cold
from kernbench.cost.tile_products import AWAITED, TileProduct, format_of, lines, product_seconds
from kernbench.topology.device import DeviceSpec


class LaunchCounts(Protocol):
    """What a launch did (:class:`kernbench.triton_engine.counts.Counts`)."""

    programs: int
    flops: dict[tuple[str, str], int]
    bytes_read: int
    bytes_written: int
    unique_bytes_read: int
    unique_bytes_written: int
    wave_read: tuple[int, int] | None
    atomics: int
    trips: dict[str, int]
    contention: Contention | None
    products: dict[TileProduct, int]
    contiguous: dict[int, int]
    waiting: tuple[int, int] | None
    turns: tuple[int, ...] | None


@dataclass(frozen=True)
class Resources:
    """Per program: registers per thread, spilled bytes per thread, shared memory in bytes, warps, stages, CTAs."""

    registers: int
    spills: int
    shared: int
    num_warps: int
    num_stages: int
    num_ctas: int = 1


_REGISTER_BYTES = 4
_WARP_REGISTERS = 256  # registers are given to a warp in units of this many
_MATRIX_WARPS = 4  # an SM has four matrix engines, each fed by its own warps; so has a CU four SIMDs
_EXPOSED = 0.75  # of vector and special operations: the rest runs while the matrix engines do (flash attention)
_STREAMED = (
    8  # times as many bytes read as written: weights, which nothing has brought to a cache since the step before
)
_CACHE_PACE = 1.6  # copy bandwidths that a plain kernel takes from a cache
_SPREADS = {"launch": (0.25, 0.35), "memory": (0.15, 0.25)}
_SPREAD = (0.25, 0.40)


def kernel_time(
    device: GivenDevice, counts: LaunchCounts, resources: Resources | None = None, *, cold: bool = False
) -> Estimate:
    """How long one launch takes.

    - Registers, shared memory, threads and blocks of a PE say how many programs are *resident*; programs run in waves of
      ``PEs x resident``, the last one part full.
    - A wave takes the longest of: matrix, vector and special operations of a PE's programs at its share of the rates (with
      fewer than four warps the engines are partly idle; small tiles keep them waiting for operands); the bytes that its
      programs load at its share of the cache (spilled registers are loaded too); and the chain of a program's trips, each
      a load and its use, where software pipelining has ``num_stages - 1`` loads on their way. Blocks begin and end once
      per wave. Programs of different numbers of trips take their turns in the order of the grid, as PEs come free.
    - Products of tiles take what the instructions do that they become (:mod:`kernbench.cost.tile_products`); atomic updates
      what they wait for one another (:mod:`kernbench.cost.contention`).
    - The launch is never faster than its distinct bytes at what memory sustains. What a wave reads again comes from the last
      cache; what the next wave reads again does so if it fits, else from memory.

    Args:
        device: shipped name, YAML path or DeviceSpec.
        counts: of the launch. ``wave_read``: distinct bytes that the programs of one wave read, and how many programs.
        resources: as compiled; None: what the counts suggest (:func:`suggested_resources`).
        cold: the operands are in memory, and the launch is timed alone, as ``do_bench`` does.

    Returns:
        An :class:`Estimate`: ``algorithm`` is what limits it (``compute``, ``cache``, ``latency``, ``memory``, ``atomics``,
        ``launch``, or why it cannot run; then ``seconds`` is infinite), ``protocol`` the number of resident programs.
    """
    spec = resolve_device(device)
    needs = suggested_resources(counts, spec) if resources is None else resources
    resident, reason = occupancy(needs, spec)
    if not resident:
        return Estimate(inf, inf, inf, reason, "0")
    programs = max(counts.programs, 1)
    whole, rest = divmod(programs, spec.pes * resident)
    tensor = any(unit == "tensor" for _, unit in counts.flops)
    parts = dict.fromkeys(("compute", "cache", "latency"), 0.0)
    busy = 0.0
    for waves, running in ((whole, spec.pes * resident), (1 if rest else 0, rest)):
        if waves:
            wave, around = _wave(counts, needs, spec, running, programs, tensor)
            busy += waves * (max(wave.values()) + around)
            parts = {name: parts[name] + waves * seconds for name, seconds in wave.items()}
    if counts.turns is not None:
        wave, around = _wave(counts, needs, spec, min(programs, spec.pes * resident), programs, tensor)
        mean = sum(counts.turns) / len(counts.turns)
        busy = (max(wave.values()) + around) * _last_end(counts.turns, spec.pes * resident) / mean
    moving, moved = _memory(counts, spec, tensor, cold)
    start = start_of(spec, cold) + (_pipeline_start(spec) if tensor else 0.0)
    updating = counts.contention.seconds(spec) if counts.contention is not None else 0.0
    work = max(busy, moving, updating)
    limit = "memory" if moving > busy else max(parts, key=lambda name: parts[name])
    if updating > max(busy, moving):
        limit = "atomics"
    if work < start:
        limit = "launch"
    seconds = start + work
    if tensor:
        seconds = float(sustained(seconds, kernels_of(spec)))
    below, above = _SPREADS.get(limit, _SPREAD)
    rate = moved / seconds
    return Estimate(seconds, seconds * (1 - below), seconds * (1 + above), limit, str(resident), rate, rate)


def _last_end(turns: Sequence[int], places: int) -> float:
    """When the last of some programs ends that take so many turns each, and begin in order as ``places`` come free."""
    ends = [float(took) for took in turns[:places]]
    heapify(ends)
    for took in turns[places:]:
        heapreplace(ends, ends[0] + took)
    return max(ends)


def _pipeline_start(spec: DeviceSpec) -> float:
    return kernels_of(spec).start + 1e-6


def _wave(
    counts: LaunchCounts, needs: Resources, spec: DeviceSpec, running: int, programs: int, tensor: bool
) -> tuple[dict[str, float], float]:
    """Seconds of a wave of ``running`` programs on its fullest PE by resource, and around them."""
    kernels, cache = kernels_of(spec), shared_memory(spec)
    concurrent = ceil(running / spec.pes)
    active = min(running, spec.pes)
    fed = min(1.0, concurrent * needs.num_warps / _MATRIX_WARPS)
    matrix, plain = _operations(counts, spec, kernels)
    trips = max(counts.trips.values(), default=0) / programs
    threads = needs.num_warps * spec.target.warp_size
    spilled = needs.spills * threads * 2 * max(trips, 1)
    own = cache.bandwidth * kernels.pe_share / spec.pes
    pace = min(cache.bandwidth * (kernels.own_reuse or kernels.operand_reuse) / active, own)
    if not tensor:
        pace = max(pace, spec.hbm_copy_bandwidth / spec.pes)
    loading = (counts.bytes_read * _line_share(counts, kernels) / programs + spilled) / pace
    storing = counts.bytes_written / programs / own
    computing = (matrix + plain) / programs / fed
    latency = spec.hbm.latency if not tensor else cache.latency
    awaited = AWAITED * sum(number for product, number in counts.products.items() if product.awaited) / programs
    if not kernels.own_reuse:
        awaited = 0.0
    fetch, use = latency + loading / max(trips, 1), (computing + awaited) / max(trips, 1)
    ahead = needs.num_stages - 1
    step = max(use, fetch / ahead) if ahead > 0 else fetch + use
    wave = {
        "compute": concurrent * computing,
        "cache": concurrent * (loading if tensor else loading + storing),
        "latency": fetch + latency + max(trips, 1) * step,
    }
    return wave, (kernels.block + concurrent * storing) if tensor else 0.0


def _operations(counts: LaunchCounts, spec: DeviceSpec, kernels: GemmKernels) -> tuple[float, float]:
    """Seconds that one PE would need for all matrix operations, and for the others as far as they show."""
    products = sum(flops for (_, unit), flops in counts.flops.items() if unit == "tensor")
    share = tile_share(counts.bytes_read / products) if products else 1.0
    matrix = plain = 0.0
    done: dict[str, int] = {}
    for product, number in counts.products.items():
        matrix += number * product_seconds(product, spec, share, product.along(counts.contiguous))
        done[product.elem] = done.get(product.elem, 0) + number * product.flops
    for (dtype, unit), flops in counts.flops.items():
        name = format_of(dtype)
        if unit == "tensor":
            flops -= done.get(dtype, 0)  # what is left are products of scaled operands
            matrix += flops * spec.pes / (spec.matrix_rate(name) * efficiency(spec, kernels, name) * share)
        elif unit == "special":
            plain += flops / spec.pe.special_rate
        else:  # a rate counts a multiply-add as two
            plain += 2 * flops * spec.pes / spec.vector_rate("fp32" if name == "tf32" else name)
    plain += counts.atomics / spec.clock if counts.contention is None else 0.0
    return matrix, plain * (_EXPOSED if products else 1.0)


def _line_share(counts: LaunchCounts, kernels: GemmKernels) -> float:
    """How many times as long operands take to load whose rows are short."""
    loaded = counted = 0.0
    for product, number in counts.products.items() if kernels.own_reuse else ():
        one, other = lines(product, product.along(counts.contiguous))
        loaded, counted = loaded + number * one, counted + number * other
    return counted / loaded if loaded else 1.0


def _memory(counts: LaunchCounts, spec: DeviceSpec, tensor: bool, cold: bool) -> tuple[float, float]:
    """Seconds of the traffic with device memory, and its bytes."""
    read, written = float(counts.unique_bytes_read), float(counts.unique_bytes_written)
    if not tensor:
        moved = read + written
        resident = 0.0 if cold or read > _STREAMED * written else cache_share(spec, moved)
        paced = (moved + (traffic_when_cold(spec, moved) if cold else 0.0)) / spec.hbm_copy_bandwidth
        return paced * (resident / _CACHE_PACE + 1 - resident), moved
    kernels, cache = kernels_of(spec), shared_memory(spec)
    last = max(cache.size, spec.llc.size if spec.llc else 0)
    if counts.wave_read is not None and read > last * kernels.resident:
        distinct, programs = counts.wave_read
        read = max(read, min(distinct * counts.programs / programs, counts.bytes_read))
    copy = spec.hbm_copy_bandwidth
    return read / (copy * kernels.read_share) + written / (copy * kernels.store_share), read + written


def occupancy(resources: Resources, device: DeviceSpec) -> tuple[int, str]:
    """Programs that one PE holds at a time, and what forbids more (or any)."""
    pe = device.pe
    threads = resources.num_warps * device.target.warp_size * resources.num_ctas
    per_warp = ceil(max(resources.registers, 1) * device.target.warp_size / _WARP_REGISTERS) * _WARP_REGISTERS
    registers = per_warp * resources.num_warps * resources.num_ctas * _REGISTER_BYTES
    if resources.shared > pe.tcm_per_block:
        return 0, f"needs {resources.shared:,} bytes of shared memory, there are {pe.tcm_per_block:,}"
    reserved = pe.tcm.size - pe.tcm_per_block  # what the system keeps of every block's share (CUDA: 1 KiB)
    limits = {
        "blocks": pe.max_blocks,
        "registers": pe.registers // registers,
        "shared memory": pe.tcm.size // (resources.shared + reserved) if resources.shared else pe.max_blocks,
        "threads": pe.max_threads // threads,
    }
    reason = min(limits, key=lambda name: limits[name])
    return int(limits[reason]), f"too many {reason}" if not limits[reason] else reason


def suggested_resources(
    counts: LaunchCounts, device: DeviceSpec, *, num_warps: int = 4, num_stages: int = 3
) -> Resources:
    """What the compiler would say of a kernel of these counts, more or less, without asking it.

    A product keeps its result in registers, and ``num_stages`` trips of operands in shared memory; others keep what a trip
    loads in registers. Never more than one PE has.
    """
    programs = max(counts.programs, 1)
    trips = max(max(counts.trips.values(), default=0) / programs, 1)
    threads = max(1, num_warps * device.target.warp_size)
    loaded = counts.bytes_read / programs / trips
    most = min(255, device.pe.registers // _REGISTER_BYTES // threads)
    if any(unit == "tensor" for _, unit in counts.flops):
        kept = counts.bytes_written / programs / 2  # sixteen-bit results are added up in 32 bits
        trip, once = (loaded, 0) if counts.waiting is None else counts.waiting
        shared = int(min(trip * num_stages + once, device.pe.tcm_per_block))
        return Resources(int(min(56 + kept / threads, most)), 0, shared, num_warps, num_stages)
    return Resources(int(min(24 + loaded / threads / _REGISTER_BYTES, most)), 0, 0, num_warps, num_stages)
