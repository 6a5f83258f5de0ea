"""Kernels behind functions: what a compiled module of functions (``pybind11``, ``ctypes``) launches.

Tensors that a kernel writes are made by the function that calls it, as the package's own C++ or Python makes them: so memory is
that of the real package, and a run without data needs no further shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.compiled_operators.moved import moving
from kernbench.compiled_operators.operators import Operators

Function = Callable[..., Any]


class KernelTable:
    """The kernels of one package, each with its schema, values and cost.

    Args:
        namespace: in which they are defined.

    Attributes:
        operators: they, as operators that give no results.
    """

    def __init__(self, namespace: str) -> None:
        self.operators = Operators(namespace)
        self._namespace = namespace

    def kernel(self, schema: str, *moved: str, cost: Any = None) -> Callable[[Function], Function]:
        """Have a function compute the values of a kernel.

        Args:
            schema: of its arguments; it gives no results, but writes what is marked with ``!``.
            moved: the tensors that are read or written once, which say what it costs; one that is read and written is named
                twice.
            cost: instead, a function from the call's operands to the work.
        """
        name = schema.partition("(")[0]
        self.operators.schemas[name] = schema + " -> ()"
        if moved or cost is not None:
            self.operators.costs[name] = moving(*moved) if cost is None else cost
        return self.operators.value(name)

    @torch.no_grad()
    def launch(self, name: str, *args: object) -> None:
        """Launch a kernel of the table."""
        getattr(getattr(torch.ops, self._namespace), name)(*args)
