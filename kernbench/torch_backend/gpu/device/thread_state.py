"""What one thread of a rank is doing, where what it calls has to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kernbench.cost.work import Cost
from kernbench.simulation.memory.storages import DeviceMemory

Diverted = Callable[[str, Sequence[torch.Tensor], Sequence[torch.Tensor], Cost], None]
"""Takes an operation: its name, what it reads and writes, its cost."""


class BackwardPass(Protocol):
    """A backward pass on several streams."""

    def arrive(self) -> None:
        """The engine has come to a node, before whose own hooks it calls those of its tensors: go on to the node's stream."""


_HOST = torch.device("cpu")


@dataclass(slots=True, eq=False)
class ThreadState:
    """Of a thread that begins, or of a rank's own.

    Attributes:
        collective_memory: where the tensors of the functional collective are that it is calling now.
        collective_unknown: whether what that was given is not known: C++ copies it, and nothing is noted of the copy.
        in_custom_operation: how many custom operations it is computing, one inside the other.
        moving: whether the program itself has asked for the copy between host and SIP that torch is making now.
        moving_to: where that copy goes.
        moving_module: whether a module is moving its parameters and buffers.
        compiling: whether a graph of operations on GPUs is being compiled.
        diverted: takes operations of torch instead of the stream, if anything does.
        dispatched: carries out the operator of ``c10d`` that it is calling now.
        chosen: whether it has said which GPU ``cuda`` is, or what it is on hardware has been remarked.
        backward: the pass on several streams that it is in; None: in none.
        helpers_at: the position of the program at which C++ has made tensors of nothing; None: it is past that.
    """

    collective_memory: DeviceMemory | None = None
    collective_unknown: bool = False
    in_custom_operation: int = 0
    moving: bool = False
    moving_to: torch.device = _HOST
    moving_module: bool = False
    compiling: bool = False
    diverted: Diverted | None = None
    dispatched: Callable[[], Any] | None = None
    chosen: bool = False
    backward: BackwardPass | None = None
    helpers_at: int | None = None
