"""Costs that depend on values: the lengths of a batch's sequences, the tokens of each expert, the pages in use.

A cost by shapes is asked once for each combination of shapes. One that is marked by :func:`by_values` is asked at every call,
with the operator's arguments by their names in its schema:

>>> from kernbench.cost import StatedWork, by_values
>>> @by_values
... def decode(operands):
...     cache, lengths = operands["key_cache"], operands["seq_lens"]
...     tokens = cache.shape[0] * cache.shape[1] if lengths.known is None else sum(lengths.known)
...     return StatedWork(2 * tokens * cache.row_bytes(2))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from kernbench.cost.operands import Operand, Shape
from kernbench.cost.work import OperationWork


class SeenOperand:
    """A tensor of one call, whose values a cost may look at.

    Args:
        operand: its shape and format.
        look: gives its values, nested in lists as its dimensions are; None if they are not known.

    Attributes:
        shape, format, nbytes: as of :class:`~kernbench.cost.operands.Operand`.
        elements: how many it has.
        looked_at: whether its values were asked for.
    """

    __slots__ = ("_look", "elements", "format", "looked_at", "nbytes", "shape")

    def __init__(self, operand: Operand, look: Callable[[], object] = lambda: None) -> None:
        self.shape: Shape = operand.shape
        self.format = operand.format
        self.elements = prod(operand.shape)
        self.nbytes = int(operand.nbytes)
        self.looked_at = False
        self._look = look

    @property
    def known(self) -> Any:
        """Its values as they are after the call, in lists; None if they are not known, or no whole numbers."""
        self.looked_at = True
        return self._look()

    def row_bytes(self, dimensions: int) -> int:
        """Bytes of one row: of all elements that have the same first ``dimensions`` indices."""
        return self.nbytes // max(prod(self.shape[:dimensions]), 1)


class CallOperands(Mapping[str, Any]):
    """The arguments of one call by their names in the schema, defaults included: tensors as :class:`SeenOperand` (in lists
    where they are in lists), all else as it is.

    Attributes:
        results: the tensors that it gives.
    """

    def __init__(self, arguments: Mapping[str, object], results: Sequence[SeenOperand]) -> None:
        self._arguments = arguments
        self.results = list(results)

    def __getitem__(self, name: str) -> Any:
        return self._arguments[name]

    def __iter__(self) -> Any:
        return iter(self._arguments)

    def __len__(self) -> int:
        return len(self._arguments)

    @property
    def tensors(self) -> list[SeenOperand]:
        """All tensors among the arguments, in order."""
        flat = [each for value in self.values() for each in (value if isinstance(value, list) else (value,))]
        return [each for each in flat if isinstance(each, SeenOperand)]

    @property
    def looked_at(self) -> bool:
        """Whether the values of any were asked for: if not, the cost is that of every call with these shapes and numbers."""
        return any(each.looked_at for each in (*self.tensors, *self.results))


@dataclass(frozen=True)
class CostByValues:
    """A cost that is asked at every call.

    Attributes:
        function: from the operands of a call to the work that is done, or to seconds.
    """

    function: Callable[[CallOperands], OperationWork | float]

    def __call__(self, operands: CallOperands) -> OperationWork | float:
        """What the call does."""
        return self.function(operands)


def by_values(function: Callable[[CallOperands], OperationWork | float]) -> CostByValues:
    """Mark a cost function as one that is given the :class:`CallOperands` of every call, wherever a cost is given: to
    :func:`kernbench.cost.register`, by the hook ``kernbench_operator_costs``, of a stand-in's operator."""
    return CostByValues(function)
