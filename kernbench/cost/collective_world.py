"""What a collective meets: ranks on nodes, bandwidth inside and between nodes, latency of a hop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernbench.cost.generations import TRANSPORTS, CollectiveConstants, Transport, generation_of
from kernbench.cost.peer_access import FEW_BLOCKS, share_of_blocks
from kernbench.errors import ConfigError
from kernbench.topology.loader import read_system
from kernbench.topology.shipped import find_config
from kernbench.topology.system import FabricSpec, SystemSpec

_CHANNELS_PER_NIC = 2  # rings and trees that the library opens over one NIC


@dataclass(frozen=True, slots=True)
class CollectiveWorld:
    """``ranks`` GPUs, ``local`` of them on each of ``nodes`` nodes.

    Attributes:
        link: payload bytes/s that a GPU sends to its peers in the node, all of its joints to them together.
        pair: payload bytes/s between one pair of GPUs of a node.
        channels: most of them that the library opens between GPUs of a node.
        flight: latency from GPU to GPU in a node, seconds.
        nics: NICs of a node that its ranks use.
        net: payload bytes/s of those NICs, one direction.
        net_latency: one way between nodes, seconds.
        launch_overhead: host time of one launch, seconds.
        copy_bandwidth: of the device memory, reads and writes together, bytes/s.
        blocks: of a kernel whose ranks read each other's buffers.
    """

    ranks: int
    nodes: int
    generation: CollectiveConstants
    transport: Transport
    switched: bool
    multicast: bool
    link: float
    pair: float
    channels: int
    flight: float
    nics: float
    net: float
    net_latency: float
    launch_overhead: float
    copy_bandwidth: float
    blocks: int

    @property
    def direct(self) -> float:
        """Payload bytes/s of such a kernel, to or from all peers together."""
        return self.link * share_of_blocks(self.generation, self.blocks)

    @property
    def local(self) -> int:
        """Ranks per node."""
        return self.ranks // self.nodes

    @property
    def net_channels(self) -> float:
        """Channels that cross the network."""
        return _CHANNELS_PER_NIC * self.nics

    def hop(self, protocol: str) -> float:
        """One step inside a node, seconds."""
        return self.flight + self.generation.hop[protocol]

    def net_hop(self, algorithm: str, protocol: str) -> float:
        """One step between nodes, seconds."""
        return self.net_latency + self.transport.step[algorithm, protocol]


def resolve_system(system: object) -> SystemSpec:
    """The system that a shipped name, a YAML path, a handle, a Topology or a SystemSpec means.

    Raises ConfigError when there is no such file, or for anything else.
    """
    if isinstance(system, SystemSpec):
        return system
    if isinstance(system, (str, Path)):
        path = find_config("systems", system)
        return _read(str(path), path.stat().st_mtime_ns)
    topology = getattr(system, "topology_obj", system)
    found = getattr(topology, "system", None)
    if isinstance(found, SystemSpec):
        return found
    raise ConfigError(f"system is {system!r}; expected a shipped name, a YAML path or a topology")


@lru_cache(64)
def _read(path: str, _modified: int) -> SystemSpec:
    return read_system(Path(path)).validated()


def build_world(system: SystemSpec, *, ranks: int, nodes: int, blocks: int = FEW_BLOCKS) -> CollectiveWorld:
    """The world of ``ranks`` ranks spread evenly over ``nodes`` nodes. Raises ConfigError when they do not fit."""
    sips = system.sips
    if min(ranks, nodes) < 1 or ranks % nodes:
        raise ConfigError(f"ranks={ranks} over nodes={nodes}: expected whole numbers >= 1, as many ranks on each node")
    local = ranks // nodes
    if local > sips.count:
        raise ConfigError(
            f"ranks={ranks} on nodes={nodes}: {local} ranks per node, but a node of {system.name} has {sips.count} SIPs"
        )
    link = sips.link
    if local > 1 and link is None:
        raise ConfigError(f"system {system.name}: `sips.link` is missing; it joins the SIPs of a node")
    joint = link.payload_bandwidth if link else 0.0
    flight = link.latency if link else 0.0
    switched = sips.topology == "switch"
    if switched:
        out = pair = joint
        flight = 2 * flight + (sips.switch.latency if sips.switch else 0.0)
    else:
        pair = joint
        neighbours = {"full": local - 1, "ring_1d": min(2, local - 1)}.get(sips.topology, min(4, local - 1))
        out = joint * neighbours
    nics, net, latency = 0.0, 0.0, 0.0
    fabric: FabricSpec | None = system.fabric
    if nodes > 1:
        if system.nics is None or fabric is None:
            raise ConfigError(f"system {system.name}: nodes={nodes} needs `nics` and `fabric`; they join the nodes")
        # Each rank drives the NICs of its own rail; NICs beside idle SIPs stay idle.
        nics = float(min(system.nics.count, max(1, -(-system.nics.count * local // sips.count))))
        net = nics * fabric.payload_bandwidth(nodes)
        latency = fabric.latency * (1 + TRANSPORTS[fabric.transport].spread * math.log2(nodes / 2))
    return CollectiveWorld(
        ranks=ranks,
        nodes=nodes,
        generation=generation_of(sips.device).collectives,
        transport=TRANSPORTS[fabric.transport if fabric else "verbs"],
        switched=switched,
        multicast=switched and sips.switch is not None and sips.switch.reduction,
        link=out,
        pair=pair,
        channels=system.ipcq.queues,
        flight=flight,
        nics=nics,
        net=net,
        net_latency=latency,
        launch_overhead=sips.device.launch.overhead,
        copy_bandwidth=sips.device.hbm_copy_bandwidth,
        blocks=blocks,
    )
