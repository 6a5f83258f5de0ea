"""What a transfer costs in the kernels of the vendor's library (NCCL, RCCL), by protocol.

A rank's channels work side by side, so a transfer is the channels' together. It holds its queue for its bytes over the
rate that the protocol leaves of the links, and what it brings is there a hop later:

    LL        flags beside every four bytes: half of the bandwidth, the shortest hop
    LL128     flags in every line of 128 bytes: 120/128 of the bandwidth and less of the store's rate, a short hop
    Simple    no flags in the data: all of the bandwidth; a hop synchronises and flushes

The figures are those of the closed forms (:mod:`kernbench.cost.collective_models`), one by one, so that the two fidelities
differ only in what a schedule makes of them (ADR 0036).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.ccl.ipcq import FloatArray
from kernbench.cost import collective_models as models
from kernbench.cost.collective_world import World


@dataclass(frozen=True)
class ProtocolCosts:
    """Costs of one protocol in one world.

    Attributes:
        base: start and end of the kernel, seconds; before anything is sent.
        inside: bytes/s that a rank sends to its peers in the node, all of them together.
        outside: bytes/s of a node's NICs, one direction.
        hop, net_hop: seconds from the last byte sent to the data being in place and seen, in a node and between nodes.
        switch: bytes/s of a link to or from a switch that reduces.
    """

    base: float
    inside: float
    outside: float
    hop: float
    net_hop: float
    switch: float

    @classmethod
    def of(cls, world: World, algorithm: str, protocol: str, collective: str, nbytes: float) -> ProtocolCosts:
        """The costs of what :func:`kernbench.cost.selection.choose` names, for a collective of ``nbytes``.

        Raises KeyError for algorithms and protocols that the library does not have.
        """
        generation = world.generation
        size = np.array([float(nbytes)])
        if protocol == "direct":
            base, peer = generation.direct_base
            rate = world.link * generation.direct_share
            sync = generation.direct_sync if algorithm == "two_shot" else 0.0
            return cls(base + peer * (world.local - 1), rate, world.net or rate, sync, sync, rate)
        inside = models.inside_bandwidth(world) if world.local > 1 else max(world.net, 1.0)
        outside = world.net or inside
        step = "tree" if algorithm in ("tree", "nvls_tree") else "ring"
        hop = world.hop(protocol)
        net_hop = world.net_hop(step, protocol) if world.nodes > 1 else hop
        if algorithm == "tree":
            share = world.transport.tree_share[world.nodes > 2] if world.nodes > 1 else 1.0
            inside, outside = inside * generation.tree_share, outside * share
        if protocol == "ll":
            inside = min(inside / 2, generation.ll_bandwidth)
            outside = min(outside / 2, world.transport.ll_bandwidth if algorithm == "ring" else outside)
        elif protocol == "ll128":
            inside, outside = inside * generation.ll128_share, outside * 120 / 128
        base, switch = generation.base[protocol], inside
        if algorithm in ("nvls", "nvls_tree"):
            base = generation.nvls_base
            hop = world.flight / 2
            switch = float(models.nvls_bandwidth(world)) / float(models.slow_start(world, size, "nvls")[0])
        elif algorithm == "ring" and protocol == "simple":
            kind = "net" if world.nodes > 1 and outside < inside else "ring" if collective == "all_reduce" else "gather"
            slower = float(models.slow_start(world, size, kind)[0])
            inside, outside = inside / slower, outside / slower
        elif algorithm == "p2p":
            inside = world.link * generation.all_to_all_share / float(models.slow_start(world, size, "p2p")[0])
        return cls(base, inside, outside, hop, net_hop, switch)

    def transfer(self, nbytes: FloatArray, rate: FloatArray, latency: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``(serial, latency)`` seconds of transfers at ``rate`` bytes/s that arrive ``latency`` seconds later."""
        return nbytes / rate, latency
