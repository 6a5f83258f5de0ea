"""The operands of one call, for costs that look at values."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.operands import Operand
from kernbench.simulation.memory.tensor_queries import plain_of
from kernbench.simulation.values.known_values import WHOLE
from kernbench.torch_backend.gpu.tensors.placement import values_of
from kernbench.torch_backend.hollow.stand_ins import is_unknown
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.ops.aten.add.Tensor", "its schema says names and defaults of its arguments", has=("_schema",),
             holds=lambda overload: [each.name for each in overload._schema.arguments] == ["self", "other", "alpha"]),
)  # fmt: skip

MOST_SEEN = 1 << 20
"""Elements up to which values are given."""


def operands_of(call: OperatorCall) -> CallOperands:
    """The arguments of a call by name, and its results."""
    return CallOperands(
        {name: _seen(value) for name, value in arguments_by_name(call.operator.func, call.args, call.kwargs).items()},
        [_of_tensor(each) for each in call.outputs],
    )


def arguments_by_name(func: OpOverload, args: Any, kwargs: Any) -> dict[str, Any]:
    """What an operator is given, defaults included, by the names in its schema."""
    given = dict(kwargs or {})
    return {
        each.name: args[at] if at < len(args) else given.get(each.name, each.default_value)
        for at, each in enumerate(func._schema.arguments)
    }


def _seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, list | tuple):
        return [_seen(each) for each in value]
    return value


def _of_tensor(tensor: torch.Tensor) -> SeenOperand:
    operand = Operand.of(tensor.shape, tensor.dtype)
    return SeenOperand(operand, lambda: _values(tensor)) if tensor.dtype in WHOLE else SeenOperand(operand)


def _values(tensor: torch.Tensor) -> Any:
    """A tensor's values in lists; None if they are not known, are many, or no whole numbers: the same with data and without."""
    tensor = plain_of(tensor)
    if tensor.dtype not in WHOLE or tensor.numel() > MOST_SEEN or tensor.is_meta or is_unknown(tensor):
        return None
    return values_of(tensor).tolist()
