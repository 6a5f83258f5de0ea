"""Figures that follow from a description: what the parts amount to together, and what no program can exceed.

All are payload figures of one direction, SI units. Bounds assume that nothing but the links limits (no protocol, no
kernel, no memory), so that a measured busbw is at most its bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.topology.graph import Topology
from kernbench.topology.node import LocalLink
from kernbench.topology.system import GRID_TOPOLOGIES


@dataclass(frozen=True)
class SystemFigures:
    """Derived figures of one topology. None where there is nothing of the kind (one SIP, one node)."""

    sips: int
    """SIPs of all nodes."""
    pes: int
    """PEs of all nodes."""
    matrix_peak: dict[str, float]
    """Dense matrix FLOP/s of one SIP by number format."""
    hbm_size: int
    """Device memory of all SIPs, bytes."""
    hbm_bandwidth: float
    """Pin bandwidth of all SIPs, bytes/s."""
    hbm_copy_bandwidth: float
    """What a copy reaches on one SIP, bytes/s, read and written bytes together."""
    machine_balance: float
    """FLOP of bf16 per byte of HBM traffic at which one SIP turns from memory-bound to compute-bound."""
    injection_bandwidth: float | None
    """What the least connected SIP can send to the other SIPs of its node, bytes/s."""
    node_bandwidth: float | None
    """What one node can send to the others, all NICs together, bytes/s."""
    bisection_bandwidth: float | None
    """Least bandwidth between two halves of the SIPs, bytes/s (see :func:`bisection_bandwidth`)."""
    one_ring_busbw: float | None
    """Bound of all-reduce busbw for a single ring in rank order, bytes/s: its slowest hop."""
    ring_busbw: float | None
    """Bound of all-reduce busbw for rings over every link at once, bytes/s."""
    allreduce_busbw: float | None
    """Bound of all-reduce busbw for any algorithm without reduction in the switch, bytes/s."""
    nearest_latency: float | None
    """Latency of the shortest route between two SIPs, seconds."""
    worst_latency: float | None
    """Latency of the longest route between two SIPs, seconds."""
    most_links: int | None
    """Links of the longest route."""


def system_figures(topology: Topology) -> SystemFigures:
    """The derived figures of a topology."""
    device, count = topology.device, topology.sip_count
    routes = [topology.route(src, dst) for src, dst in _representative_pairs(topology)]
    ring = [topology.route(sip, (sip + 1) % count) for sip in _ring_starts(topology)]
    injection, node = _injection(topology), _node_bandwidth(topology)
    bounds = [bound for bound in (injection, node) if bound is not None]
    joined = count > 1
    return SystemFigures(
        sips=count,
        pes=count * device.pes,
        matrix_peak=device.matrix.known(),
        hbm_size=count * device.hbm.size,
        hbm_bandwidth=count * device.hbm.bandwidth,
        hbm_copy_bandwidth=device.hbm_copy_bandwidth,
        machine_balance=device.matrix_rate("bf16") / device.hbm_copy_bandwidth,
        injection_bandwidth=injection,
        node_bandwidth=node,
        bisection_bandwidth=bisection_bandwidth(topology),
        one_ring_busbw=min(route.bandwidth for route in ring) if joined else None,
        ring_busbw=min(bounds, default=None),
        allreduce_busbw=_allreduce_bound(topology, injection, node),
        nearest_latency=min((route.latency for route in routes), default=None),
        worst_latency=max((route.latency for route in routes), default=None),
        most_links=max((len(route.links) for route in routes), default=None),
    )


def bisection_bandwidth(topology: Topology) -> float | None:
    """Least bandwidth, one direction, between two halves of the SIPs, bytes/s; None for a single SIP.

    With several nodes the halves are whole nodes. Within a node, rings, meshes and tori are cut straight between
    columns or rows, as near the middle as possible; a full graph and a switch may be cut anywhere.
    """
    if topology.nodes > 1:
        per_node = _node_bandwidth(topology) or 0.0
        return topology.nodes // 2 * per_node
    count, sips = topology.sips_per_node, topology.system.sips
    if count == 1:
        return None
    half = count // 2
    links = topology.node_links
    within = [link.bandwidth for link in links if link.kind == "egress"]
    through = half * min(within, default=math.inf)
    if sips.topology == "switch":
        backplane = [link.bandwidth for link in links if link.kind == "switch"]
        port = min(link.bandwidth for link in links if link.kind == "sip")
        return min(half * port, *backplane, through)
    w, h = (sips.w or 0, sips.h or 0) if sips.topology in GRID_TOPOLOGIES else (count, 1)
    halves = [
        {y * w + x for y in range(h) for x in range(w // 2)},
        {y * w + x for y in range(h // 2) for x in range(w)},
    ]
    return min(through, *(_cut(links, side) for side in halves if side))


def _cut(links: list[LocalLink], side: set[int]) -> float:
    """Bandwidth of the SIP-to-SIP links that lead out of ``side``."""
    return sum(
        link.bandwidth
        for link in links
        if link.kind == "sip" and link.src.number in side and link.dst.number not in side
    )


def _injection(topology: Topology) -> float | None:
    """Bandwidth of the outgoing joints of the least connected SIP, no more than its egress."""
    if topology.sips_per_node == 1:
        return None
    out = [0.0] * topology.sips_per_node
    egress = math.inf
    for link in topology.node_links:
        if link.kind == "sip" and link.src.role in ("sip", "io"):
            out[link.src.number] += link.bandwidth
        elif link.kind == "egress":
            egress = min(egress, link.bandwidth)
    return min(egress, *out)


def _node_bandwidth(topology: Topology) -> float | None:
    if topology.nodes == 1:
        return None
    return sum(link.bandwidth for link in topology.node_links if link.kind == "nic" and link.src.role == "nic")


def _allreduce_bound(topology: Topology, injection: float | None, node: float | None) -> float | None:
    """Each SIP has to send 2 (n-1)/n of the data, which is what busbw counts; each of N nodes only 2 (N-1)/N of it."""
    bounds = [] if injection is None else [injection]
    if node is not None:
        ranks, nodes = topology.sip_count, topology.nodes
        bounds.append(node * ((ranks - 1) / ranks) / ((nodes - 1) / nodes))
    return min(bounds, default=None)


def _representative_pairs(topology: Topology) -> list[tuple[int, int]]:
    """Pairs of SIPs that show every kind of route: all within node 0, and all from node 0 to node 1."""
    near = topology.sips_of(0)
    pairs = [(src, dst) for src in near for dst in near if src != dst]
    if topology.nodes > 1:
        pairs += [(src, dst) for src in near for dst in topology.sips_of(1)]
    return pairs


def _ring_starts(topology: Topology) -> range:
    """Where the hops of a ring in rank order start that differ from each other: node 0, whose last hop leaves it."""
    return topology.sips_of(0)
