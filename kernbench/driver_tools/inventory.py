"""The GPUs of a rank's node, and what NVML and ``nvidia-smi`` say of each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from kernbench.driver_tools import nvidia_smi
from kernbench.topology import Topology
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.device.identity import bus_of, capability_of
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.device.software_versions import CUDA, DRIVER
from kernbench.torch_backend.gpu.device.visible_devices import uuid_of


class Gpu(NamedTuple):
    """One GPU.

    Attributes:
        number: on its node.
        uuid: made of the system's name and the GPU's number: the same in every run.
        bus: of PCI, made up.
        capability: compute capability.
        total: bytes.
        pes: multiprocessors.
        clock: Hz.
        power: its limit in W; 0: not known.
        used: bytes by process, as far as this process knows of them.
    """

    number: int
    name: str
    uuid: str
    bus: int
    capability: tuple[int, int]
    total: int
    pes: int
    clock: float
    power: float
    used: dict[int, int]

    @property
    def bus_id(self) -> str:
        """As NVML writes it."""
        return f"00000000:{self.bus:02X}:00.0"

    @property
    def taken(self) -> int:
        """Bytes that processes have."""
        return min(self.total, sum(self.used.values()))


def gpus_of_node(device: RankDevice) -> list[Gpu]:
    """Those of the rank's node, in the order of the node, also those that its program does not see."""
    topology, memories = device.simulation.topology, device.simulation.memories
    node = topology.node_of(device.host.sip)
    used = dict.fromkeys(topology.sips_of(node), 0)
    for each in memories.opened:
        if each.ledger.sip in used and memories.is_alive(each.host):
            used[each.ledger.sip] += each.overhead.total + each.allocator.reserved
    return [
        gpu._replace(used={os.getpid(): taken} if taken else {})
        for gpu, taken in zip(idle_gpus(topology, node), used.values(), strict=True)
    ]


def idle_gpus(topology: Topology, node: int = 0) -> list[Gpu]:
    """Those of a node, unused."""
    spec = topology.device
    return [
        Gpu(
            index, spec.product or spec.name, f"GPU-{uuid_of(topology.system.name, sip)}", bus_of(index),
            capability_of(spec.target.arch), spec.hbm.size, spec.pes, spec.clock, spec.power or 0.0, {},
        )
        for index, sip in enumerate(topology.sips_of(node))
    ]  # fmt: skip


def has_smi(topology: Topology) -> bool:
    """Whether machines with these GPUs have ``nvidia-smi``."""
    return topology.device.target.backend == "cuda"


def variables_of(gpus: list[Gpu]) -> dict[str, str]:
    """Environment variables that tell ``nvidia-smi`` of GPUs."""
    return nvidia_smi.variables(
        ({**gpu._asdict(), "index": gpu.number, "bus_id": gpu.bus_id} for gpu in gpus), DRIVER, CUDA
    )


def told_gpus() -> list[Gpu]:
    """Those that environment variables tell this process of, as they do ``nvidia-smi``; none if they do not."""
    told = os.environ.get(nvidia_smi.VARIABLE)
    if told is None:
        return []
    return [
        Gpu(**{name: each[name] for name in Gpu._fields})._replace(
            capability=tuple(each["capability"]), used={int(pid): nbytes for pid, nbytes in each["used"].items()}
        )
        for each in json.loads(told)["gpus"]
    ]


def variables_of_children(environ: Mapping[str, str]) -> dict[str, str]:
    """What a process that the current rank starts receives about its GPUs, as they are now, if it would find ``nvidia-smi``."""
    device = current_device()
    if device is None or nvidia_smi.directory() not in environ.get("PATH", "").split(os.pathsep):
        return {}
    return variables_of(gpus_of_node(device))
