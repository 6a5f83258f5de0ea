"""Costs of operators that torch does not bring: ``torch.library.custom_op`` of a program or a library.

>>> import kernbench.cost
>>> def flash(inputs, outputs):
...     (batch, tokens, heads, width) = inputs[0].shape
...     return kernbench.cost.StatedWork(
...         nbytes=int(sum(each.nbytes for each in (*inputs, *outputs))),
...         flops=4 * batch * heads * tokens**2 * width, matrix=True, dtype=inputs[0].format,
...     )
>>> with kernbench.cost.register("mylib::flash", flash):
...     pass  # simulations in here know what it costs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from kernbench.cost.by_values import CallOperands, CostByValues
from kernbench.cost.matrix_work import MatrixWork
from kernbench.cost.operands import Operands
from kernbench.cost.operators import find, qualified
from kernbench.cost.packed_attention import PACKED
from kernbench.cost.ragged_attention import RaggedAttention
from kernbench.cost.work import LEAST, Cost, OperationWork, StatedWork, stated_cost
from kernbench.errors import ConfigError
from kernbench.topology.device import DeviceSpec

CostFunction = Callable[[Operands, Operands], "StatedWork | float"] | CostByValues
"""From operands and results to the work that is done, or to seconds; or from the operands of a call and their values."""


@dataclass(frozen=True)
class OperatorCost:
    """What is known of one operator that the table does not have.

    Attributes:
        name: with its namespace.
        cost: says what one call does; None if it is priced like another operator.
        like: that operator.
        owner: whose it is, for messages.
    """

    name: str
    cost: CostFunction | None
    like: str = ""
    owner: str = "kernbench.cost.register"

    @property
    def sees_values(self) -> bool:
        """Whether it depends on values, and is asked at every call."""
        return isinstance(self.cost, CostByValues)

    def priced(self, given: Operands, made: Operands, device: DeviceSpec) -> Cost:
        """The cost of a call with these shapes. Raises ConfigError if the function fails or gives no cost."""
        return self.cost_of(self._asked(given, made), int(sum(each.nbytes for each in (*given, *made))), device)

    def work_of_call(self, operands: CallOperands) -> OperationWork | float:
        """What one call does, of a cost that sees values, or its seconds. Raises ConfigError if the function fails."""
        found: OperationWork | float = self._asked(operands)
        return found

    def cost_of(self, found: object, nbytes: int, device: DeviceSpec) -> Cost:
        """The cost of what the function has said; ``nbytes``: of all tensors. Raises ConfigError if that is no cost."""
        if isinstance(found, RaggedAttention | MatrixWork):
            return found.cost(device)
        if isinstance(found, StatedWork):
            cost = found.cost(device)
            seconds = max(cost.seconds, LEAST)
            kind = "gemm" if found.matrix else "math"
            return Cost(seconds, max(cost.low, LEAST), max(cost.high, LEAST), found.nbytes, kind, cost.limit)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found < 0:
            raise ConfigError(
                f"the cost of {self.name} ({self.owner}) is {found!r}; expected seconds, or kernbench.cost.StatedWork"
            )
        cost = stated_cost(float(found))
        return Cost(cost.seconds, cost.low, cost.high, nbytes, cost.kind, cost.limit)

    def work(self, given: Operands, made: Operands) -> StatedWork | None:
        """The work of one call; None if the function says seconds. Raises ConfigError if it fails."""
        found = self._asked(given, made)
        return found if isinstance(found, StatedWork) else None

    def _asked(self, *operands: Any) -> Any:
        assert self.cost is not None
        try:
            return self.cost(*operands)
        except Exception as error:
            raise ConfigError(
                f"the cost of {self.name} ({self.owner}) failed: {type(error).__name__}: {error}"
            ) from error


_OF_TORCH = {name: OperatorCost(name, cost, owner="kernbench.cost.packed_attention") for name, cost in PACKED.items()}
"""Operators of torch whose costs depend on values."""

_registered: dict[str, OperatorCost] = {}
_supplied: dict[str, OperatorCost] = {}
"""What stand-ins say of their operators, where nothing is registered."""
_told: WeakSet[Any] = WeakSet()


class Registration:
    """One operator's cost, until :meth:`unregister` or the end of a ``with``; what it had replaced is then as before."""

    def __init__(self, known: OperatorCost) -> None:
        self._mine = known
        self._before = _registered.get(known.name)
        _set(known.name, known)

    def unregister(self) -> None:
        """Take it back. Idempotent; nothing happens if it has been replaced since."""
        if _registered.get(self._mine.name) is self._mine:
            _set(self._mine.name, self._before)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *exc: object) -> None:
        self.unregister()


def register(name: str, cost: CostFunction | None = None, *, like: str = "", replace: bool = False) -> Registration:
    """Say what an operator costs, in every simulation of this process from now on.

    Args:
        name: as torch qualifies it, ``"mylib::flash"``.
        cost: called with operands and results, each an :class:`kernbench.cost.Operand` (``shape``, ``format``, ``nbytes``),
            in the order of the operator's arguments without those that are no tensors; returns the
            :class:`kernbench.cost.StatedWork` that is done, or seconds. Called once for each combination of shapes and dtypes;
            one that is marked by :func:`kernbench.cost.by_values` at every call, with all arguments.
        like: instead, an operator of torch that it is priced like: its tensors come in the same order.
        replace: the operator may be known already.

    Returns:
        What takes it back: ``with register(...):`` or ``unregister()``.

    Raises:
        ConfigError: it is known already, or not clear what it costs.
    """
    known = operator_cost(name, like or cost)
    if cost is not None and like:
        raise ConfigError(f"the cost of {known.name}: either a function or like=, not both")
    if not replace and known.name in _registered:
        raise ConfigError(f"the cost of {known.name} is registered already; replace=True replaces it")
    if not replace and find(known.name) is not None:
        raise ConfigError(f"{known.name} is in the table of torch's operators; replace=True replaces what that says")
    return Registration(known)


def operator_cost(name: str, cost: object, owner: str = "kernbench.cost.register") -> OperatorCost:
    """A cost as :func:`register` and plugins give it: a function, or the name of a torch operator. Raises ConfigError."""
    known = qualified(name)
    if callable(cost):
        return OperatorCost(known, cost, owner=owner)
    if not isinstance(cost, str) or not cost:
        raise ConfigError(
            f"the cost of {known} ({owner}) is {cost!r}; expected a function of operands and results, or a torch operator"
        )
    if find(cost) is None:
        raise ConfigError(f"{known} ({owner}) is to be priced like {cost}, which is no operator that kernbench knows")
    return OperatorCost(known, None, cost, owner)


def brought(given: Mapping[str, tuple[object, str]]) -> dict[str, OperatorCost]:
    """The costs that plugins bring: by name, each with its owner. Raises ConfigError."""
    costs = [operator_cost(name, cost, owner) for name, (cost, owner) in given.items()]
    for each in costs:
        if find(each.name) is not None:
            raise ConfigError(
                f"{each.owner} gives a cost of {each.name}, which is in the table of torch's operators; a cost model may "
                "change what that says"
            )
    return {each.name: each for each in costs}


def supply(known: OperatorCost) -> None:
    """Say what a stand-in's operator costs, unless something else is registered for it."""
    _supplied[known.name] = known
    _tell()


def registered(name: str) -> OperatorCost | None:
    """What is registered for an operator, by its qualified name."""
    return _registered.get(name)


def supplied(name: str) -> OperatorCost | None:
    """What is supplied with an operator of a stand-in."""
    return _supplied.get(name)


def seeing_values(brought_by_plugins: Mapping[str, OperatorCost]) -> dict[str, OperatorCost]:
    """The operators whose costs depend on values, by name: of all that is known now, in the order in which it is asked."""
    known = {**_OF_TORCH, **_supplied, **brought_by_plugins, **_registered}
    return {name: each for name, each in known.items() if each.sees_values}


def tell_changes(costs: object) -> None:
    """From now on ``costs.forget()`` is called whenever something is registered or taken back, as long as it lives."""
    _told.add(costs)


def _set(name: str, known: OperatorCost | None) -> None:
    if known is None:
        _registered.pop(name, None)
    else:
        _registered[name] = known
    _tell()


def _tell() -> None:
    for costs in list(_told):
        costs.forget()
