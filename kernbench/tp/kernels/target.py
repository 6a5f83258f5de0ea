"""Where a Triton kernel of the layers will run, and what must be true before it is launched."""

from __future__ import annotations

import functools

import torch

from kernbench import triton_engine
from kernbench.runtime_api.running_rank import simulated_device
from kernbench.topology import load_device, resolve_topology, shipped_devices
from kernbench.topology.device import DeviceSpec


def target_device(tensor: torch.Tensor) -> DeviceSpec:
    """The device that tiles are chosen for: the simulated SIP, the real GPU, else the SIP of the default system."""
    simulated = simulated_device()
    if simulated is not None:
        return simulated
    if tensor.is_cuda:
        return _gpu(tensor.device.index or 0)
    return _default()


@functools.cache
def _default() -> DeviceSpec:
    return resolve_topology().topology_obj.device


@functools.cache
def _gpu(index: int) -> DeviceSpec:
    """A shipped description of the same architecture (else the H100's), with the real number of processors."""
    properties = torch.cuda.get_device_properties(index)
    arch = 10 * properties.major + properties.minor
    shipped = [load_device(name) for name in shipped_devices()]
    like = next((spec for spec in shipped if spec.target.arch == arch), load_device("h100_sxm"))
    return like.model_copy(update={"pes": properties.multi_processor_count})


def ready(tensor: torch.Tensor) -> None:
    """Make sure that a kernel launched on ``tensor`` runs: on a CPU, by the engine, unless Triton is interpreting.

    Raises KernbenchError where Triton is not installed.
    """
    if not tensor.is_cuda and not _interpreting() and not triton_engine.active():
        triton_engine.activate()


def _interpreting() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)
