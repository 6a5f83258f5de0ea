"""Which algorithm and protocol the library takes, by size, ranks, nodes and system: as NCCL ranks them.

NCCL does not compare times; it compares the values of a formula, ``latency + size / bandwidth``, whose constants are
in its source ([N] of :mod:`collective_constants`). Ranking with that formula and timing with the models keeps its
wrong choices, which measurements show as humps.
"""

from __future__ import annotations

import numpy as np

from kernbench.collective_kinds import TIMED
from kernbench.cost import collective_constants as table
from kernbench.cost.collective_models import nvls_bandwidth, ring_bandwidth, time_of
from kernbench.cost.collective_world import CollectiveWorld
from kernbench.cost.estimate import Floats

Candidate = tuple[str, str]


def candidates(world: CollectiveWorld, collective: str) -> list[Candidate]:
    """What the library could run here."""
    if not TIMED[collective].laps:
        return [("p2p", "simple")]
    ll128 = world.nodes == 1 or (world.transport.ll128 and world.generation.net_ll128)
    protocols = ["ll", "ll128", "simple"] if ll128 else ["ll", "simple"]
    found: list[Candidate] = [("ring", protocol) for protocol in protocols]
    if collective != "all_reduce":
        return found
    if world.ranks > 2 or world.nodes > 1:
        found += [("tree", protocol) for protocol in protocols]
    if world.multicast and world.generation.nvls_share and world.local > 1:
        if world.nodes > 1:
            found.append(("nvls_tree", "simple"))
        elif world.local > 2:
            found.append(("nvls", "simple"))
    return found


def direct_candidates(world: CollectiveWorld, collective: str) -> list[Candidate]:
    """Kernels of serving frameworks that read the peers' buffers, or their sum from a switch; only used by name: the library
    has none of them."""
    if collective != "all_reduce" or world.nodes > 1 or world.local < 2:
        return []
    found: list[Candidate] = [("one_shot", "direct"), ("two_shot", "direct")]
    return [*found, ("multimem", "multicast")] if world.multicast and world.generation.nvls_share else found


def rank_value(world: CollectiveWorld, collective: str, candidate: Candidate, size: Floats) -> Floats:
    """NCCL's value of a candidate, in seconds."""
    algorithm, protocol = candidate
    if protocol == "direct" or world.generation.ranks_by_time or (world.nodes > 1 and world.transport.tuned):
        return time_of(world, collective, algorithm, protocol, size)
    scale = min(world.nodes, 3) - 1
    intra = table.RANK_INTRA.get(candidate, 0.0)
    inter = table.RANK_INTER.get(candidate, 0.0)
    if world.nodes > 1:
        intra = max(intra, table.RANK_OVERHEAD * (3 if protocol == "simple" else 1))
    bus = ring_bandwidth(world)
    ll_max = world.generation.rank_ll_max[scale]
    if algorithm in ("nvls", "nvls_tree"):
        return _rank_nvls(world, size)
    if algorithm == "ring":
        kind = TIMED[collective]
        laps = kind.laps
        steps, between = laps * (world.ranks - 1), laps * (world.nodes - 1)
        bus = min(ll_max, bus / 2) if protocol == "ll" else bus * (0.92 if protocol == "ll128" else 1.0)
        latency = table.RANK_BASE[candidate] + (steps - between) * intra + between * inter
        value = np.full_like(size, latency)
        if protocol == "simple" and world.nodes > 1:
            value = np.where(size / (world.net_channels * world.ranks) >= 64, latency * table.RANK_PLATEAU, latency)
        return value + size * kind.bus_factor(world.ranks) / bus
    channels = max(world.nics, np.round(world.net / table.RANK_NET_CHANNEL)) if world.nodes > 1 else 24
    if world.nodes > 1:
        # [N] takes the bandwidth inside a node for two nodes, up to two channels' worth per NIC, and for more what its
        # search finds between nodes, for a tree the next lower speed of its list.
        inside = world.link * world.generation.ring_share if world.local > 1 else np.inf
        bus = min(2 * world.net, inside) if world.nodes == 2 else 0.75 * world.net
    bus = min(0.92 * bus, channels * world.generation.rank_tree_channel[scale])
    if protocol == "ll":
        bus = min(bus / 3.8, ll_max * (table.RANK_LL_TREE if world.nodes > 2 else 1.0))
    elif protocol == "ll128":
        bus *= 7 / 9
    latency = table.RANK_BASE[candidate] + 2 * ((world.local - 1) * intra + np.log2(world.nodes) * inter)
    return latency + size / (bus / 2 * tree_correction(protocol, size))


def tree_correction(protocol: str, size: Floats) -> Floats:
    """NCCL's factor for trees at each size."""
    index = np.floor(np.log2(np.maximum(size, 64) / 64)).astype(int)
    return np.asarray((*table.RANK_TREE_CORRECTION[protocol], 1.0))[np.minimum(index, 24)]


def _rank_nvls(world: CollectiveWorld, size: Floats) -> Floats:
    algbw = nvls_bandwidth(world) / world.generation.nvls_margin
    if world.nodes == 1:
        return table.RANK_NVLS + size / algbw
    latency = table.RANK_NVLS + 2 * np.log2(world.nodes) * table.RANK_NVLS_TREE_INTER
    net = 0.76 * world.net / (1 if world.nodes == 2 else 2)
    return latency + size / (min(algbw, net) * tree_correction("simple", size))
