"""What a kernel moves over the links: bytes of other SIPs' memories, and of the host's, that it loads and stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kernbench.topology import Route, Topology
from kernbench.triton_engine.counts import TensorTraffic


class Home(NamedTuple):
    """Where memory is: on a SIP, or (``is_host``) the host's, which that SIP has mapped."""

    is_host: bool
    sip: int


class RemoteTraffic:
    """Bytes on links, by link, and the longest way that any of them goes.

    Attributes:
        nbytes: loaded from and stored to other SIPs, and the host.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._on_link: dict[int, float] = defaultdict(float)
        self._of_host: dict[int, float] = defaultdict(float)
        self._latency = 0.0
        self.nbytes = 0.0

    def move(self, source: int, target: int, nbytes: float) -> None:
        """``nbytes`` go from SIP ``source`` to SIP ``target``."""
        if source == target or not nbytes:
            return
        self._take(self._topology.route(source, target), nbytes, self._on_link)

    def read_host(self, sip: int, nbytes: float) -> None:
        """``nbytes`` of the host's memory are loaded by a SIP."""
        if nbytes:
            self._take(self._topology.host_route(sip, "h2d"), nbytes, self._of_host)

    def write_host(self, sip: int, nbytes: float) -> None:
        """``nbytes`` of the host's memory are stored by a SIP."""
        if nbytes:
            self._take(self._topology.host_route(sip, "d2h"), nbytes, self._of_host)

    def _take(self, route: Route, nbytes: float, on: dict[int, float]) -> None:
        for link in route.links:
            on[link] += nbytes
        self._latency = max(self._latency, route.latency)
        self.nbytes += nbytes

    @property
    def seconds(self) -> float:
        """How long the fullest link takes; the links work side by side."""
        return self.seconds_at(1.0)

    def seconds_at(self, share: float) -> float:
        """The same, of loads and stores that reach a ``share`` of the bandwidth of links between SIPs. Host links are slower
        than what few PEs ask for."""
        return max(self._longest(self._on_link) / share, self._longest(self._of_host))

    def _longest(self, on: Mapping[int, float]) -> float:
        bandwidth = self._topology.link_bandwidth
        return max((nbytes / float(bandwidth[link]) for link, nbytes in on.items()), default=0.0)

    @property
    def latency(self) -> float:
        """Seconds that the longest way takes for its first byte."""
        return self._latency


def traffic_of_launches(
    topology: Topology,
    home_of: Callable[[int], Home | None],
    moved: Sequence[Mapping[int, TensorTraffic]],
    sips: Sequence[int],
) -> tuple[RemoteTraffic, frozenset[int]]:
    """The remote part of what launches moved that run at one time, and the numbers of those that moved any.

    Args:
        home_of: where the allocation at a base address is.
        moved: for each launch by base address of the allocation.
        sips: of the launches.
    """
    remote, movers = RemoteTraffic(topology), set()
    for launch, (sip, by_base) in enumerate(zip(sips, moved, strict=True)):
        for base, traffic in by_base.items():
            home = home_of(base)
            if home is not None and home.is_host:
                remote.read_host(sip, traffic.read)
                remote.write_host(sip, traffic.written)
                movers.add(launch)
            elif home is not None and home.sip != sip:
                remote.move(home.sip, sip, traffic.read)
                remote.move(sip, home.sip, traffic.written)
                movers.add(launch)
    return remote, frozenset(movers)
