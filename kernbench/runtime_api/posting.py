"""What a collective and a message have in common when a rank posts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from kernbench.errors import KernbenchError
from kernbench.runtime_api.rank_state import RankState
from kernbench.sim_engine.operation import Operation

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


def rank_of(me: RankState) -> int:
    """The rank that runs. Raises :class:`KernbenchError` in main."""
    if me.rank is None:
        raise KernbenchError("this is for ranks: call it inside the function given to ctx.multiprocessing.spawn")
    return me.rank


def new_operation(
    ctx: RuntimeContext, me: RankState, name: str, stream: str, payload: Sequence[torch.Tensor]
) -> Operation:
    """An operation of this rank on ``stream`` that passes ``payload``; its host pays the launch. Its values are to come."""
    if ctx.observing:
        raise ctx._beside_the_program("communicate")
    if me.rank is not None and me.sip != ctx.sips[me.rank]:
        stream = f"{stream} of rank {me.rank}"  # it drives another rank's SIP: their collectives must not queue up
    me.clock += ctx.launch_costs.overhead
    op = Operation(name, "collective", me.rank, me.sip, stream, me.clock)
    nbytes = 0
    for tensor in payload:
        nbytes += tensor.numel() * tensor.element_size()
    op.nbytes = nbytes
    op.executed = False
    return op


def touch(
    ctx: RuntimeContext, me: RankState, op: Operation, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Note in ``op`` and in the storages which memory it reads and writes."""
    if len(inputs) == len(outputs) == 1 and inputs[0] is outputs[0]:
        state = ctx.storages.adopt(inputs[0], me)
        state.last = op
        op.operands = state.operands_in_place(inputs[0])
        return
    operands = []
    written = {id(tensor) for tensor in outputs}
    for tensor in inputs:
        state = ctx.storages.adopt(tensor, me)
        state.last = op
        operands.append(state.operand(tensor, "rw" if id(tensor) in written else "r"))
    read = {id(tensor) for tensor in inputs}
    for tensor in outputs:
        if id(tensor) not in read:
            state = ctx.storages.adopt(tensor, me)
            state.last = op
            operands.append(state.operand(tensor, "w"))
    op.operands = operands
