"""Operators of libraries that exist only as builds for CUDA: schemas as the library says them, values and costs by definition.

>>> from kernbench.compiled_operators import Operators
>>> operators = Operators("acme", schemas=["double(Tensor! out, Tensor x) -> ()"])
>>> @operators.value
... def double(out, x):
...     out.copy_(2 * x)
"""

from __future__ import annotations

from kernbench.compiled_operators.kernel_table import KernelTable
from kernbench.compiled_operators.operators import Operators

__all__ = ["KernelTable", "Operators"]
