"""The schema of a device description: one SIP, its PEs, its memories, its rates.

All figures are SI (bytes, bytes/s, seconds, operations/s, hertz). Rates are dense peaks, as on the data sheet; what
real kernels reach is the cost models' business, except for ``hbm.copy_efficiency``, which is measured,
and ``matrix_efficiency``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kernbench.errors import ConfigError
from kernbench.topology.dtypes import canonical_dtype
from kernbench.topology.units import Bandwidth, Bytes, Count, Hertz, OpsPerSecond, Position, Seconds, Share, Side, Watts

MemoryKind = Literal["tcm", "sram", "hbm"]


class Spec(BaseModel):
    """Base of every part of a description: immutable, and a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Target(Spec):
    """What Triton compiles for."""

    backend: Literal["cuda", "hip"] = Field(description="Triton's backend: cuda or hip")
    arch: int | str = Field(description="compute capability as an integer (90) or a gfx name (gfx942)")
    warp_size: Literal[32, 64] = Field(description="threads of a warp (32) or wavefront (64)")


class MemorySpec(Spec):
    """A memory of given ``size``; ``bandwidth`` and ``latency`` are of one access path, read or write."""

    size: Bytes = Field(description="capacity")
    bandwidth: Bandwidth = Field(description="bytes per second, reads and writes together")
    latency: Seconds = Field(description="idle load-to-use latency")


class Pe(Spec):
    """One processing element (an SM or CU on a GPU)."""

    tcm: MemorySpec = Field(description="tightly coupled memory: shared memory, LDS or scratchpad of one PE")
    tcm_per_block: Bytes = Field(description="most TCM that one thread block (Triton program) may use")
    registers: Bytes = Field(description="size of the register file")
    max_threads: Count = Field(description="most resident threads")
    max_blocks: Count = Field(description="most resident thread blocks")
    special_rate: OpsPerSecond = Field(description="special functions (exp, rsqrt, sin) per second")


class L2(MemorySpec):
    """The device-wide cache. ``partitions`` > 1: separate caches, each serving its share of the PEs (AMD XCDs)."""

    partitions: Count = Field(default=1, description="number of separate caches that make up `size`")


class Hbm(MemorySpec):
    """Device memory. ``bandwidth`` is the pin bandwidth of all ``channels`` together."""

    copy_efficiency: Share = Field(description="share of `bandwidth` that a large copy was measured to reach")
    channels: Count = Field(description="pseudo-channels that addresses are interleaved over")
    interleave: Bytes = Field(default=256, description="consecutive bytes in one channel")

    @property
    def channel_bandwidth(self) -> float:
        """Pin bandwidth of one pseudo-channel, bytes/s."""
        return self.bandwidth / self.channels

    @property
    def pins(self) -> tuple[int, int]:
        """Clock in kHz and bits of the bus, which is taken to have 8192: a bit is moved at both edges of the clock."""
        return round(self.bandwidth * 8 / 8192 / 2 / 1000), 8192


class Rates(Spec):
    """Operations per second by number format, all PEs together, dense. A multiply-add counts as two."""

    fp64: OpsPerSecond | None = None
    tf32: OpsPerSecond | None = None
    fp32: OpsPerSecond | None = None
    bf16: OpsPerSecond | None = None
    fp16: OpsPerSecond | None = None
    fp8: OpsPerSecond | None = None
    fp4: OpsPerSecond | None = None
    int64: OpsPerSecond | None = None
    int32: OpsPerSecond | None = None
    int16: OpsPerSecond | None = None
    int8: OpsPerSecond | None = None

    def known(self) -> dict[str, float]:
        """The formats that have a figure."""
        return {name: rate for name, rate in self if rate is not None}


class LaunchCosts(Spec):
    """What starting a kernel costs."""

    overhead: Seconds = Field(description="host time of one enqueue")
    latency: Seconds = Field(description="from the enqueue's end to the first PE at work, stream idle")
    least: Seconds | None = Field(
        default=None, description="from one of a graph's smallest kernels to the next; default: 0.8 of the latency"
    )

    @property
    def in_graph(self) -> float:
        """Seconds from one of a graph's smallest kernels to the next."""
        return 0.8 * self.latency if self.least is None else self.least


class HostLink(Spec):
    """The link between the host and one SIP, each direction."""

    bandwidth: Bandwidth = Field(description="bytes per second and direction")
    latency: Seconds = Field(description="one way")
    pageable: Share = Field(
        default=0.28,
        description="share of the bandwidth that copies of memory which is not pinned reach: the driver stages them",
    )  # 11 to 17.5 GB/s of 55.4 on an H100 (kernbench.programs.gpu_times); of other hosts UNVERIFIED


class Noc(Spec):
    """The network on chip that joins the PEs of a cube, and a cube to its die-to-die ports."""

    latency: Seconds = Field(description="one pass through a cube's crossbar")


class DieToDie(Spec):
    """The joint between neighbouring cubes, each direction."""

    bandwidth: Bandwidth = Field(description="bytes per second and direction")
    latency: Seconds = Field(description="one hop, both ports")


class IoDie(Spec):
    """The die that all traffic enters and leaves a SIP by. It joins the mesh at cube (``x``, ``y``)."""

    x: Position = Field(description="column of the cube that it is attached to")
    y: Position = Field(description="row of the cube that it is attached to")
    bandwidth: Bandwidth = Field(description="bytes per second between the IO die and the mesh, each direction")
    latency: Seconds = Field(description="one pass")


class Cubes(Spec):
    """The level inside a SIP: a mesh of ``w`` x ``h`` cubes of ``pes`` PEs each."""

    w: Side = Field(description="columns of the mesh")
    h: Side = Field(description="rows of the mesh")
    pes: Count = Field(description="PEs of one cube")
    sram: MemorySpec = Field(description="memory shared by the PEs of one cube; bandwidth of the whole cube")
    noc: Noc = Field(description="network on chip: latency")
    die_to_die: DieToDie = Field(description="joint between cubes: bandwidth, latency")
    io_die: IoDie = Field(description="the die that traffic leaves by: x, y, bandwidth, latency")

    @property
    def count(self) -> int:
        """How many there are."""
        return self.w * self.h


# A format without a figure of its own runs at the rate of the first listed one that has one.
# fp32 never falls back to tf32, which is less precise: who wants its speed asks for tf32.
_MATRIX_FALLBACK = {"tf32": ("fp32",), "bf16": ("fp16",), "fp16": ("bf16",), "fp8": ("fp16",), "fp4": ("fp8", "fp16")}
_VECTOR_FALLBACK = {
    "fp64": ("fp32",),
    "tf32": ("fp32",),
    "bf16": ("fp32",),
    "fp16": ("fp32",),
    "fp8": ("fp32",),
    "fp4": ("fp32",),
    "int64": ("int32", "fp32"),
    "int32": ("fp32",),
    "int16": ("int32", "fp32"),
    "int8": ("int32", "fp32"),
}


class DeviceSpec(Spec):
    """One SIP: what PyTorch calls a device."""

    name: str = Field(description="short name; the file's name when it is left out")
    description: str = Field(default="", description="one line for people")
    product: str = Field(default="", description="its name as programs see it; that of the file when it is left out")
    target: Target = Field(description="what Triton compiles for: backend, arch, warp_size")
    generation: str | None = Field(
        default=None, description="shipped generation of devices, or a file's path; by `target` when it is left out"
    )
    pes: Count = Field(description="PEs of the SIP (SMs, CUs or accelerator cores)")
    clock: Hertz = Field(description="clock that the rates hold at")
    pe: Pe = Field(description="one PE: tcm, tcm_per_block, registers, max_threads, max_blocks, special_rate")
    l2: L2 | None = Field(default=None, description="device-wide cache, where there is one")
    llc: MemorySpec | None = Field(default=None, description="memory-side cache behind the L2 (AMD Infinity Cache)")
    hbm: Hbm = Field(description="device memory: size, bandwidth, copy_efficiency, latency, channels")
    matrix: Rates = Field(description="matrix engines")
    matrix_efficiency: Share | None = Field(
        default=None, description="share of the 16-bit matrix peak that the inner loop of a large product sustains"
    )
    power: Watts | None = Field(
        default=None,
        description="board power limit, where it is not that of the devices that the generation was measured on",
    )
    vector: Rates = Field(description="vector (plain ALU) units")
    launch: LaunchCosts = Field(description="what a kernel start costs: overhead, latency")
    host_link: HostLink = Field(description="link to the host: bandwidth, latency")
    cubes: Cubes | None = Field(default=None, description="the optional inner level: a mesh of cubes")

    def matrix_rate(self, dtype: object) -> float:
        """Dense matrix peak of the whole SIP for operands of ``dtype``, FLOP/s; without an engine, the vector rate."""
        name = canonical_dtype(dtype)
        known = self.matrix.known()
        found = next((known[name] for name in (name, *_MATRIX_FALLBACK.get(name, ())) if name in known), None)
        return self.vector_rate(name) if found is None else found

    def vector_rate(self, dtype: object) -> float:
        """Vector peak of the whole SIP for operands of ``dtype``, operations/s. A multiply-add counts as two."""
        name = canonical_dtype(dtype)
        known = self.vector.known()
        for candidate in (name, *_VECTOR_FALLBACK.get(name, ())):
            if candidate in known:
                return known[candidate]
        raise ConfigError(f"device {self.name}: no vector rate for {name}; it has {', '.join(known) or 'none'}")

    @cached_property
    def hbm_copy_bandwidth(self) -> float:
        """What a large copy reaches, bytes/s (read and written bytes together)."""
        return self.hbm.bandwidth * self.hbm.copy_efficiency

    def memory_port(self, kind: MemoryKind) -> MemorySpec:
        """A memory as **one PE** meets it: its size within reach, the PE's share of its bandwidth, its latency.

        ``tcm`` is the PE's own. ``sram`` is shared by the PEs of a cube; a device without cubes has its L2 in that
        place. ``hbm`` is the PE's share of the whole, at copy efficiency. A PE alone may get more than its share of a
        memory that the others leave idle; a queue that all PEs have to sustain at once does not.
        """
        if kind == "tcm":
            return self.pe.tcm
        if kind == "hbm":
            return MemorySpec.model_construct(
                size=self.hbm.size, bandwidth=self.hbm_copy_bandwidth / self.pes, latency=self.hbm.latency
            )
        if kind != "sram":
            raise ConfigError(f"device {self.name}: no memory {kind!r}; expected tcm, sram or hbm")
        if self.cubes is not None:
            shared, sharers = self.cubes.sram, self.cubes.pes
        elif self.l2 is not None:
            shared, sharers = self.l2, self.pes
        else:
            raise ConfigError(f"device {self.name} has neither cubes with an SRAM nor an L2; use tcm or hbm buffers")
        return MemorySpec.model_construct(
            size=shared.size, bandwidth=shared.bandwidth / sharers, latency=shared.latency
        )
