"""One node: its links and the ways between its SIPs. A topology repeats it.

Everything here is local: SIP, NIC and link numbers start at 0 in each node, and
:class:`~kernbench.topology.graph.Topology` shifts them. A node of 8 SIPs has some 60 links and 64 routes, however many
nodes there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from kernbench.errors import ConfigError
from kernbench.topology.cubes import CubeMesh
from kernbench.topology.links import LinkKind, Route
from kernbench.topology.system import GRID_TOPOLOGIES, SipsSpec, SwitchSpec, SystemSpec
from kernbench.topology.wiring import Wiring, full, grid


class Vertex(NamedTuple):
    """A point of the graph: its role (``sip``, ``io``, ``switch``, ``host``, ``nic``, ``fabric``) and local number."""

    role: str
    number: int


class LocalLink(NamedTuple):
    """A link of one node."""

    src: Vertex
    dst: Vertex
    bandwidth: float
    latency: float
    kind: LinkKind


def wiring_of(sips: SipsSpec) -> Wiring:
    """The wiring of a node whose SIPs are joined to each other. Raises ConfigError when the grid does not fit."""
    if sips.topology in GRID_TOPOLOGIES:
        w, h = sips.w or 0, sips.h or 0
        if w * h != sips.count:
            raise ConfigError(
                f"system.sips: topology {sips.topology} of w x h = {w} x {h} does not hold {sips.count} SIPs"
            )
        return grid(w, h, wrap=sips.topology == "torus_2d")
    if sips.topology == "ring_1d":
        return grid(sips.count, 1, wrap=True)
    return full(sips.count)


class NodePlan:
    """Links of one node and the routes over them, in local numbers.

    A system of one node has no NIC links. The fabric's latency is one way, NIC to NIC: half of it stands on each of the
    two NIC links.
    """

    def __init__(self, system: SystemSpec, *, nodes: int) -> None:
        self.sips = system.sips
        self.count = system.sips.count
        self.mesh = CubeMesh(system.device.cubes) if system.device.cubes else None
        self.links: list[LocalLink] = []
        self._index: dict[tuple[Vertex, Vertex], int] = {}
        self._routes: dict[tuple[str | int, ...], Route] = {}
        self._add_sips()
        self._join_sips()
        self._add_host(system.device.host_link.bandwidth, system.device.host_link.latency)
        self.rails = 0
        if nodes > 1:
            self._add_nics(system, nodes)

    def between(self, src: int, dst: int) -> Route:
        """From one SIP to another of the same node; from a SIP to itself no link at all."""
        if src == dst:
            return _NOWHERE
        return self._cached(("between", src, dst), lambda: [*self._out(src), *self._joined(src, dst), *self._in(dst)])

    def to_fabric(self, sip: int) -> Route:
        """From a SIP through its NIC to the fabric."""
        return self._cached(("to_fabric", sip), lambda: self._out(sip), lambda: [self._nic(sip), _FABRIC])

    def from_fabric(self, sip: int) -> Route:
        """From the fabric through the SIP's NIC to the SIP."""
        return self._cached(("from_fabric", sip), lambda: [_FABRIC, self._nic(sip)], lambda: self._in(sip))

    def to_host(self, sip: int) -> Route:
        """From a SIP to its host."""
        return self._cached(("to_host", sip), lambda: [*self._out(sip), _HOST])

    def from_host(self, sip: int) -> Route:
        """From the host to its SIP."""
        return self._cached(("from_host", sip), lambda: [_HOST, *self._in(sip)])

    def rail(self, sip: int) -> int:
        """Local number of the NIC that serves a SIP: neighbours share one when there are fewer NICs than SIPs."""
        return sip * self.rails // self.count

    def _add(self, src: Vertex, dst: Vertex, bandwidth: float, latency: float, kind: LinkKind) -> None:
        self._index[src, dst] = len(self.links)
        self.links.append(LocalLink(src, dst, bandwidth, latency, kind))

    def _cached(self, key: tuple[str | int, ...], *ways: Callable[[], list[Vertex]]) -> Route:
        """The route along one or more ways of vertices; from a way to the next (SIP to NIC) there is no link."""
        route = self._routes.get(key)
        if route is None:
            indices = tuple(self._index[pair] for way in ways for pair in pairwise(way()))
            latency = sum((self.links[index].latency for index in indices), 0.0)
            bandwidth = min((self.links[index].bandwidth for index in indices), default=math.inf)
            route = self._routes[key] = Route(indices, latency, bandwidth)
        return route

    def _port(self, sip: int) -> Vertex:
        """Where a SIP meets the outside: its IO die, or the SIP itself when it has no inner level."""
        return Vertex("io" if self.mesh else "sip", sip)

    def _nic(self, sip: int) -> Vertex:
        return Vertex("nic", self.rail(sip))

    def _out(self, sip: int) -> list[Vertex]:
        return [Vertex("sip", sip), self._port(sip)] if self.mesh else [Vertex("sip", sip)]

    def _in(self, sip: int) -> list[Vertex]:
        return self._out(sip)[::-1]

    def _add_sips(self) -> None:
        if self.mesh is None:
            return
        bandwidth, latency = self.mesh.spec.io_die.bandwidth, self.mesh.egress_latency
        for sip in range(self.count):
            inside, port = self._out(sip)
            self._add(inside, port, bandwidth, latency, "egress")
            self._add(port, inside, bandwidth, latency, "ingress")

    def _join_sips(self) -> None:
        link = self.sips.link
        if link is None:
            if self.count > 1:
                raise ConfigError(f"system.sips.link is missing: {self.count} SIPs have to be joined")
            self._joined: Callable[[int, int], list[Vertex]] = lambda src, dst: []
            return
        bandwidth, latency = link.payload_bandwidth, link.latency
        if self.sips.topology != "switch":
            wiring = wiring_of(self.sips)
            for src, dst in wiring.joints:
                self._add(self._port(src), self._port(dst), bandwidth, latency, "sip")
            self._joined = lambda src, dst: [self._port(sip) for sip in wiring.path(src, dst)[1:-1]]
            return
        switch = self.sips.switch or SwitchSpec()
        inlet, outlet = Vertex("switch", 0), Vertex("switch" if switch.bandwidth is None else "switch_out", 0)
        for sip in range(self.count):
            self._add(self._port(sip), inlet, bandwidth, latency, "sip")
            self._add(outlet, self._port(sip), bandwidth, latency + (switch.latency if inlet == outlet else 0), "sip")
        if switch.bandwidth is not None:
            self._add(inlet, outlet, switch.bandwidth, switch.latency, "switch")
        self._joined = lambda src, dst: [inlet] if inlet == outlet else [inlet, outlet]

    def _add_host(self, bandwidth: float, latency: float) -> None:
        for sip in range(self.count):
            self._add(self._port(sip), _HOST, bandwidth, latency, "host")
            self._add(_HOST, self._port(sip), bandwidth, latency, "host")

    def _add_nics(self, system: SystemSpec, nodes: int) -> None:
        fabric, nics = system.fabric, system.nics
        if fabric is None or nics is None:
            raise ConfigError(
                f"system {system.name} has no {'nics' if nics is None else 'fabric'}: it cannot have {nodes} nodes"
            )
        if nics.count % self.count and self.count % nics.count:
            raise ConfigError(f"system.nics.count {nics.count} is no divisor or multiple of {self.count} SIPs per node")
        self.rails = min(nics.count, self.count)
        bandwidth = fabric.payload_bandwidth(nodes) * (nics.count // self.rails)
        for rail in range(self.rails):
            self._add(Vertex("nic", rail), _FABRIC, bandwidth, fabric.latency / 2, "nic")
            self._add(_FABRIC, Vertex("nic", rail), bandwidth, fabric.latency / 2, "nic")


_HOST = Vertex("host", 0)
_FABRIC = Vertex("fabric", 0)
_NOWHERE = Route((), 0.0, math.inf)
