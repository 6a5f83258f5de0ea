"""Links for a report: what each carried over time, the graph that they make, and bandwidths beside their limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology
from kernbench.trace.bus_bandwidth import bus_bandwidths
from kernbench.trace.link_traffic import LinkTraffic, link_traffic

MOST_LINKS = 384
"""Links whose traffic is shown: those that carried most."""
MOST_NODES = 4
"""Nodes that are drawn."""
MOST_BANDWIDTHS = 400
"""Collectives, by members and size, whose bandwidth is shown: those that took most time."""


@dataclass(frozen=True)
class ShownLinks:
    """Attributes:
    header: the facts on links and bandwidths, as JSON.
    nbytes: ``[links, bins]`` bytes that each shown link carried.
    """

    header: Mapping[str, Any]
    nbytes: np.ndarray[Any, np.dtype[np.int64]]


def links_of(engine: GraphEngine, seconds: float) -> ShownLinks:
    """The links of a run of so many virtual ``seconds``, and the bandwidth of its collectives."""
    topology, traffic = engine.topology, link_traffic(engine, seconds)
    totals = traffic.nbytes.sum(axis=1)
    order = np.argsort(-totals, kind="stable")[:MOST_LINKS]
    shown = [topology.links[index] for index in traffic.links[order].tolist()]
    graph = _graph(topology, _nodes(topology, traffic)) if shown else {}
    bandwidths = bus_bandwidths(engine)
    header = {
        "width": traffic.width,
        "links": [(link.name, link.kind, link.bandwidth) for link in shown],
        "left_out": len(totals) - len(shown),
        "coarse": traffic.coarse,
        "graph": graph,
        "bandwidths": [asdict(each) for each in bandwidths[:MOST_BANDWIDTHS]],
    }
    return ShownLinks(header, np.rint(traffic.nbytes[order]).astype(np.int64))


def _nodes(topology: Topology, traffic: LinkTraffic) -> Sequence[int]:
    """The first nodes that carried anything."""
    stride = len(topology.node_links)
    return sorted({index // stride for index in traffic.links.tolist()})[:MOST_NODES]


def _graph(topology: Topology, nodes: Sequence[int]) -> dict[str, Any]:
    """The points of some nodes, with places, and what joins them: the links by name, and which NIC a SIP uses."""
    stride = len(topology.node_links)
    links = [topology.links[node * stride + number] for node in nodes for number in range(stride)]
    joined = [link for link in links if link.kind in ("sip", "switch", "nic")]
    across = len(nodes) > 1 or any(link.kind == "nic" for link in joined)
    places: dict[str, tuple[float, float]] = {}
    width = 0.0
    for column, node in enumerate(nodes):
        inside = _places(topology, node)
        width = max(x for x, _ in inside.values()) + 1.5
        places |= {name: (x + column * width, y) for name, (x, y) in inside.items()}
    edges = [(_point(link.src), _point(link.dst), link.name) for link in joined]
    if across:
        low = max(y for _, y in places.values()) + 1
        places["fabric"] = ((len(nodes) * width - 1.5) / 2, low)
        edges += _nics_of(topology, nodes)
    return {
        "points": [(name, x, y) for name, (x, y) in places.items()],
        "edges": [edge for edge in edges if edge[0] in places and edge[1] in places and edge[0] != edge[1]],
        "nodes": len(nodes), "of_nodes": topology.nodes,
    }  # fmt: skip


def _nics_of(topology: Topology, nodes: Sequence[int]) -> Iterator[tuple[str, str, str]]:
    """Which NIC each SIP's routes to other nodes take: no link of the description."""
    stride = len(topology.node_links)
    for node in nodes if topology.nodes > 1 else ():
        other = topology.sips_of((node + 1) % topology.nodes)[0]
        for sip in topology.sips_of(node):
            route = [topology.links[at] for at in topology.route(sip, other).links if at // stride == node]
            yield from ((f"sip{sip}", link.src, "") for link in route if link.kind == "nic")


def _places(topology: Topology, node: int) -> dict[str, tuple[float, float]]:
    """Where the points of a node are drawn, in units of the distance of two SIPs."""
    sips, spec = list(topology.sips_of(node)), topology.system.sips
    count = len(sips)
    if spec.topology == "switch":
        row = min(count, 18)
        places = {f"sip{sip}": (float(at % row), float(at // row)) for at, sip in enumerate(sips)}
    elif spec.w and spec.h:
        places = {f"sip{sip}": (float(at % spec.w), float(at // spec.w)) for at, sip in enumerate(sips)}
    else:
        radius = max(count / 5, 0.8)
        turns = [2 * math.pi * at / count for at in range(count)]
        places = {f"sip{sip}": (radius * (1 + math.sin(turn)), radius * (1 - math.cos(turn)))
                  for sip, turn in zip(sips, turns, strict=True)}  # fmt: skip
    wide = max(x for x, _ in places.values())
    stride = len(topology.node_links)
    points = [_point(end) for at in range(stride) for link in (topology.links[node * stride + at],)
              if link.kind in ("sip", "switch", "nic") for end in (link.src, link.dst)]  # fmt: skip
    for role in ("switch", "nic"):
        names = [name for name in dict.fromkeys(points) if name.startswith(role)]
        low = max(y for _, y in places.values()) + 1.2
        for at, name in enumerate(names):
            places[name] = (
                wide * (at + 0.5) / len(names) if len(names) < count else wide * at / max(len(names) - 1, 1),
                low,
            )
    return places


def _point(vertex: str) -> str:
    """A SIP's IO die is drawn as the SIP, both sides of a switch as one."""
    return vertex.partition(".")[0]
