"""The GPUs that the module of a program has while a command imports it: those that ``kernbench run`` gives a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.interruption import ending_signals
from kernbench.runtime_api.adoption import simulated_gpu
from kernbench.scheduler.carrier import current_carrier
from kernbench.simulation.active_simulation import current_owner
from kernbench.topology import DeviceSpec, Topology, TopologyHandle, resolve_topology, shipped_devices
from kernbench.topology.loader import load_device

SYSTEM = "dgx_h100"
"""Whose node there is; with the device that a command is about, where it is about one."""


@contextmanager
def program_gpus(device: DeviceSpec | None = None) -> Iterator[None]:
    """For the length of a block, this process has simulated GPUs, unless it has some already; ``device``: what they are."""
    if current_owner() is not None or current_carrier() is not None:
        yield
        return
    handle = resolve_topology(SYSTEM)
    if device is not None:
        system = handle.topology_obj.system
        sips = system.sips.model_copy(update={"device": device})
        handle = TopologyHandle(handle.name, handle.path, Topology(system.model_copy(update={"sips": sips})))
    with ending_signals(), simulated_gpu(handle):
        yield


def device_for(target: str) -> DeviceSpec | None:
    """The first shipped device that kernels of this target (``cuda:90``, ``hip:gfx942``) run on; None if there is none."""
    for name in shipped_devices():
        device = load_device(name)
        if f"{device.target.backend}:{device.target.arch}" == target:
            return device
    return None
