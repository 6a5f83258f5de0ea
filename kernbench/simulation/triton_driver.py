"""Triton launches its kernels here while a simulation is active, for that simulation's device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from kernbench import triton_engine
from kernbench.simulation.active_simulation import current_simulation
from kernbench.triton_engine.duration import describe_device
from kernbench.triton_engine.launching import run_alone, set_launch_sink
from kernbench.triton_engine.machine import Launch
from kernbench.triton_engine.memory import AllocationMap


class Sink:
    """Receives every launch of the process while a simulation is active."""

    def submit(self, launch: Launch) -> None:
        """Hand it to the active simulation."""
        simulation = current_simulation()
        if simulation is None:
            run_alone(launch)
        else:
            simulation.kernels.submit(launch)

    def memory(self) -> AllocationMap | None:
        """That of the active simulation."""
        simulation = current_simulation()
        return None if simulation is None else simulation.kernels.memory

    def aside(self) -> AbstractContextManager[object]:
        """What is computed is no operation of the host's program."""
        simulation = current_simulation()
        return nullcontext() if simulation is None else simulation.hosts.current().as_one()

    def say(self, sentence: str) -> None:
        """Note it for the summary."""
        simulation = current_simulation()
        if simulation is not None:
            simulation.remarks.setdefault(sentence)


_installed = False


def follow_active_simulation() -> None:
    """Make Triton launch kernels here, for the device of the active simulation; undo that once there is none.

    Without Triton nothing happens: a program that uses no kernels needs none.
    """
    global _installed
    simulation = current_simulation()
    if simulation is None and not _installed:
        return
    try:
        from triton.backends.compiler import GPUTarget
    except ImportError:
        return
    if not _installed:
        triton_engine.activate()
        set_launch_sink(Sink())
        _installed = True
    if simulation is not None:
        device = simulation.topology.device
        target = device.target
        triton_engine.set_target(GPUTarget(target.backend, target.arch, target.warp_size))
        describe_device(device)
    else:
        set_launch_sink(None)
        describe_device(None)
        triton_engine.set_target(None)
        triton_engine.deactivate()
        _installed = False
