"""What each algorithm takes on the device, in closed form, for an array of sizes.

A schedule of messages costs its critical path of hops, the fill of its pipeline, and the bytes over the narrowest link
(ADR 0030 derives the equations; ``S`` is nccl-tests' size). All times in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.collective_kinds import TIMED
from kernbench.cost.collective_constants import KIB, LIBRARY, MIB, Library
from kernbench.cost.collective_world import CollectiveWorld
from kernbench.cost.estimate import Floats

_SLOT = 512 * KIB  # of a channel's buffer: 4 MiB in eight steps
_LL128_SLOT = 120 * KIB
_LL128_DATA = 120 / 128  # a flag of eight bytes in each line of 128
_LINE_FRACTION = 2.0  # LL puts a flag beside each four bytes of data

_NODE_CHANNELS = 24  # that trees of one node use
_NET_TREE_LL = 1 / 3.8  # what LL keeps of a tree between nodes, as NCCL has it


def library() -> Library:
    """The library's own constants."""
    return LIBRARY["library"]


def slow_start(world: CollectiveWorld, size: Floats, kind: str) -> Floats:
    """Factor by which transfers of ``size`` fall behind the bandwidth of very large ones."""
    loss, half = world.generation.slow_start[kind]
    return 1.0 + loss / (1.0 + size / half)


def start_of_rings(world: CollectiveWorld, laps: int, inside: bool) -> str:
    """The row of ``slow_start`` for rings that go round so often: of one node (``inside``), of two ranks, or over NICs."""
    if not inside:
        return "net"
    if world.ranks == 2 and "pair" in world.generation.slow_start:
        return "pair"
    return "ring" if laps == 2 else "gather"


def inside_bandwidth(world: CollectiveWorld) -> float:
    """Bus bandwidth that the joints of a node give to rings with the Simple protocol; infinite for one rank a node."""
    if world.local == 1:
        return np.inf
    generation = world.generation
    inside = world.link * generation.ring_share * (1.0 if world.switched else generation.mesh_share)
    if world.ranks == 2:
        inside *= generation.pair_share
    if world.nodes > 1 and not world.switched:
        # On direct joints a ring of one node closes; chains that leave the node do not, and use the joints left over.
        inside *= world.local / (world.local - 1)
    return inside


def ring_bandwidth(world: CollectiveWorld) -> float:
    """Bus bandwidth of rings with the Simple protocol: the joints of a node, or the NICs that all rings cross."""
    return min(inside_bandwidth(world), world.net) if world.nodes > 1 else inside_bandwidth(world)


def ring(world: CollectiveWorld, collective: str, protocol: str, size: Floats) -> Floats:
    """Rings over all channels: every rank passes chunks on to its neighbour."""
    generation, kind = world.generation, TIMED[collective]
    laps = kind.laps
    steps = laps * (world.ranks - 1)
    between = laps * (world.nodes - 1) if world.nodes > 1 else 0
    latency = (steps - between) * world.hop(protocol)
    if between:
        latency += between * world.net_hop("ring", protocol)
    bandwidth = ring_bandwidth(world)
    volume = kind.bus_factor(world.ranks)
    if protocol == "ll":
        bandwidth = min(bandwidth / _LINE_FRACTION, generation.ll_bandwidth)
        if world.nodes > 1:
            bandwidth = min(bandwidth, world.transport.ll_bandwidth)
    elif protocol == "ll128":
        bandwidth = min(inside_bandwidth(world) * generation.ll128_share, _LL128_DATA * (world.net or np.inf))
    moved = size * volume / bandwidth
    if protocol == "simple":
        inside = bandwidth < world.net or world.nodes == 1
        moved = moved * slow_start(world, size, start_of_rings(world, laps, inside))
        if between:
            moved = np.maximum(moved, steps * bulk_step(world, size / world.ranks / world.net_channels) - latency)
    return generation.base[protocol] + latency + moved


def bulk_step(world: CollectiveWorld, message: Floats) -> Floats:
    """Least time of one step of a ring between nodes whose channels send messages of that size."""
    least = np.zeros_like(message)
    for size, seconds in world.transport.bulk:
        least = np.where(message >= size, seconds, least)
    return least


def tree(world: CollectiveWorld, protocol: str, size: Floats) -> Floats:
    """Double binary tree of all-reduce: chains inside nodes, binary trees between them, reduce up, broadcast down."""
    generation, transport = world.generation, world.transport
    inner = 2 * (world.local - 1)
    outer = 2 * np.log2(world.nodes)
    latency = generation.base[protocol] + inner * world.hop(protocol)
    inside = world.link * generation.ring_share * generation.tree_share if world.local > 1 else np.inf
    algbw = inside / 2
    if world.nodes == 1:
        if protocol == "ll":
            return latency + size / min(algbw * library().node_tree_ll, generation.ll_bandwidth / 2)
        if protocol == "ll128":
            return latency + size / (algbw * library().node_tree_ll128)
        chunk = tree_chunk(world, size, channels=_NODE_CHANNELS)
        chunks = size / (_NODE_CHANNELS * chunk)
        return latency + inner * chunk * _NODE_CHANNELS / (2 * algbw) + chunks * library().node_chunk + size / algbw
    hop: Any = world.net_hop("tree", protocol)
    # Each node sends S up and receives S; with more than two nodes the inner ones also pass S down.
    net = world.net * transport.tree_share[world.nodes > 2] / (1 if world.nodes == 2 else 2)
    algbw = min(algbw, net)
    if protocol == "ll":
        message = size * _LINE_FRACTION
        hop = hop + np.where(message > transport.inject, transport.inject_cost, 0.0)
        # Beyond eight eager messages a slot takes more than one, and asks again before the first has arrived.
        asks = (message > transport.eager) + 0.67 * (message >= 8 * transport.eager)
        hop = hop + asks * 2 * world.net_latency + size / transport.ll_hop_bandwidth
        return latency + outer * hop + size / (algbw * _NET_TREE_LL)
    channels = world.net_channels
    if protocol == "ll128":
        fill = outer * np.minimum(size, channels * _LL128_SLOT) / world.net
        return latency + outer * hop + fill + size / (algbw * generation.ll128_share)
    chunk = tree_chunk(world, size, channels=channels)
    chunks = size / (channels * chunk)
    fill = outer * chunk * channels / world.net
    ask = np.where(size > channels * transport.eager, world.net_latency, 0.0)
    turn = transport.chunk + transport.chunk_trips * world.net_latency
    waiting = chunks * turn * (0.3 + np.log2(world.nodes))
    return latency + outer * (hop + ask) + fill + waiting + size / algbw


def tree_chunk(world: CollectiveWorld, size: Floats, *, channels: float) -> Floats:
    """Bytes of one chunk of a Simple tree: halved until the pipeline is several times as long as the tree is deep."""
    depth = world.local - 1 + np.log2(world.nodes)
    share = size / channels
    chunk = np.full_like(share, _SLOT)
    for least, multiple in ((128 * KIB, 8), (64 * KIB, 4), (32 * KIB, 1)):
        for _ in range(4):
            chunk = np.where((share / chunk < depth * multiple) & (chunk > least), chunk / 2, chunk)
    return chunk


def nvls_bandwidth(world: CollectiveWorld) -> float:
    """Algorithm bandwidth of an all-reduce in the switch of one node; large domains keep less."""
    n = world.local
    large = (8 / max(n, 8)) ** 0.08
    return world.link * world.generation.nvls_share * large * (n - 0.5) / n


def nvls(world: CollectiveWorld, size: Floats) -> Floats:
    """All-reduce in the switch: each GPU sends its data once and receives the sum once."""
    generation = world.generation
    algbw = nvls_bandwidth(world)
    return generation.nvls_base + size / algbw * slow_start(world, size, "nvls")


def one_shot(world: CollectiveWorld, size: Floats) -> Floats:
    """All-reduce in which every rank reads all of every peer's buffer."""
    return _direct_start(world) + size * (world.local - 1) / world.direct


def two_shot(world: CollectiveWorld, size: Floats) -> Floats:
    """All-reduce in which every rank sums its part of all buffers, and then reads the other parts."""
    moved = size * 2 * (world.local - 1) / world.local
    return _direct_start(world) + world.generation.direct_sync + moved / world.direct


def multimem(world: CollectiveWorld, size: Floats) -> Floats:
    """All-reduce by ``multimem`` instructions of one kernel: every rank reads the sum of its part from the switch, and writes
    it to all buffers through the switch."""
    return _direct_start(world) + size / nvls_bandwidth(world)


def _direct_start(world: CollectiveWorld) -> float:
    base, peer = world.generation.direct_base
    return base + peer * (world.local - 1)


def nvls_tree(world: CollectiveWorld, size: Floats) -> Floats:
    """All-reduce in each node's switch, trees between the nodes over all NICs."""
    generation = world.generation
    inside = nvls_bandwidth(world)
    share = world.transport.tree_share[world.nodes > 2]
    net = world.net * share / (1 if world.nodes == 2 else 2)
    outer = 2 * np.log2(world.nodes)
    latency = generation.nvls_base + outer * world.net_hop("tree", "simple")
    return latency + size / min(library().nvls_relay * inside, net) * slow_start(world, size, "net")


def all_to_all(world: CollectiveWorld, size: Floats) -> Floats:
    """Every rank sends ``S / n`` to each of the others; direct, all peers at once."""
    generation, n = world.generation, world.ranks
    latency = generation.base["simple"] + 2 * world.hop("simple") + (world.local - 1) * library().peer
    inside = size * (world.local - 1) / n / (world.link * generation.all_to_all_share) if world.local > 1 else 0 * size
    inside = inside * slow_start(world, size, "p2p")
    if world.nodes == 1:
        return latency + inside
    # The ranks of a node send to the same peers in turn, and meet other senders at the receiving NIC.
    net = world.net / world.local * library().incast ** np.log2(world.nodes)
    outside = size * (n - world.local) / n / net
    return (
        latency + 2 * world.net_hop("ring", "simple") + (world.nodes - 1) * library().peer + np.maximum(inside, outside)
    )


_P2P_PART = 16 * MIB  # bytes of one channel's part beyond which more channels are opened
_P2P_CHANNELS = 32


def send_recv(world: CollectiveWorld, size: Floats) -> Floats:
    """Every rank sends ``S`` to the next one and receives ``S`` from the one before."""
    generation, n = world.generation, world.ranks
    least = max(1, 2 ** int(np.log2(_P2P_CHANNELS / n))) if n <= _P2P_CHANNELS else 1
    channels = np.full_like(size, float(least))
    for _ in range(5):
        channels = np.where((size / channels > _P2P_PART) & (channels < _P2P_CHANNELS), channels * 2, channels)
    peak = (world.pair if not world.switched else world.link) * generation.ring_share
    inside = size / np.minimum(channels * generation.p2p_channel, peak) if world.local > 1 else 0 * size
    latency = generation.base["simple"] - library().launched_early + world.hop("simple")
    if world.nodes == 1:
        return latency + inside
    # One rank of each node sends across, over two channels as long as all ranks' fit four to a channel of the library
    # (ncclTopoGetNchannels of src/graph/paths.cc), else over one.
    share = world.net / world.nics * max(1.0, world.nics / world.local)
    peer_channels = 2 if 2 * n <= 4 * world.net_channels else 1
    across = min(library().across * share, peer_channels * library().net_channel)
    return latency + world.net_hop("ring", "simple") + np.maximum(inside, size / across)


def time_of(world: CollectiveWorld, collective: str, algorithm: str, protocol: str, size: Floats) -> Floats:
    """Device time of one algorithm and protocol, by their names."""
    if algorithm == "ring":
        return ring(world, collective, protocol, size)
    if algorithm == "tree":
        return tree(world, protocol, size)
    return _OTHER[collective if algorithm == "p2p" else algorithm](world, size)


_OTHER: dict[str, Callable[[CollectiveWorld, Floats], Floats]] = {
    "one_shot": one_shot,
    "two_shot": two_shot,
    "multimem": multimem,
    "nvls": nvls,
    "nvls_tree": nvls_tree,
    "all_to_all": all_to_all,
    "sendrecv": send_recv,
}
