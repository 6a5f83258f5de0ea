"""What a kernel moves over the links: bytes of other SIPs' memories that it loads and stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kernbench.sim_engine import MemoryStore
from kernbench.topology import Topology
from kernbench.triton_engine.counts import TensorTraffic


class RemoteTraffic:
    """Bytes on links, by link, and the longest way that any of them goes.

    Attributes:
        nbytes: loaded from and stored to other SIPs.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._on_link: dict[int, float] = defaultdict(float)
        self._latency = 0.0
        self.nbytes = 0.0

    def move(self, source: int, target: int, nbytes: float) -> None:
        """``nbytes`` go from SIP ``source`` to SIP ``target``."""
        if source == target or not nbytes:
            return
        route = self._topology.route(source, target)
        for link in route.links:
            self._on_link[link] += nbytes
        self._latency = max(self._latency, route.latency)
        self.nbytes += nbytes

    @property
    def seconds(self) -> float:
        """How long the fullest link takes; the links work side by side."""
        bandwidth = self._topology.link_bandwidth
        return max((nbytes / float(bandwidth[link]) for link, nbytes in self._on_link.items()), default=0.0)

    @property
    def latency(self) -> float:
        """Seconds that the longest way takes for its first byte."""
        return self._latency


def traffic_of_launches(
    topology: Topology, memory: MemoryStore, moved: Mapping[tuple[int, int], TensorTraffic], sips: Sequence[int]
) -> tuple[RemoteTraffic, frozenset[int]]:
    """The remote part of what launches moved that run at one time, and the numbers of those that moved any.

    Args:
        moved: by number of the launch and base address of the allocation.
        sips: of the launches.
    """
    remote, movers = RemoteTraffic(topology), set()
    for (launch, base), traffic in moved.items():
        home = memory.find_host(base)
        if home is None or home.space == "host" or home.sip == sips[launch]:
            continue
        remote.move(home.sip, sips[launch], traffic.read)
        remote.move(sips[launch], home.sip, traffic.written)
        movers.add(launch)
    return remote, frozenset(movers)
