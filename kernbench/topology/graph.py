"""The graph that virtual time runs on: SIPs, links and the routes between them.

A system is one node repeated, so that a link or a route of node *k* is that of node 0 with its numbers shifted.
Nothing here grows with the number of nodes but the two arrays of link figures: a world of 4096 SIPs is built as fast
as one of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.errors import ConfigError
from kernbench.topology.cubes import CubeMesh
from kernbench.topology.device import DeviceSpec
from kernbench.topology.links import Direction, Link, LinkTable, Route
from kernbench.topology.node import LocalLink, NodePlan, Vertex
from kernbench.topology.system import SystemSpec
from kernbench.topology.units import BANDWIDTH, DURATION, MAX_NODES

_ROUTE_CACHE = 1 << 16  # routes kept; an all-to-all of 4096 SIPs has 256 times as many


class Topology:
    """A system of ``nodes`` equal nodes as a graph of directed links.

    SIPs, NICs, switches and hosts are numbered over all nodes: SIP ``s`` is SIP ``s % sips_per_node`` of node
    ``s // sips_per_node``. Immutable once built.
    """

    def __init__(
        self, system: SystemSpec, *, nodes: int | None = None, spec: Mapping[str, object] | None = None
    ) -> None:
        """``nodes``: instead of the system's own number; ``spec``: the mapping that the system was read from."""
        count = system.nodes if nodes is None else nodes
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_NODES:
            raise ConfigError(f"nodes is {count!r}; expected a whole number from 1 to {MAX_NODES}")
        self.system = system
        self.spec: Mapping[str, Any] = {"system": system.model_dump()} if spec is None else spec
        self.nodes = count
        self.sips_per_node = system.sips.count
        self.sip_count = count * system.sips.count
        """SIPs of all nodes."""
        self._plan = NodePlan(system, nodes=count)
        self._stride = len(self._plan.links)
        self.links = LinkTable(self._stride * count, self._make_link)
        self.notes: dict[str, Any] = {}
        """What others have found out about this graph, by whom; it lives as long as the graph."""
        self.route: Callable[[int, int], Route] = lru_cache(_ROUTE_CACHE)(self._route)
        """``route(src_sip, dst_sip)``: the way between two SIPs."""

    def __repr__(self) -> str:
        return f"<Topology {self.system.name}: {self.nodes} x {self.sips_per_node} SIPs, {len(self.links)} links>"

    @property
    def device(self) -> DeviceSpec:
        """What every SIP is."""
        return self.system.sips.device

    @property
    def cube_mesh(self) -> CubeMesh | None:
        """The level inside a SIP, where the device has one; every SIP has the same."""
        return self._plan.mesh

    @property
    def node_links(self) -> list[LocalLink]:
        """The links of one node in local numbers; number ``i`` of node ``k`` is link ``k * len(node_links) + i``."""
        return self._plan.links

    @property
    def rails(self) -> int:
        """NICs (or trunks of NICs) per node that routes tell apart; 0 in a system of one node."""
        return self._plan.rails

    def node_of(self, sip: int) -> int:
        """The node that a SIP is in."""
        self._check(sip)
        return sip // self.sips_per_node

    def sips_of(self, node: int) -> range:
        """The SIPs of a node."""
        return range(node * self.sips_per_node, (node + 1) * self.sips_per_node)

    def host_route(self, sip: int, direction: Direction) -> Route:
        """The way of a copy from the host to its SIP (``h2d``) or back (``d2h``)."""
        self._check(sip)
        node, local = divmod(sip, self.sips_per_node)
        if direction not in ("h2d", "d2h"):
            raise ValueError(f"direction is {direction!r}; expected 'h2d' or 'd2h'")
        return self._shift(self._plan.from_host(local) if direction == "h2d" else self._plan.to_host(local), node)

    def describe_link(self, index: int) -> str:
        """One line for people: name, kind, figures."""
        link = self.links[index]
        figures = f"{BANDWIDTH.format(link.bandwidth)}, {DURATION.format(link.latency)}"
        return f"{link.name} ({link.kind} link, {figures})"

    @cached_property
    def link_bandwidth(self) -> NDArray[np.float64]:
        """Bandwidth of every link, bytes/s, shape ``[len(links)]``."""
        return self._repeat([link.bandwidth for link in self._plan.links])

    @cached_property
    def link_latency(self) -> NDArray[np.float64]:
        """Latency of every link, seconds, shape ``[len(links)]``."""
        return self._repeat([link.latency for link in self._plan.links])

    def require_world(self, world_size: int) -> None:
        """Raise ConfigError when ``world_size`` ranks do not fit, one per SIP; the message says what would."""
        if world_size <= self.sip_count:
            return
        per_node = self.sips_per_node
        nodes = -(-world_size // per_node)
        have = f"{self.nodes} node{'s' if self.nodes > 1 else ''} x {per_node} SIPs = {self.sip_count}"
        several = self.system.nics is not None and self.system.fabric is not None
        if several:
            remedy = f"use nodes={nodes}, which holds {nodes * per_node}"
        else:
            remedy = "give the system `nics` and a `fabric`, so that it can have several nodes"
        error = ConfigError(
            f"world_size {world_size} does not fit system {self.system.name}: {have} ranks at most. "
            f"To hold it, {remedy}; or a system with system.sips.count of at least {world_size}"
        )
        error.remedy = ("nodes", nodes) if several else None
        raise error

    def _route(self, src: int, dst: int) -> Route:
        self._check(src)
        self._check(dst)
        src_node, src_local = divmod(src, self.sips_per_node)
        dst_node, dst_local = divmod(dst, self.sips_per_node)
        if src_node == dst_node:
            return self._shift(self._plan.between(src_local, dst_local), src_node)
        out = self._shift(self._plan.to_fabric(src_local), src_node)
        back = self._shift(self._plan.from_fabric(dst_local), dst_node)
        return Route(out.links + back.links, out.latency + back.latency, min(out.bandwidth, back.bandwidth))

    def _shift(self, route: Route, node: int) -> Route:
        """A route of node 0, in ``node``."""
        if node == 0:
            return route
        offset = node * self._stride
        return Route(tuple([index + offset for index in route.links]), route.latency, route.bandwidth)

    def _repeat(self, figures: list[float]) -> NDArray[np.float64]:
        array = np.tile(np.asarray(figures, dtype=np.float64), self.nodes)
        array.setflags(write=False)
        return array

    def _check(self, sip: int) -> None:
        if not 0 <= sip < self.sip_count:
            raise ConfigError(f"SIP {sip} is not in system {self.system.name}: it has SIPs 0 to {self.sip_count - 1}")

    def _make_link(self, index: int) -> Link:
        node, local = divmod(index, self._stride)
        link: LocalLink = self._plan.links[local]
        src, dst = self._vertex(link.src, node), self._vertex(link.dst, node)
        name = (
            f"{src}.{link.kind}" if link.kind == "egress" else f"{dst}.{link.kind}" if link.kind == "ingress" else None
        )
        return Link(index, name or f"{_label(src)}->{_label(dst)}", src, dst, link.bandwidth, link.latency, link.kind)

    def _vertex(self, vertex: Vertex, node: int) -> str:
        role, local = vertex
        if role == "fabric":
            return role
        per_node = {"sip": self.sips_per_node, "io": self.sips_per_node, "nic": self._plan.rails}.get(role, 1)
        index = node * per_node + local
        if role == "io":
            return f"sip{index}.io"
        return f"switch{index}.out" if role == "switch_out" else f"{role}{index}"


def _label(vertex: str) -> str:
    """A vertex in the name of a link: a SIP's IO die goes by the SIP."""
    return vertex.removesuffix(".io")
