"""Traffic patterns on a system: a closed form beside the simulation, hop by hop, and what must hold whatever the figures.

A pattern is a set of transfers that start together. In closed form the most loaded link decides: its bytes over its
bandwidth, and the longest latency. The simulation shares links max-min fairly, so it can never be quicker.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from kernbench.errors import ConfigError
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.network import Network
from kernbench.sim_engine.operation import Operation
from kernbench.topology import Topology
from kernbench.topology.links import Route

SIZES = tuple(4096 << shift for shift in range(0, 15, 2))
"""4 KiB to 64 MiB, bytes of each transfer."""

_MOST_MEMBERS = 16
"""SIPs of an all-to-all: flows that share links cost the square of their number to simulate."""

_EQUAL = 1e-9  # two sums of the same figures


@dataclass(frozen=True, slots=True)
class Hop:
    """A part of a way: its name, what it adds to the latency (s), its bandwidth (bytes/s)."""

    name: str
    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message of a pattern.

    Attributes:
        links: indices of what it crosses.
        latency: seconds from its last byte sent to its arrival.
    """

    links: tuple[int, ...]
    latency: float


@dataclass(frozen=True)
class Pattern:
    """Transfers that start together.

    Attributes:
        name: ``"host to device"``, ...
        transfers: who sends; all of one size.
        hops: of the first transfer.
        bandwidth: bytes/s of each link, by index.
        no_quicker_than: another pattern's name; this one takes at least as long.
        topology: whose engine simulates it; None for what happens inside a SIP.
    """

    name: str
    transfers: tuple[Transfer, ...]
    hops: tuple[Hop, ...]
    bandwidth: Sequence[float]
    no_quicker_than: str = ""
    topology: Topology | None = None

    def closed_form(self, nbytes: int, transfers: Sequence[Transfer] | None = None) -> float:
        """Seconds until the last of ``transfers`` (default: all) has arrived, at best."""
        load: dict[int, int] = {}
        chosen = self.transfers if transfers is None else transfers
        for transfer in chosen:
            for link in transfer.links:
                load[link] = load.get(link, 0) + nbytes
        sent = max((total / self.bandwidth[link] for link, total in load.items()), default=0.0)
        return sent + max(transfer.latency for transfer in chosen)

    def simulate(self, nbytes: int) -> list[float]:
        """Seconds at which each transfer has arrived."""
        return self._on_engine(nbytes) if self.topology is not None else self._on_links(nbytes)

    def _on_engine(self, nbytes: int) -> list[float]:
        assert self.topology is not None
        engine = GraphEngine(self.topology, enable_data=False)
        operations = [
            engine.submit_transfer(
                Operation("probe", "dma", rank=None, sip=0, stream=f"probe {number}", enqueue=0.0),
                transfer.links, nbytes, latency=transfer.latency,
            )
            for number, transfer in enumerate(self.transfers)
        ]  # fmt: skip
        engine.run()
        return [op.end if op.end is not None else float("inf") for op in operations]

    def _on_links(self, nbytes: int) -> list[float]:
        events: list[tuple[float, int, Callable[[], None]]] = []
        serial, now = count(), 0.0
        network = Network(
            self.bandwidth, lambda at, call: heapq.heappush(events, (at, next(serial), call)), lambda: now
        )
        ends = [transfer.latency for transfer in self.transfers]

        def ended(number: int) -> Callable[[float], None]:
            def note(at: float) -> None:
                ends[number] = at + self.transfers[number].latency

            return note

        for number, transfer in enumerate(self.transfers):
            if transfer.links:
                network.start(transfer.links, nbytes, ended(number), cap=float("inf"))
        while events:
            now, _, call = heapq.heappop(events)
            call()
        return ends


@dataclass(frozen=True, slots=True)
class Measured:
    """One size of a pattern: bytes per transfer; seconds in closed form and simulated; share of the best bandwidth."""

    nbytes: int
    closed: float
    simulated: float
    utilisation: float


@dataclass(frozen=True)
class Result:
    """A pattern at all sizes, and what it broke."""

    pattern: Pattern
    rows: tuple[Measured, ...]
    broken: tuple[str, ...]


def probe(topology: Topology, *, cases: Sequence[str] = (), sizes: Sequence[int] = SIZES) -> list[Result]:
    """Run the patterns of a system.

    Args:
        topology: the system.
        cases: names of patterns; default: all that the system has.
        sizes: bytes per transfer, ascending.

    Raises:
        ConfigError: the system has no pattern of that name.
    """
    known = {pattern.name: pattern for pattern in patterns(topology)}
    unknown = [name for name in cases if name not in known]
    if unknown:
        raise ConfigError(
            f"{topology.system.name} has no case {', '.join(map(repr, unknown))}; it has: {', '.join(known)}"
        )
    return [run_pattern(known[name], sizes, known) for name in (cases or known)]


def run_pattern(pattern: Pattern, sizes: Sequence[int], known: dict[str, Pattern]) -> Result:
    """One pattern at all sizes, checked."""
    rows, broken = [], []
    best = min((pattern.bandwidth[link] for link in pattern.transfers[0].links), default=float("inf"))
    for nbytes in sizes:
        ends = pattern.simulate(nbytes)
        closed, simulated = pattern.closed_form(nbytes), max(ends)
        alone = [pattern.closed_form(nbytes, (transfer,)) for transfer in pattern.transfers]
        # what the most loaded link carried, over what it could have
        utilisation = (
            (closed - max(transfer.latency for transfer in pattern.transfers)) / simulated if simulated else 0.0
        )
        rows.append(Measured(nbytes, closed, simulated, utilisation if best < float("inf") else 0.0))
        where = f"{pattern.name}, {nbytes} bytes"
        if simulated < closed * (1 - _EQUAL):
            broken.append(f"{where}: simulated {simulated:g} s, quicker than the best possible {closed:g} s")
        if len(pattern.transfers) == 1 and simulated > closed * (1 + _EQUAL):
            broken.append(f"{where}: simulated {simulated:g} s, alone on its way it should take {closed:g} s")
        helped = [number for number, (end, own) in enumerate(zip(ends, alone, strict=True)) if end < own * (1 - _EQUAL)]
        if helped:
            broken.append(f"{where}: contention helped transfer {helped[0]}")
        if not 0 <= utilisation <= 1 + _EQUAL:
            broken.append(f"{where}: utilisation {utilisation:.3f}")
        other = known.get(pattern.no_quicker_than)
        if other is not None and simulated < max(other.simulate(nbytes)) * (1 - _EQUAL):
            broken.append(f"{where}: quicker than {other.name}")
    for smaller, larger in pairwise(rows):
        if larger.simulated < smaller.simulated or larger.closed < smaller.closed:
            broken.append(f"{pattern.name}: {larger.nbytes} bytes take less than {smaller.nbytes}")
    through = sum(hop.latency for hop in pattern.hops)
    if abs(through - pattern.transfers[0].latency) > _EQUAL * max(through, 1e-12):
        broken.append(f"{pattern.name}: hops add up to {through:g} s, the way has {pattern.transfers[0].latency:g} s")
    return Result(pattern, tuple(rows), tuple(broken))


# -- the patterns of a system ----------------------------------------------------------------------------------------


def patterns(topology: Topology) -> Iterator[Pattern]:
    """Every pattern that a system has."""
    per_node = topology.sips_per_node
    yield _between(topology, "host to device", [topology.host_route(0, "h2d")])
    yield _between(topology, "device to host", [topology.host_route(0, "d2h")])
    yield from _inside(topology)
    if per_node > 1:
        ways = sorted(
            (topology.route(0, sip) for sip in range(1, per_node)), key=lambda way: (way.latency, -way.bandwidth)
        )
        yield _between(topology, "SIP to SIP", [ways[0]])
        if len(ways[-1].links) > len(ways[0].links):
            yield _between(topology, "SIP to SIP, farthest", [ways[-1]], no_quicker_than="SIP to SIP")
        yield _between(
            topology,
            "many to one",
            [topology.route(sip, 0) for sip in range(1, per_node)],
            no_quicker_than="SIP to SIP",
        )
        members = range(min(per_node, _MOST_MEMBERS))
        pairs = [(src, dst) for src in members for dst in members if src != dst]
        yield _between(
            topology, "all to all", [topology.route(src, dst) for src, dst in pairs], no_quicker_than="SIP to SIP"
        )
    if topology.nodes > 1:
        yield _between(topology, "node to node", [topology.route(0, per_node)])
        senders = range(per_node, min(topology.sip_count, 8 * per_node))
        yield _between(
            topology, "nodes to one", [topology.route(sip, 0) for sip in senders], no_quicker_than="node to node"
        )


def _between(topology: Topology, name: str, routes: Sequence[Route], *, no_quicker_than: str = "") -> Pattern:
    links = [topology.links[index] for index in routes[0].links]
    hops = [Hop(link.name, link.latency, link.bandwidth) for link in links]
    rest = routes[0].latency - sum(hop.latency for hop in hops)
    if rest > 1e-15:
        hops.append(Hop("switches and dies", rest, float("inf")))
    transfers = tuple(Transfer(route.links, route.latency) for route in routes)
    return Pattern(name, transfers, tuple(hops), topology.link_bandwidth.tolist(), no_quicker_than, topology)


def _inside(topology: Topology) -> Iterator[Pattern]:
    """A PE to memory and to another PE: through the mesh of cubes, or through the last cache."""
    device, mesh = topology.device, topology.cube_mesh
    port, tcm = device.memory_port("hbm"), device.pe.tcm
    own = Hop("PE to HBM", port.latency, port.bandwidth)
    yield _chain("PE to local HBM", [own])
    if mesh is None:
        if device.l2 is not None:
            cache = device.memory_port("sram")
            halves = [
                Hop("PE to L2", cache.latency / 2, cache.bandwidth),
                Hop("L2 to PE", cache.latency / 2, cache.bandwidth),
            ]
            yield _chain("PE to PE", [*halves, Hop("TCM", tcm.latency, tcm.bandwidth)])
        return
    way = mesh.route(0, device.cubes.count - 1) if device.cubes is not None else None
    assert way is not None
    joints = [
        Hop(mesh.links[index].name, mesh.links[index].latency, mesh.links[index].bandwidth) for index in way.links
    ]
    crossbar = Hop("crossbar", mesh.spec.noc.latency, float("inf"))
    yield _chain("PE to remote HBM", [crossbar, *joints, own], no_quicker_than="PE to local HBM")
    yield _chain("PE to PE", [crossbar, Hop("TCM", tcm.latency, tcm.bandwidth)])
    yield _chain(
        "PE to PE, farthest cube",
        [crossbar, *joints, Hop("TCM", tcm.latency, tcm.bandwidth)],
        no_quicker_than="PE to PE",
    )
    shared = [crossbar, *joints, own]
    pes = mesh.spec.pes
    yield _chain("PEs of a cube to remote HBM", shared, no_quicker_than="PE to remote HBM", together=pes)


def _chain(name: str, hops: Sequence[Hop], *, no_quicker_than: str = "", together: int = 1) -> Pattern:
    """Transfers through hops one after the other; the last hop is each transfer's own, the others are shared."""
    finite = [index for index, hop in enumerate(hops) if hop.bandwidth < float("inf")]
    bandwidth = [hop.bandwidth for hop in hops] + [hops[-1].bandwidth] * (together - 1)
    latency = sum(hop.latency for hop in hops)
    last = len(hops) - 1
    transfers = tuple(
        Transfer((*(index for index in finite if index != last), last if number == 0 else last + number), latency)
        for number in range(together)
    )
    return Pattern(name, transfers, tuple(hops), bandwidth, no_quicker_than)
