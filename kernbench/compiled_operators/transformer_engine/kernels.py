"""The table of the kernels: schemas, values and costs, by the names that the extension's functions call them by.

Tensors that a kernel writes are made by the function that calls it, as the extension's C++ makes them: so memory is that of the
real package, and a run without data needs no further shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.compiled_operators.moved import moving
from kernbench.compiled_operators.operators import Operators

Tensor = torch.Tensor
Function = Callable[..., Any]

operators = Operators("transformer_engine")


def kernel(schema: str, *moved: str, cost: Any = None) -> Callable[[Function], Function]:
    """Have a function compute the values of a kernel.

    Args:
        schema: of its arguments; it gives no results, but writes what is marked with ``!``.
        moved: the tensors that are read or written once, which say what it costs; one that is read and written is named twice.
        cost: instead, a function from the call's operands to the work.
    """
    name = schema.partition("(")[0]
    operators.schemas[name] = schema + " -> ()"
    if moved or cost is not None:
        operators.costs[name] = moving(*moved) if cost is None else cost
    return operators.value(name)


@torch.no_grad()
def launch(name: str, *args: Any) -> None:
    """Launch a kernel of the table."""
    getattr(torch.ops.transformer_engine, name)(*args)
