"""What libraries make of one generation of devices, and of one kind of network: figures of ``configs/generations`` and
``configs/transports``.

A device names its generation (``generation: hopper``, or the path of a YAML file); one that names none is taken for the
newest of its backend that is not newer than what Triton compiles for. The files have microseconds and GB/s, as the
figures were fitted; here all is SI. The tables change only while constants are fitted (:mod:`kernbench.validation.refit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from kernbench.cost.collective_constants import GB, US
from kernbench.errors import ConfigError
from kernbench.topology.device import DeviceSpec, Spec
from kernbench.topology.loader import load_part
from kernbench.topology.shipped import shipped_names

Micros = Annotated[float, Field(ge=0), AfterValidator(lambda given: given * US)]
"""Microseconds in the file, seconds here."""

Gigas = Annotated[float, Field(ge=0), AfterValidator(lambda given: given * GB)]
"""GB or GB/s in the file, bytes or bytes/s here."""


class CollectiveConstants(Spec):
    """How well the library's kernels use one generation of devices and links.

    Attributes:
        base: start and end of a collective kernel on the device, by protocol.
        hop: work of one ring or tree step inside a node beyond the flight over the link, by protocol.
        ring_share: what rings keep of the links' payload bandwidth.
        tree_share: what a tree of one node keeps of ``ring_share``: its GPUs receive, reduce and send both ways.
        ll_bandwidth: most bus bandwidth of the LL protocol, whose stores carry a flag beside each four bytes of data: half
            of a ring's.
        ll128_share: share left of a ring by LL128, 120 of 128 bytes.
        nvls_share: algorithm bandwidth of all-reduce in the switch, of the links' payload bandwidth; 0: none.
        nvls_base: latency of an all-reduce in the switch.
        nvls_margin: how much faster than a ring NVLS must be before the library takes it.
        nvls_channels: blocks that it runs on.
        p2p_channel: bandwidth of one channel of send and receive inside a node.
        all_to_all_share: what all-to-all keeps of the payload bandwidth, all peers at once.
        direct_base: of an all-reduce whose ranks read each other's buffers (one shot, two shots), and per peer.
        direct_sync: between the two shots: a barrier, and the sums written and read again.
        direct_share: what the few blocks of such a kernel pull of the payload bandwidth.
        slow_start: by kind of transfer, the share of time that is lost while a transfer is small, and the size at which
            half of that is left: pages, clocks and queues are not warm yet. ``pair``, where it is named, is of rings of two
            ranks, whose sends and receives alternate.
        pair_share: what a ring of two ranks keeps however much it carries.
        mesh_share: what rings keep on direct joints instead of a switch.
        net_ll128: whether LL128 is used between nodes.
        ranks_by_time: whether the library ranks by times that were measured on such hardware, as RCCL's tables are,
            instead of NCCL's formula.
        rank_ll_max: in that formula, cap of LL's bus bandwidth by nodes (1, 2, more).
        rank_tree_channel: in that formula, cap of a tree's bus bandwidth per channel, by nodes (1, 2, more).
    """

    base: Mapping[str, Micros]
    hop: Mapping[str, Micros]
    ring_share: float
    tree_share: float
    ll_bandwidth: Gigas
    ll128_share: float
    nvls_share: float = 0.0
    nvls_base: Micros = 0.0
    nvls_margin: float = 1.0
    nvls_channels: int = 16
    p2p_channel: Gigas
    all_to_all_share: float
    direct_base: tuple[Micros, Micros]
    direct_sync: Micros
    direct_share: float
    slow_start: Mapping[str, tuple[float, Gigas]]
    pair_share: float = 1.0
    mesh_share: float
    net_ll128: bool = True
    ranks_by_time: bool = False
    rank_ll_max: tuple[Gigas, Gigas, Gigas]
    rank_tree_channel: tuple[Gigas, Gigas, Gigas]


class GemmKernels(Spec):
    """What the library's matrix kernels make of one generation of devices.

    Attributes:
        efficiency: share of the matrix peak that the inner loop sustains under power and clock limits, by format.
        operand_reuse: operand bytes that reach the PEs per byte of L2 bandwidth: multicast to a cluster, L1 hits.
        own_reuse: the same for kernels of one's own, which have no multicast; 0: not known, as the library's.
        pe_share: most operand bytes of one PE, in units of its share of the L2 bandwidth.
        resident: share of the last cache within which operands are read from memory only once.
        read_share, store_share: of copy bandwidth, for operands and results.
        start: from the launch's latency to a full pipeline, seconds.
        block: start and end of one block, seconds.
        largest: elements of the largest block.
        without: block shapes that its libraries do not have.
        split: adding the parts of K: a second kernel, or the last block of each.
        wide: what operands of four bytes keep of both: not all layouts of them reach the matrix engine directly.
        exact_sums: how many times as long products in eight bits take whose sums are kept in 32 bits throughout.
        power: board power of the devices that `efficiency` is of, watts; 0: not known, and a device's own limit says nothing.
        power_exponent: how what large products sustain grows with the board's power limit.
        misaligned: how many times as long products take whose rows do not start on 16 bytes.
        sustained: share by which products take longer where one follows another for long (ADR 0126); 0: not known.
        sustained_between: shares of the time in which a device multiplies: nothing is lost below the first, all of it above
            the second.
        persistent: whether a product runs as one block per PE, each with its tiles dealt out beforehand (ADR 0218).
        throttle, throttle_after: share of time that long products lose to clocks falling under power limits, and the
            duration at which half of that is lost, seconds.
    """

    efficiency: Mapping[str, float]
    operand_reuse: float
    own_reuse: float = 0.0
    pe_share: float
    resident: float
    read_share: float
    store_share: float
    start: Micros
    block: Micros
    largest: int
    without: tuple[tuple[int, int], ...] = ()
    split: Micros
    wide: float = 1.0
    exact_sums: float = 1.0
    power: float = 0.0
    power_exponent: float = 0.0
    misaligned: float = 1.3
    sustained: float = 0.0
    sustained_between: tuple[float, float] = (0.5, 0.9)
    persistent: bool = False
    throttle: float
    throttle_after: Micros


class PowerDraw(Spec):
    """What boards of one generation draw, and how their clocks give way at the power's limit (ADR 0245).

    Attributes:
        limit: watts of the usual board; a device's own ``power`` replaces it.
        rest: watts at the boost clock with nothing to do.
        product, attention: watts above that while large products, or fused attentions, follow one another at the boost clock;
            those of attention by variant.
        byte: joules that a byte takes between memory and PEs, whatever the PEs' clock.
        clock_exponent: how what products and attention draw grows with the clock.
        product_share, attention_share, other_share: exponents by which times grow as the clock falls; the last of kernels that
            do not saturate the memory.
    """

    limit: float
    rest: float
    product: float
    attention: Mapping[str, float]
    byte: float
    clock_exponent: float
    product_share: float
    attention_share: float
    other_share: float


class Generation(Spec):
    """One generation of devices.

    Attributes:
        backend, first_arch: of the devices that are taken for it when they name none.
        like: the generation that it is taken for while it is not measured.
        attention: shares of the matrix peak that blocks of queries sustain with heads of 128, forward and backward, by variant:
            the softmax between the products runs elsewhere.
        attention_narrow: what is left of them with heads of 64.
        attention_wide: what is left of them, forward and backward, with heads of more than 128.
        attention_rows: queries of one block forward, by variant, where they are not 128.
        copy_pace: bytes that one PE moves per clock when all of them copy, in units of an A100's.
        draw: what boards draw, where it was measured; None: ``gemm.sustained`` says what products lose.
    """

    name: str
    description: str = ""
    backend: Literal["cuda", "hip"]
    first_arch: int
    like: str | None = None
    collectives: CollectiveConstants
    gemm: GemmKernels
    attention: Mapping[str, tuple[float, float]]
    attention_narrow: float
    attention_wide: tuple[float, float] = (1.0, 1.0)
    attention_rows: Mapping[str, int] = Field(default_factory=dict)
    copy_pace: float
    draw: PowerDraw | None = None


def _pairs(given: Any) -> Any:
    """``{algorithm: {protocol: value}}`` with pairs for keys; anything else is left to the schema to complain about."""
    if not isinstance(given, dict) or not all(isinstance(row, dict) for row in given.values()):
        return given
    return {(algorithm, protocol): value for algorithm, row in given.items() for protocol, value in row.items()}


class Transport(Spec):
    """How the library drives one kind of network.

    Attributes:
        inject: messages up to this size travel in the command itself; larger ones cost ``inject_cost`` per hop.
        eager: messages up to this size go at once; larger ones ask first, one more round trip.
        step: proxy, flush and flag work of one step over the network beyond the fabric's latency, by algorithm and
            protocol.
        chunk, chunk_trips: time that each chunk of a pipelined tree adds for each doubling of nodes, in seconds and in
            units of the fabric's latency: a step waits for its slowest link, and for leave to send where it asks.
        spread: growth of the latency with each doubling of nodes beyond two: more switches, and queues in them.
        ll_bandwidth: bus bandwidth of LL over the network: lines are written to host memory and their flags checked
            by a CPU.
        ll_hop_bandwidth: rate at which a whole LL message passes one hop of a tree.
        bulk: ring messages of at least so many bytes, and the least time of a step that sends them: they are fetched by
            the receiver, a CPU's work for each. The same on 4 to 512 nodes of one machine.
        ll128: whether LL128 is allowed: it needs 128-byte stores to arrive whole.
        tree_share: what trees keep of the NICs' bandwidth, two nodes; more than two.
        tuned: whether the transport's plugin brings a tuner, which then ranks algorithms by their times.
        misjudged: most that the library's formula has been seen to lose by its choice, as a factor: an LL ring kept for
            too long. What it would lose beyond that is noticed and forbidden.
    """

    name: str
    description: str = ""
    inject: float = Field(allow_inf_nan=True)
    inject_cost: Micros
    eager: float = Field(allow_inf_nan=True)
    step: Annotated[Mapping[tuple[str, str], Micros], BeforeValidator(_pairs)]
    chunk: Micros
    chunk_trips: float
    spread: float
    ll_bandwidth: Gigas
    ll_hop_bandwidth: Gigas
    ll128: bool
    bulk: tuple[tuple[float, Micros], ...] = ()
    tree_share: tuple[float, float]
    tuned: bool = False
    misjudged: float


class GenerationFile(Spec):
    """Top level of a generation's file."""

    generation: Generation


class TransportFile(Spec):
    """Top level of a transport's file."""

    transport: Transport


Row = TypeVar("Row", bound=Spec)


class Shipped(dict[str, Row]):
    """The shipped files of one kind as rows by name, each read when it is first asked for."""

    def __init__(self, kind: str, model: type[Spec]) -> None:
        super().__init__()
        self._kind, self._model = kind, model

    def __missing__(self, name: str) -> Row:
        row: Row = getattr(load_part(self._kind, name, self._model), self._kind)
        self[name] = row
        return row

    def read_all(self) -> dict[str, Row]:
        """Every row, by name in alphabetical order, whichever was asked for first."""
        return {name: self[name] for name in shipped_names(f"{self._kind}s")}


GENERATIONS: Shipped[Generation] = Shipped("generation", GenerationFile)
TRANSPORTS: Shipped[Transport] = Shipped("transport", TransportFile)


def generation_of(device: DeviceSpec) -> Generation:
    """The generation of a device. Raises ConfigError for one that there is not."""
    name = device.generation
    if name is None:
        name = _of_target(device.target.backend, device.target.arch)
    elif name.endswith((".yaml", ".yml")):
        return _from_file(name, Path(name).stat().st_mtime_ns)
    return GENERATIONS[name]


@lru_cache(64)
def _from_file(path: str, _modified: int) -> Generation:
    return load_part("generation", Path(path), GenerationFile).generation


@lru_cache(64)
def _of_target(backend: str, arch: int | str) -> str:
    number = int(arch) if backend == "cuda" else 0
    fitting = [row for row in GENERATIONS.read_all().values() if row.backend == backend and row.first_arch <= number]
    if not fitting:
        raise ConfigError(f"no generation of devices is known for {backend} {arch}: name one (`generation`)")
    return max(fitting, key=lambda row: row.first_arch).name


def by_age() -> list[str]:
    """Names of the shipped generations, each after the one that it may be taken for."""
    rows = GENERATIONS.read_all().values()
    return [row.name for row in sorted(rows, key=lambda row: (row.backend, row.first_arch))]
