"""Values that a program's host has, and its GPU computes beside others that are not known: in simulations without data."""

from __future__ import annotations

import torch

from kernbench.simulation.active_simulation import current_simulation
from kernbench.simulation.values.known_values import know
from kernbench.torch_backend.hollow.stand_ins import state


def is_without_data() -> bool:
    """Whether a simulation is in effect that computes no values."""
    simulation = current_simulation()
    return simulation is not None and not simulation.engine.enable_data


def state_values(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """These are taken to be a tensor's values."""
    simulation = current_simulation()
    if simulation is not None and is_without_data():
        with simulation.hosts.current().as_one():
            state(simulation.storages, tensor, values.to(tensor.dtype))


def know_values(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """These are a tensor's values."""
    simulation = current_simulation()
    if simulation is not None and is_without_data():
        with simulation.hosts.current().as_one():
            know(simulation.storages, tensor, values.to(tensor.dtype))
