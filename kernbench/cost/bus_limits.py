"""Limits of bus bandwidth: what the links of a system let a collective of some SIPs reach, whatever algorithm runs.

A set of members (one SIP, or those of one node) must send or receive a least number of bytes, which cross the links that lead
out of it; how many follows from what the collective is. busbw is nccl-tests' (size over time, times a factor), so that for most
collectives the limit is the bandwidth of the links themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.collective_kinds import KINDS
from kernbench.topology import Topology


def busbw_limit(topology: Topology, collective: str, sips: Sequence[int]) -> float | None:
    """Most busbw (bytes/s) of a collective of members on these ``sips``, by its name in :data:`KINDS`.

    None where no link is crossed, or nothing is known: one member, a barrier, SIPs that several members share. Nothing but the
    links limits: no protocol, no kernel, no memory. A SIP's links are those of its routes to other members. A switch that
    reduces halves what an all-reduce of one node sends. A root may be anywhere: the least connected member and node count.
    """
    members, kind = len(sips), KINDS[collective]
    if members < 2 or kind.runs_as or len(set(sips)) < members:
        return None
    by_node: dict[int, list[int]] = {}
    for sip in sips:
        by_node.setdefault(topology.node_of(sip), []).append(sip)
    sizes = sorted(by_node.values(), key=len)
    shown = [sizes[0], sizes[-1]] if len(sizes) > 1 else sizes[:1]  # nodes are alike but for how many members they have
    alone = [[sip] for node in {id(node): node for node in shown}.values() for sip in node]
    parts = [*alone, *(shown if len(by_node) > 1 else ())]
    if collective == "all_reduce":
        return _all_reduce_limit(topology, sips, alone, shown if len(by_node) > 1 else [], len(by_node))
    limits = []
    for part in parts:
        most = min(_cut(topology, part, sips, out=True), _cut(topology, part, sips, out=False))
        limits.append(most * _share(collective, members, len(part)))
    return min(limits)


def _all_reduce_limit(
    topology: Topology, sips: Sequence[int], alone: Sequence[Sequence[int]], nodes: Sequence[Sequence[int]], count: int
) -> float:
    """All together send 2 (n-1) times the size, of n members or nodes, which is 2 (n-1)/n each; with a switch that reduces, a
    member of its node sends it once."""
    members = len(sips)
    cuts = [_cut(topology, part, sips, out=True) for part in alone]
    if not nodes and topology.system.sips.reduces_in_switch:
        return min(cuts) * 2 * (members - 1) / members
    limit = sum(cuts) / len(cuts)
    if nodes:
        outside = [_cut(topology, part, sips, out=True) for part in nodes]
        limit = min(limit, sum(outside) / len(outside) * ((members - 1) / members) / ((count - 1) / count))
    return limit


def _share(collective: str, members: int, part: int) -> float:
    """busbw over bytes/s that cross the links of a ``part`` of the members, at least."""
    crossing = {  # bytes that cross, in units of nccl-tests' size
        "all_to_all": part * (members - part) / members,
        "broadcast": 1.0, "reduce": 1.0, "send": 1.0,
    }.get(collective, (members - part) / members)  # fmt: skip
    return KINDS[collective].bus_factor(members) / crossing


def _cut(topology: Topology, part: Sequence[int], sips: Sequence[int], *, out: bool) -> float:
    """Most bytes/s between a part of the members and the others: all routes cross one of the links at each of their places."""
    inside = set(part)
    others = [sip for sip in sips if sip not in inside]
    routes = [topology.route(*((one, other) if out else (other, one))).links for one in part for other in others]
    if not out:
        routes = [route[::-1] for route in routes]
    places = range(min(map(len, routes)))
    bandwidth = topology.link_bandwidth
    return float(min(sum(bandwidth[link] for link in {route[place] for route in routes}) for place in places))
