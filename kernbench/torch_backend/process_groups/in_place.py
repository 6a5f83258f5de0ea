"""Collectives of NCCL whose result lies over what they are given.

NCCL takes a rank's own part where the whole has it: of an all-gather's output, of a reduce-scatter's input. Elsewhere, and in
an exchange of messages always, parts are received over what is still to be sent (NCCL's page on in-place operations; nccl
1839, nccl-tests 261, tensorflow 60001). What that gives is not defined; here nothing is written before it is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.tensors.placement import block_of


def look(simulation: Simulation, op: str, part: torch.Tensor, whole: torch.Tensor, rank: int) -> None:
    """Say so if a rank's part is in the memory of the whole, and not at its own place there."""
    if block_of(part) is not block_of(whole):
        return
    distance = part.storage_offset() - whole.storage_offset()
    if distance != rank * part.numel() and -part.numel() < distance < whole.numel():
        _say(simulation, op, "a rank's part must be where it is in the whole, and this is at another place")


def look_at_exchange(simulation: Simulation, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> None:
    """Say so if messages are received over what is sent."""
    places = {id(block_of(each)) for each in sent if each.numel()}
    there = [each for each in received if each.numel() and id(block_of(each)) in places]
    if any(_overlap(one, other) for one in there for other in sent):
        _say(simulation, "all_to_all", "it is no operation in place")


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    distance = one.storage_offset() - other.storage_offset()
    return block_of(one) is block_of(other) and -one.numel() < distance < other.numel()


def _say(simulation: Simulation, op: str, why: str) -> None:
    simulation.remarks.setdefault(
        f"{op} at {user_location()} writes its output over its input, of which NCCL may not have sent all yet: {why}. What it "
        "gives is not defined; here it is as if the two were apart. Give it an output of its own"
    )
