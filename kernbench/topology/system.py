"""The schema of a system description: SIPs, how they are joined, their queues, and the fabric between nodes.

A system file holds one mapping ``system``; the device and the fabric that it names are files of their own (or stand
inline). All figures are SI.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from pydantic import Field

from kernbench.topology.device import DeviceSpec, MemoryKind, Spec
from kernbench.topology.units import Bandwidth, Bytes, Count, Loss, NodeCount, Seconds, Share, SipCount

SipTopology = Literal["ring_1d", "torus_2d", "mesh_2d_no_wrap", "full", "switch"]
SIP_TOPOLOGIES: tuple[str, ...] = get_args(SipTopology)
GRID_TOPOLOGIES = ("torus_2d", "mesh_2d_no_wrap")


class SipLink(Spec):
    """One joint: SIP to SIP, or SIP to switch. Both directions at once (full duplex), each with this bandwidth."""

    bandwidth: Bandwidth = Field(description="bytes per second of one lane in one direction, as on the data sheet")
    lanes: Count = Field(default=1, description="lanes that make up the joint")
    efficiency: Share = Field(default=1.0, description="share that is left for payload after headers and flow control")
    latency: Seconds = Field(description="one way, one hop")
    message_chunk: Bytes = Field(
        default=512 << 10,
        description="bytes of a message in one slot of NCCL's buffer: 512 KiB over NVLink, 128 KiB over PCIe",
    )

    @property
    def payload_bandwidth(self) -> float:
        """Payload bytes per second in one direction, all lanes."""
        return self.bandwidth * self.lanes * self.efficiency


class SwitchSpec(Spec):
    """What joins the SIPs of a node when their topology is ``switch``. Non-blocking unless ``bandwidth`` is given."""

    count: Count = Field(default=1, description="switch chips that the lanes are spread over")
    latency: Seconds = Field(default=0.0, description="one pass")
    bandwidth: Bandwidth | None = Field(
        default=None, description="capacity of the whole switch, when it is less than its ports'"
    )
    reduction: bool = Field(
        default=False, strict=True, description="it can reduce and multicast in flight (NVLink SHARP)"
    )


class SipsSpec(Spec):
    """The SIPs of one node."""

    count: SipCount = Field(description="SIPs per node")
    device: DeviceSpec = Field(description="name of a shipped device, path of a device file, or the device itself")
    topology: SipTopology = Field(default="ring_1d", description="how the SIPs of a node are joined")
    w: SipCount | None = Field(default=None, description="columns, for torus_2d and mesh_2d_no_wrap")
    h: SipCount | None = Field(default=None, description="rows, for torus_2d and mesh_2d_no_wrap")
    link: SipLink | None = Field(default=None, description="the joint; needed when there is more than one SIP")
    switch: SwitchSpec | None = Field(default=None, description="the switch, for topology `switch`")

    @property
    def reduces_in_switch(self) -> bool:
        """Whether the SIPs of a node are joined by a switch that reduces and multicasts in flight."""
        return self.topology == "switch" and self.switch is not None and self.switch.reduction


class IpcqSpec(Spec):
    """Hardware of the inter-PE communication queues. What an algorithm chooses (slots, policy) is in ``ccl.yaml``.

    The defaults describe a queue unit beside each PE of a generic accelerator (docs/systems.md).
    """

    queues: Count = Field(
        default=1, description="queues per SIP and direction that run side by side (PEs or channels at work)"
    )
    message_overhead: Seconds = Field(
        default=20e-9, description="queue unit's work per message, sender and receiver each"
    )
    credit_latency: Seconds = Field(default=50e-9, description="way of a returned credit; it does not use the links")
    wakeup_latency: Seconds = Field(
        default=200e-9, description="backpressure `sleep`: from the event to the PE running again"
    )
    poll_interval: Seconds = Field(
        default=40e-9, description="backpressure `poll`: time between two looks at the queue"
    )


class CclDefaults(Spec):
    """What the ``defaults`` of ``ccl.yaml`` are on this system; the keys have the meaning that they have there.

    Reads as a mapping of the keys that the description gives: ``dict(system.ccl)``.
    """

    algorithm: str | None = Field(default=None, description="name of an algorithm")
    buffer_kind: MemoryKind | None = Field(default=None, description="memory of the slots")
    backpressure: Literal["sleep", "poll"] | None = Field(default=None, description="what a blocked sender does")
    n_slots: Count | None = Field(default=None, description="slots of a queue")
    slot_size: Bytes | None = Field(default=None, description="size of a slot")
    vc_chunk_size: Bytes | None = Field(default=None, description="bytes that a hop forwards at a time")
    ipcq_credit_size_bytes: Bytes | None = Field(default=None, description="size of a returned credit")

    def keys(self) -> list[str]:
        """The keys that were given."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    def __getitem__(self, key: str) -> str | int:
        value: str | int = getattr(self, key)
        return value

    def __bool__(self) -> bool:
        return bool(self.keys())


class NicsSpec(Spec):
    """The NICs of one node, dealt to its SIPs by local index (rail-aligned)."""

    count: Count = Field(description="NICs per node: a divisor or a multiple of the SIPs")
    with_fabric: dict[str, Count] = Field(
        default_factory=dict, description="fabrics that such nodes are sold with, and their NICs per node"
    )


class FabricSpec(Spec):
    """What joins the nodes: any NIC to any NIC, with four parameters."""

    name: str = Field(description="short name; the file's name when it is left out")
    description: str = Field(default="", description="one line for people")
    transport: Literal["verbs", "libfabric", "efa", "tcp"] = Field(
        default="verbs",
        description="how a collective library drives it: queue pairs, libfabric messages, AWS's plugin or sockets",
    )
    latency: Seconds = Field(description="one way, from NIC to NIC, switches and software of the transport included")
    bandwidth: Bandwidth = Field(description="bytes per second of one NIC in one direction, as on the data sheet")
    protocol_overhead: Loss = Field(
        default=0.0, description="share of the bandwidth that headers and the transport take"
    )
    congestion: Loss = Field(
        default=0.0, description="share of the bandwidth lost with each doubling of nodes beyond two"
    )

    def payload_bandwidth(self, nodes: int) -> float:
        """Payload bytes/s of one NIC in one direction, all ``nodes`` communicating.

        ``bandwidth * (1 - protocol_overhead) * (1 - congestion) ** log2(nodes / 2)`` (ADR 0013).
        """
        doublings = math.log2(max(nodes, 2) / 2)
        return self.bandwidth * (1 - self.protocol_overhead) * (1 - self.congestion) ** doublings


class HostSpec(Spec):
    """What a rank's host needs for its side of a program, by class of operation (docs/cost_models.md, "Host time").

    A launch itself costs ``device.launch.overhead``: the backend's part of an operator, and the driver's. All figures are of
    an operator among others, as in a program, and of the CPU of an H100 server; ``factor`` makes them another's.
    """

    cpu: str = Field(default="a server's x86, 3 GHz and more", description="one line for people")
    factor: float = Field(default=1.0, gt=0, description="how many times as long this CPU takes as the figures say")
    operator: Seconds = Field(
        default=10.5e-6,
        description="an operator that the program calls, beside its launch: interpreter, binding, dispatcher",
    )
    view: Seconds = Field(
        default=3e-6, description="a view that torch takes by itself: in `linear`, in a backward pass"
    )
    subclass: Seconds = Field(
        default=25e-6, description="an operator of tensors of a class that sees its operations: a DTensor"
    )
    autograd: Seconds = Field(
        default=12e-6, description="forward, where a gradient is wanted: the node and what it keeps"
    )
    backward: Seconds = Field(
        default=28e-6,
        description="an operator of a backward pass: the engine's part of its node, and the operator's in C++",
    )
    begin: Seconds = Field(
        default=150e-6, description="a backward pass, besides: its thread wakes up and looks at the graph"
    )
    library: Seconds = Field(
        default=28e-6,
        description="an operator of a library that looks for its kernel at each call, cuDNN: convolutions, norms",
    )
    launch: Seconds = Field(default=5e-6, description="each kernel that an operator launches beyond its first")
    tensor: Seconds = Field(default=1.5e-6, description="each tensor of an operator over lists")
    step: Seconds = Field(
        default=350e-6, description="an optimizer's step, besides: its hooks and checks, its parameters put in groups"
    )
    parameter: Seconds = Field(default=6e-6, description="each parameter of such a step that has a gradient")
    unit: Seconds = Field(default=40e-6, description="FSDP: each copy in or out of a unit's parameters or gradients")
    compiled: Seconds = Field(default=6.8e-6, description="each kernel that compiled code launches")
    graph: Seconds = Field(default=2.5e-6, description="launch of a captured graph")
    node: Seconds = Field(default=0.05e-6, description="of a graph's launch, each node")


class StorageSpec(Spec):
    """What keeps the files of one node, shared by its ranks; each way has its own bandwidth."""

    read: Bandwidth = Field(description="bytes per second that a node reads, all its ranks together")
    write: Bandwidth = Field(description="the same, written")
    latency: Seconds = Field(default=0.0, description="of a file, besides: opening and closing it")


class SystemSpec(Spec):
    """A system: ``nodes`` equal nodes."""

    name: str = Field(description="short name; the file's name when it is left out")
    description: str = Field(default="", description="one line for people")
    nodes: NodeCount = Field(default=1, description="nodes, unless the user asks for another number")
    sips: SipsSpec = Field(description="the SIPs of a node: count, device, topology, link")
    host: HostSpec = Field(default=HostSpec(), description="what the host's side of a program costs")
    storage: StorageSpec | None = Field(
        default=None, description="what keeps the files of a node; without it files take no time"
    )
    ipcq: IpcqSpec = Field(default=IpcqSpec(), description="queues between PEs")
    ccl: CclDefaults = Field(
        default=CclDefaults(),
        description="what `defaults` of ccl.yaml are on this system; a user's ccl.yaml still wins",
    )
    nics: NicsSpec | None = Field(default=None, description="NICs per node; needed for more than one node")
    fabric: FabricSpec | None = Field(
        default=None, description="name of a shipped fabric, a path, or the fabric itself"
    )

    def joined_by(self, fabric: FabricSpec) -> SystemSpec:
        """This system with its nodes joined by a fabric, and with as many NICs as such nodes have for it."""
        nics = self.nics
        if nics is not None and fabric.name in nics.with_fabric:
            nics = nics.model_copy(update={"count": nics.with_fabric[fabric.name]})
        return self.model_copy(update={"fabric": fabric, "nics": nics})

    @property
    def device(self) -> DeviceSpec:
        """What every SIP is."""
        return self.sips.device
