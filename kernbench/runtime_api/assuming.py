"""What a program says of values that are not computed."""

from __future__ import annotations

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.active_simulation import current_simulation
from kernbench.torch_backend.gpu.tensors.placement import stored_in
from kernbench.torch_backend.hollow.stand_ins import state


def assume(what: torch.Tensor | str, value: object) -> None:
    """Say what a tensor's values are, or what a line of the program receives, in a simulation without data.

    With data it does nothing, so that a program may keep it. What was said is used in the place of the neutral default, also
    where ``unknown="error"`` would stop; each look at it still says so in the summary, and prints with a mark.

    Args:
        what: a tensor; or a place, ``"train.py:42"``: looks at that line are answered with ``value``.
        value: a number, or what ``torch.as_tensor`` takes and broadcasts to the tensor's shape (of tensors of more than 8 KiB,
            whose elements are not kept, the mean counts); for a place, what the look gives: a number, or a list.

    Raises:
        KernbenchError: no simulation is open, or ``value`` does not fit.
    """
    simulation = current_simulation()
    if simulation is None:
        raise KernbenchError("kernbench.assume: no simulation is open: call it in a program that kernbench runs")
    if simulation.engine.enable_data:
        return
    if isinstance(what, str):
        name, _, line = what.rpartition(":")
        if not name or not line.isdigit():
            raise KernbenchError(
                f"kernbench.assume({what!r}, ...): expected a tensor, or a place such as 'train.py:42'"
            )
        simulation.assumptions.state(what, value)
        return
    if not isinstance(what, torch.Tensor):
        raise KernbenchError(
            f"kernbench.assume of {type(what).__name__}: expected a tensor, or a place such as 'train.py:42'"
        )
    with simulation.hosts.current().as_one():
        for tensor in stored_in(what):
            try:
                values = torch.as_tensor(value, device="cpu").detach().to(tensor.dtype).broadcast_to(tensor.shape)
            except (RuntimeError, TypeError, ValueError) as error:
                raise KernbenchError(
                    f"kernbench.assume: {value!r} does not fit a tensor of shape {tuple(tensor.shape)} and {tensor.dtype}: "
                    f"{error}"
                ) from None
            state(simulation.storages, tensor, values)
