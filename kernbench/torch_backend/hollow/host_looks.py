"""What the host gets when it looks at a tensor whose values were not computed, by other ways than an operation of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.memory.tensor_queries import plain
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.tensors.placement import stored_in
from kernbench.torch_backend.hollow.stand_ins import element_of, is_unknown, stored_of

NUMBERS = frozenset({"item", "tolist"})
"""Looks that give Python's numbers, which can say that they are assumed."""


def is_assumed(simulation: Simulation, tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` shows values that are not computed."""
    return not simulation.engine.enable_data and any(map(is_unknown, stored_in(tensor)))


def visible(simulation: Simulation, tensor: torch.Tensor, entry: str) -> torch.Tensor:
    """A plain tensor of the values that a look at ``tensor``, which is assumed, shows; it is noted once per line.

    Args:
        entry: how it is read (``"numpy"``).

    Raises :class:`KernbenchError` if the simulation's policy is to stop there.
    """
    assumptions, stored = simulation.assumptions, stored_of(tensor)
    host = simulation.hosts.current()
    with host.as_one():
        stated = assumptions.stated_here()
        seen = plain(tensor).detach()
        if stated is not None:
            seen = as_stated(stated, tensor)
        elif stored is not None and stored.hollow:
            seen = torch.tensor(element_of(tensor)).to(tensor.dtype).expand(tensor.shape)
        single = seen.reshape(-1)[:1].tolist()
    answer = single[0] if seen.numel() == 1 else f"{tuple(seen.shape)} of {single}"
    by_itself = stated is not None or (stored is not None and stored.stated)
    assumptions.told(entry, host.rank, answer, stated=by_itself)
    return seen


def as_stated(value: Any, tensor: torch.Tensor) -> torch.Tensor:
    """What was stated for a line that looks at ``tensor``, in its shape. Raises :class:`KernbenchError` if it does not fit."""
    try:
        return torch.as_tensor(value).to(tensor.dtype).broadcast_to(tensor.shape)
    except (RuntimeError, TypeError, ValueError) as error:
        raise KernbenchError(
            f"what kernbench.assume states for {user_location()} does not fit: {value!r} for a tensor of shape "
            f"{tuple(tensor.shape)} and {tensor.dtype} ({error})"
        ) from None


def text(tensor: torch.Tensor, torchs: Callable[[], str]) -> str:
    """How an assumed tensor prints, where ``torchs`` says how torch prints it: one that has no values shows none."""
    stored = stored_of(tensor)
    if stored is None or not stored.hollow:
        shown = torchs()
        return f"{shown[:-1]}, assumed)" if shown.endswith(")") else f"{shown} (assumed)"
    parts = [f"size={tuple(tensor.shape)}", f"device='{tensor.device}'"]
    if tensor.dtype is not torch.get_default_dtype():
        parts.append(f"dtype={tensor.dtype}")
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return f"tensor(?, {', '.join(parts)})"
