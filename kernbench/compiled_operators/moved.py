"""Costs of operators that are bound by their bytes."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.work import StatedWork


def moving(*names: str) -> Callable[[CallOperands], StatedWork]:
    """A cost: each tensor that is named is read or written once; one that is read and written is named twice."""

    def cost(operands: CallOperands) -> StatedWork:
        moved = [operands[name] for name in names]
        return StatedWork(sum(each.nbytes for each in moved if isinstance(each, SeenOperand)))

    return cost


def taken_from(operand: SeenOperand, rows: SeenOperand, dimensions: int = 1) -> int:
    """Bytes that are read from a table, for a row of each of ``rows``' elements."""
    count = 1
    for size in rows.shape:
        count *= size
    return min(count * operand.row_bytes(dimensions), operand.nbytes)


def moving_all(operands: CallOperands) -> StatedWork:
    """A cost: each tensor that is given or made is read or written once."""
    return StatedWork(sum(each.nbytes for each in (*operands.tensors, *operands.results)))
