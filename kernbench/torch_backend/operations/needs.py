"""Memory that the kernels of an operation need besides operands and results: workspaces of libraries, and what they allocate
while they run. It is allocated where a GPU's kernels do: when the operation is called, after its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernbench.cost.operands import Operand
from kernbench.cost.operator import Operator
from kernbench.simulation.memory.storages import DeviceMemory
from kernbench.simulation.ranks.hosts import Host
from kernbench.topology.device import DeviceSpec

Needs = tuple[str, Sequence[int]]
"""The library whose product it is, and bytes of each piece of memory that is free again when the call returns."""


def needs_of(
    row: Operator, inputs: Sequence[Any], outputs: Sequence[Any], args: Sequence[object], spec: DeviceSpec
) -> Needs:
    """What an operation of a row of the table needs, of tensors that it is given and gives; ``args``: of its call."""
    library = row.library_of([each.shape for each in inputs])
    if row.scratch is None:
        return library, ()
    given, made = ([Operand.of(each.shape, each.dtype) for each in tensors] for tensors in (inputs, outputs))
    return library, tuple(filter(None, map(int, row.scratch(given, made, args, spec))))


def need(memory: DeviceMemory, host: Host, library: str, scratch: Sequence[int]) -> None:
    """Allocate it. Raises ``torch.OutOfMemoryError``."""
    mine = memory.of(host)
    if library:
        mine.workspaces.provide(mine, library)
    if scratch:
        mine.use(scratch)
