"""Constants of the collective library (NCCL, RCCL), by hardware generation and by the fabric's transport.

Times in seconds, rates in bytes/s, sizes in bytes. Every figure is a property of a kind of hardware or of the library's
code, never of one measured table. Sources: [N] github.com/NVIDIA/nccl src/graph/tuning.cc @5067397c; [M] fitted on the
calibration tables that docs/accuracy.md names, one figure for all systems of a generation. See ADR 0030.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

US, KIB, MIB, GB = 1e-6, 1024, 1024**2, 1e9


@dataclass(frozen=True, slots=True)
class Generation:
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
        p2p_channel: bandwidth of one channel of send and receive inside a node.
        all_to_all_share: what all-to-all keeps of the payload bandwidth, all peers at once.
        direct_base: of an all-reduce whose ranks read each other's buffers (one shot, two shots), and per peer.
        direct_sync: between the two shots: a barrier, and the sums written and read again.
        direct_share: what the few blocks of such a kernel pull of the payload bandwidth.
        slow_start: by kind of transfer, the share of time that is lost while a transfer is small, and the size at which
            half of that is left: pages, clocks and queues are not warm yet.
        pair_share: what a ring of two ranks keeps, whose sends and receives alternate.
        mesh_share: what rings keep on direct joints instead of a switch.
        net_ll128: whether LL128 is used between nodes.
        ranks_by_time: whether the library ranks by times that were measured on such hardware, as RCCL's tables are,
            instead of NCCL's formula.
    """

    base: Mapping[str, float]
    hop: Mapping[str, float]
    ring_share: float
    tree_share: float
    ll_bandwidth: float
    ll128_share: float
    nvls_share: float
    nvls_base: float
    nvls_margin: float
    p2p_channel: float
    all_to_all_share: float
    slow_start: Mapping[str, tuple[float, float]]
    direct_base: tuple[float, float] = (3.53 * US, 0.344 * US)
    direct_sync: float = 7.2 * US
    direct_share: float = 0.2
    pair_share: float = 0.85
    mesh_share: float = 1.0
    net_ll128: bool = True
    ranks_by_time: bool = False


def _protocols(ll: float, ll128: float, simple: float) -> dict[str, float]:
    return {"ll": ll * US, "ll128": ll128 * US, "simple": simple * US}


_SLOW_START = {
    "ring": (0.05, 1.5 * GB),
    "gather": (0.11, 1.5 * GB),
    "net": (0.02, 1.5 * GB),
    "p2p": (0.12, 1.5 * GB),
    "nvls": (0.30, 0.12 * GB),
}

GENERATIONS: Mapping[str, Generation] = {
    "ampere": Generation(
        base=_protocols(5.88, 21.4, 9.96),
        hop=_protocols(0.516, 1.9, 6.1),
        ring_share=0.85,
        tree_share=0.92,
        ll_bandwidth=68.3 * GB,
        ll128_share=0.617,
        nvls_share=0.0,
        nvls_base=0.0,
        nvls_margin=1.0,
        p2p_channel=20 * GB,
        all_to_all_share=0.85,
        slow_start={**_SLOW_START, "ring": (0.35, 0.1 * GB)},
        pair_share=0.782,
        mesh_share=0.95,
    ),
    "hopper": Generation(
        base=_protocols(3.31, 14, 7.73),
        hop=_protocols(0.479, 1.9, 3.24),
        ring_share=0.86,
        tree_share=0.92,
        ll_bandwidth=152 * GB,
        ll128_share=0.94,
        nvls_share=0.692,
        nvls_base=34.5 * US,
        nvls_margin=1.11,
        p2p_channel=22.4 * GB,
        all_to_all_share=0.839,
        slow_start=_SLOW_START,
        mesh_share=0.954,
        pair_share=0.821,
    ),
    "blackwell": Generation(
        base=_protocols(3.31, 14, 7.73),
        hop=_protocols(0.479, 1.9, 3.24),
        ring_share=0.805,
        tree_share=0.92,
        ll_bandwidth=304 * GB,
        ll128_share=0.94,
        nvls_share=0.603,
        nvls_base=34.5 * US,
        nvls_margin=1.11,
        p2p_channel=40 * GB,  # [N] NVLink of one channel doubles
        all_to_all_share=0.8,
        slow_start=_SLOW_START,
        pair_share=0.82,
        mesh_share=1,
    ),
    "cdna": Generation(
        base=_protocols(5, 12, 9.98),
        hop=_protocols(0.2, 1, 3.88),
        ring_share=0.93,
        tree_share=0.7,
        ll_bandwidth=80 * GB,
        ll128_share=0.92,
        nvls_share=0.0,
        nvls_base=0.0,
        nvls_margin=1.0,
        p2p_channel=12 * GB,
        all_to_all_share=0.85,
        direct_base=(7.0 * US, 0.35 * US),
        slow_start=_SLOW_START,
        pair_share=1.07,  # one joint, 47.7 GB/s published
        net_ll128=False,
        ranks_by_time=True,
        mesh_share=1,
    ),
}


@dataclass(frozen=True, slots=True)
class Transport:
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
            the receiver, a CPU's work for each. The same on 4 to 512 nodes of one machine [M].
        ll128: whether LL128 is allowed: it needs 128-byte stores to arrive whole.
        tree_share: what trees keep of the NICs' bandwidth, two nodes; more than two.
        tuned: whether the transport's plugin brings a tuner, which then ranks algorithms by their times.
        misjudged: most that the library's formula has been seen to lose by its choice, as a factor: an LL ring kept for
            too long. What it would lose beyond that, somebody notices and forbids.
    """

    inject: float
    inject_cost: float
    eager: float
    step: Mapping[tuple[str, str], float]
    chunk: float
    chunk_trips: float
    spread: float
    ll_bandwidth: float
    ll_hop_bandwidth: float
    ll128: bool
    bulk: tuple[tuple[float, float], ...] = ()
    tree_share: tuple[float, float] = (1.0, 0.95)
    tuned: bool = False
    misjudged: float = 4.0


TRANSPORTS: Mapping[str, Transport] = {
    "verbs": Transport(
        inject=float("inf"),
        inject_cost=0.0,
        eager=float("inf"),
        step={
            ("tree", "ll"): 1.46 * US,
            ("tree", "ll128"): 5 * US,
            ("tree", "simple"): 10.5 * US,
            ("ring", "ll"): 0.0,
            ("ring", "ll128"): 5.57 * US,
            ("ring", "simple"): 10.5 * US,
        },
        chunk=0.5 * US,
        chunk_trips=0.0,
        spread=0.02,
        ll_bandwidth=2.8 * GB,
        ll_hop_bandwidth=12.4 * GB,
        ll128=True,
        tree_share=(1, 0.95),
    ),
    "libfabric": Transport(
        inject=128,
        inject_cost=1.5 * US,
        eager=4 * KIB,
        step={
            ("tree", "ll"): 0.805 * US,
            ("tree", "ll128"): 4 * US,
            ("tree", "simple"): 10.5 * US,
            ("ring", "ll"): 0.0,
            ("ring", "ll128"): 4 * US,
            ("ring", "simple"): 5.68 * US,
        },
        chunk=0.0,
        chunk_trips=0.581,
        spread=0.0343,
        ll_bandwidth=1.39 * GB,
        ll_hop_bandwidth=8.95 * GB,
        ll128=False,
        bulk=((128 * KIB, 68 * US), (256 * KIB, 44 * US)),
        misjudged=8.0,
        tree_share=(1, 0.884),
    ),
}
# What is known of sockets and of AWS's plugin agrees with libfabric on Slingshot, but for the latter's slow bulk messages.
_PLUGIN = replace(TRANSPORTS["libfabric"], bulk=(), tuned=True)
TRANSPORTS = {**TRANSPORTS, "efa": _PLUGIN, "tcp": _PLUGIN}


@dataclass(frozen=True, slots=True)
class Library:
    """What the library does the same everywhere [M].

    Attributes:
        nvls_relay: what an in-switch reduction keeps that passes its sums on to a tree.
        node_chunk: what a chunk of a tree inside one node adds, seconds.
        node_tree_ll, node_tree_ll128: what protocols keep of such a tree.
        peer: of each further peer in an all-to-all, whose sends and receives take turns, seconds.
        launched_early: of a collective's start that a plain send or receive does not have, seconds.
        incast: all-to-all: share of the NICs' bandwidth left at each doubling of nodes.
        across: send and receive: what one rank's flow keeps of its NIC.
        net_channel: one channel over the network, a proxy and a queue pair, bytes/s.
        host_gap: between two kernels of one stream, seconds.
        host_serial: share of one process's launches that a loop of calls does not hide.
    """

    nvls_relay: float = 0.9
    node_chunk: float = 2.0 * US
    node_tree_ll: float = 1 / 1.9
    node_tree_ll128: float = 0.85
    peer: float = 1.5 * US
    launched_early: float = 4.37 * US
    incast: float = 0.982
    across: float = 0.939
    net_channel: float = 25 * GB
    host_gap: float = 1.0 * US
    host_serial: float = 0.4


LIBRARY = {"library": Library()}  # one row, so that a fit replaces it as it does the rows of the other tables

# Selection: the library ranks candidates with a formula of its own [N], which is not what they take.
# (lat + steps) in seconds; LL, LL128, Simple.
RANK_BASE = {
    ("tree", "ll"): 6.8 * US,
    ("tree", "ll128"): 14.0 * US,
    ("tree", "simple"): 8.4 * US,
    ("ring", "ll"): 6.6 * US,
    ("ring", "ll128"): 14.0 * US,
    ("ring", "simple"): 8.4 * US,
}
RANK_INTRA = {
    ("tree", "ll"): 0.6 * US,
    ("tree", "ll128"): 1.25 * US,
    ("tree", "simple"): 4.0 * US,
    ("ring", "ll"): 0.6 * US,
    ("ring", "ll128"): 1.9 * US,
    ("ring", "simple"): 3.4 * US,
}
RANK_INTER = {
    ("tree", "ll"): 5.0 * US,
    ("tree", "ll128"): 8.5 * US,
    ("tree", "simple"): 14.0 * US,
    ("ring", "ll"): 2.7 * US,
    ("ring", "ll128"): 4.0 * US,
    ("ring", "simple"): 14.0 * US,
}
RANK_NVLS = 25.0 * US
RANK_NVLS_TREE_INTER = 20.9 * US
RANK_OVERHEAD = 1.0 * US  # network overhead that a step inside a node also meets; three times that for Simple
RANK_NET_CHANNEL = 24 * GB  # what one channel carries between nodes
RANK_PLATEAU = 1.4  # rings of several nodes with enough bytes per channel and rank
# Cap of LL's bus bandwidth by nodes (1, 2, more); of several nodes [N] takes the row of the CPU, here AMD's.
RANK_LL_MAX = {
    "ampere": (87.7 * GB, 22.5 * GB, 19 * GB),
    "hopper": (141 * GB, 22.5 * GB, 19 * GB),
    "blackwell": (282 * GB, 22.5 * GB, 19 * GB),
    "cdna": (87.7 * GB, 22.5 * GB, 19 * GB),
}
RANK_LL_TREE = (
    0.63  # the caps are averages of rings and trees; what is left of them for trees of more than two nodes [M]
)
RANK_TREE_CHANNEL = {  # cap of a tree's bus bandwidth per channel, by nodes (1, 2, more)
    "ampere": (24.0 * GB, 23.6 * GB, 17.8 * GB),
    "hopper": (38.7 * GB, 41.4 * GB, 36.0 * GB),
    "blackwell": (70.0 * GB, 42.8 * GB, 24.0 * GB),
    "cdna": (24.0 * GB, 23.6 * GB, 17.8 * GB),
}
# What trees reach of their bandwidth at 64 B, 128 B, ... by protocol.
RANK_TREE_CORRECTION = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}
