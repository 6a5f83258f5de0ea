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

from kernbench.collective_kinds import KINDS
from kernbench.cost import collective_models as models
from kernbench.cost.collective_world import CollectiveWorld


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
    def of(
        cls, world: CollectiveWorld, algorithm: str, protocol: str, collective: str, nbytes: float, chunks: int = 1
    ) -> ProtocolCosts:
        """The costs of what :func:`kernbench.cost.selection.choose` names, for a collective of ``nbytes`` that a pipeline
        cuts into ``chunks``."""
        generation, transport = world.generation, world.transport
        size = np.array([float(nbytes)])
        if protocol == "direct":
            rate = world.direct
            sync = generation.direct_sync / 2 if algorithm == "two_shot" else 0.0
            return cls(float(models.one_shot(world, 0 * size)[0]), rate, rate, sync, sync, rate)
        if protocol == "multicast":
            switch = float(models.nvls_bandwidth(world)) * (world.local - 1) / world.local * (1 + 1 / chunks)
            return cls(float(models.multimem(world, 0 * size)[0]), world.link, world.link, 0.0, 0.0, switch)
        inside = models.inside_bandwidth(world) if world.local > 1 else world.net
        outside = world.net or inside
        hop = world.hop(protocol)
        base = generation.base[protocol]
        if algorithm in ("p2p", "copy"):
            timed = KINDS[collective].timed_as if algorithm == "p2p" else "sendrecv"
            start = models.time_of(world, timed, "p2p", protocol, 0 * size)
            hop = max(float(start[0]) - base, 0.0)
            if world.local > 1:
                inside = world.link * generation.all_to_all_share / float(models.slow_start(world, size, "p2p")[0])
            return cls(base, inside, outside, hop, hop, inside)
        step = "tree" if algorithm in ("tree", "nvls_tree") else "ring"
        net_hop = world.net_hop(step, protocol) if world.nodes > 1 else hop
        if step == "tree" and world.nodes > 1:
            outside *= transport.tree_share[world.nodes > 2]
        if algorithm in ("nvls", "nvls_tree"):
            # up and down overlap but for the first chunk up and the last one down
            algbw = float(models.nvls_bandwidth(world)) / float(models.slow_start(world, size, "nvls")[0])
            switch = algbw * (world.local - 1) / world.local * (1 + 1 / chunks)
            flight = world.flight / 2
            return cls(generation.nvls_base, inside, outside, flight, net_hop, switch)
        if algorithm == "tree":
            inside *= generation.tree_share
        elif protocol == "simple":
            kind = models.start_of_rings(
                world, 2 if collective == "all_reduce" else 1, world.nodes == 1 or outside >= inside
            )
            slower = float(models.slow_start(world, size, kind)[0])
            inside, outside = inside / slower, outside / slower
        if protocol == "ll":
            inside = min(inside / 2, generation.ll_bandwidth)
            outside = min(outside / 2, transport.ll_bandwidth if step == "ring" else transport.ll_hop_bandwidth)
        elif protocol == "ll128":
            inside, outside = inside * generation.ll128_share, outside * 120 / 128
        return cls(base, inside, outside, hop, net_hop, inside)
