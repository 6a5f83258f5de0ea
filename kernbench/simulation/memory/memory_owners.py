"""What memory asks of rooms above: what programs use it for, and whether recordings hold it."""

from __future__ import annotations

from types import FrameType
from typing import Protocol

from kernbench.memory.modules import ModuleUse
from kernbench.memory.remedies import ProgramState
from kernbench.simulation.ranks.hosts import Host


class MemoryOwners(Protocol):
    """Knows what programs use memory for; the room that knows torch's modules and optimizers has one."""

    def claim_all(self, host: Host) -> None:
        """Note in the ledger whose all is that is alive."""

    def before_backward(self, host: Host) -> None:
        """A backward pass of a process begins."""

    def number(self, sip: int) -> int:
        """The number of a SIP to the rank that runs."""

    def operation(self, frame: FrameType | None) -> str:
        """The operation of torch that is under way in a frame or its callers; empty if none is."""

    def module(self, host: Host, frame: FrameType | None) -> ModuleUse | None:
        """The module that allocates in a frame or its callers; None if none does."""

    def state(self, host: Host, frame: FrameType | None) -> ProgramState:
        """What the program of a process, which is in this frame, does already."""


class SettledPool(Protocol):
    """Memory of CUDA graphs (:class:`kernbench.torch_backend.gpu.memory.captured_memory.GraphPool`)."""

    def settle(self) -> None:
        """Give back what recordings alone hold."""
