"""FLOPs of what matrix engines do, where torch has no formula: by the table of operators, or by what is stated.

``torch.utils.flop_counter`` has formulas for the common products, and what it counts is what is meant by model FLOPs. It has
none for others that multiply matrices all the same (``_grouped_mm``, ``_int_mm``, oneDNN's ``linear``): a mixture of experts
would seem to compute nothing. Those are counted here, two operations for each multiply-add of their products.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernbench.cost.op_costs import OpCosts
from kernbench.cost.op_estimates import Tensors, engine_format
from kernbench.cost.operands import Operand
from kernbench.cost.operator import Model
from kernbench.cost.operators import find

Counted = tuple[str, int]
"""The format whose engine multiplies (``"bf16"``), and FLOPs."""


def counted_format(name: str, inputs: Tensors) -> str:
    """The format that the operands of an operation called ``name`` are multiplied in; ``inputs``: shape and dtype of each."""
    row, given = find(name), [Operand.of(shape, dtype) for shape, dtype in inputs]
    places: Sequence[int] = range(len(given))
    if row is not None and row.uses_matrix_engines:
        places = row.multiplied
    return engine_format([given[at] for at in places if at < len(given)])


def counted_work(costs: OpCosts, name: str, inputs: Tensors, outputs: Tensors) -> Counted:
    """What one operation counts: by the work that its program or a plugin states, else by its row of the table.

    ``inputs``, ``outputs``: shape and dtype of each tensor. No FLOPs: it multiplies no matrices, or they are not known.
    """
    given, made = (tuple(Operand.of(shape, dtype) for shape, dtype in tensors) for tensors in (inputs, outputs))
    stated = costs.stated(name)
    if stated is not None and stated.cost is not None and not stated.sees_values:
        work = stated.work(given, made)
        return ("", 0) if work is None or not work.matrix else (work.dtype, work.flops)
    row = find(name if stated is None else stated.like)
    if row is None or row.model is not Model.PRODUCT or row.products is None:
        return "", 0
    multiplied = [given[at] for at in row.multiplied if at < len(given)]
    if not multiplied:
        return "", 0
    products = row.products([operand.shape for operand in given], [operand.shape for operand in made])
    parts = (
        4 if multiplied[0].complex else multiplied[0].values
    )  # complex numbers: four products; packed ones: a longer K
    return engine_format(multiplied), 2 * parts * sum(prod(dims) for dims in products)
