"""FLOPs of a rank's operations, as torch's ``FlopCounterMode`` counts them, without its mode: once per operation and shapes.

A formula is asked with meta tensors in place of its arguments, so that none reads a value: packed sequences count as if each
were as long as the longest, which is what torch says of tensors without values.

Recomputed is what runs inside a backward pass with gradients on: the forward work that activation checkpointing repeats. A
backward pass that builds a graph itself (``create_graph=True``) has gradients on throughout, and repeats nothing. A custom
``autograd.Function`` runs with gradients off both ways: there the stack says whether checkpointing has called it.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils._pytree import tree_map_only

from kernbench.cost.flops import Counted, counted_format, counted_work
from kernbench.cost.op_costs import OpCosts
from kernbench.cost.op_estimates import is_matrix_operation
from kernbench.cost.work import Cost
from kernbench.simulation.ranks.work_counts import Account
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.flop_formulas import formula_of
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("sys._getframe", "the frames of the thread that runs, innermost first"),
    Reliance("torch.utils._pytree", "tensors among an operation's arguments", has=("tree_map_only",)),
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward, and another one for each backward"),
    Reliance("torch.autograd.backward", "whether it builds a graph is a local variable of its frame",
             parameters=("create_graph",), holds=lambda function: "create_graph" in _code(function).co_varnames),
    Reliance("torch.autograd.grad", "whether it builds a graph is a local variable of its frame",
             parameters=("create_graph",), holds=lambda function: "create_graph" in _code(function).co_varnames),
    Reliance("torch.utils.checkpoint._checkpoint_hook.__init__", "what repeats forward work is its function `unpack_hook`",
             holds=lambda function: "unpack_hook" in _inner(function)),
    Reliance("torch.utils.checkpoint.CheckpointFunction.backward", "it repeats forward work, if it is reentrant"),
)  # fmt: skip

_MOST_KNOWN = 1 << 16
"""Costs whose FLOPs are remembered; those of operators without a model are made anew at each call."""


def _code(function: Any) -> Any:
    return inspect.unwrap(function).__code__


def _inner(function: Any) -> dict[str, Any]:
    """The code of the functions that are defined in one."""
    return {each.co_name: each for each in _code(function).co_consts if hasattr(each, "co_name")}


_REPEATS = frozenset({
    _inner(torch.utils.checkpoint._checkpoint_hook.__init__)["unpack_hook"],
    _code(torch.utils.checkpoint.CheckpointFunction.backward),
})  # fmt: skip
_BACKWARD = frozenset({_code(torch.autograd.backward), _code(torch.autograd.grad)})


class FlopCounts:
    """Counts what the operations of one rank's thread do.

    Args:
        costs: keeps what an operation counts beside what it costs, so that counting it again is one look.
    """

    def __init__(self, costs: OpCosts) -> None:
        self._costs = costs
        self._known = costs.flops
        self._task = -1
        self._repeats = False

    def add(self, account: Account, cost: Cost, call: OperatorCall) -> None:
        """Count an operation that costs ``cost`` to a rank's account."""
        known = self._known.get(id(cost))
        if known is None or known[0] is not cost:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            known = self._known[id(cost)] = cost, *self._ask(call)
        self.count(account, known[1], known[2])

    def add_whole(self, account: Account, call: OperatorCall) -> None:
        """Count a custom operation whose kernels have been launched, which costs nothing besides them: by its formula."""
        if formula_of(call.operator.func) is not None:
            self.count(account, *self._ask(call))

    def count(self, account: Account, fmt: str, flops: int) -> None:
        """Add FLOPs of a format to a rank's account: to what it was asked for, or to what a backward pass repeats."""
        if flops:
            totals = account.recomputed if self._repeating() else account.flops
            totals[fmt] = totals.get(fmt, 0) + flops

    def of(self, cost: Cost) -> tuple[str, int]:
        """What has been counted of an operation with this cost: the format that is multiplied, and FLOPs; 0 if none were."""
        known = self._known.get(id(cost))
        return ("", 0) if known is None or known[0] is not cost else (known[1], known[2])

    def _ask(self, call: OperatorCall) -> Counted:
        name = call.operator.name
        counted = self._counted(call, name)
        if not counted[1] and is_matrix_operation(name) and all(each.numel() for each in call.inputs):
            self._costs.uncounted.add(name)
        return counted

    def _counted(self, call: OperatorCall, name: str) -> Counted:
        formula = formula_of(call.operator.func)
        given, made = (
            tuple((each.shape, each.dtype) for each in each_side) for each_side in (call.inputs, call.outputs)
        )
        if formula is None or any(
            dtype is torch.float4_e2m1fn_x2 for _, dtype in given
        ):  # formulas take a pair for one
            return counted_work(self._costs, name, given, made)
        bare_args, bare_kwargs, bare_result = tree_map_only(
            torch.Tensor, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"),
            (call.args, call.kwargs or {}, call.result),
        )  # fmt: skip
        try:
            return self._format(call, given), int(formula(*bare_args, **bare_kwargs, out_val=bare_result))
        except Exception:  # one that needs values, or does not know these shapes
            return counted_work(self._costs, name, given, made)

    def _format(self, call: OperatorCall, given: Any) -> str:
        fmt = counted_format(call.operator.name, given)
        rounded = call.operator.rounds is not None and call.operator.is_flagged(call.args, call.kwargs)
        return "tf32" if fmt == "fp32" and rounded else fmt

    def _repeating(self) -> bool:
        """Whether what runs now repeats forward work."""
        task = torch._C._current_graph_task_id()
        if task < 0:
            return False
        if not torch.is_grad_enabled():
            return _is_repeated()
        if task != self._task:
            self._task, self._repeats = task, not _builds_graph()
        return self._repeats


def _is_repeated() -> bool:
    """Whether checkpointing has called what runs in this thread's backward pass."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code not in _BACKWARD:
        if frame.f_code in _REPEATS:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _builds_graph() -> bool:
    """Whether the backward pass that runs in this thread builds a graph of its own."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _BACKWARD:
            return bool(frame.f_locals["create_graph"])
        frame = frame.f_back  # type: ignore[assignment]
    return False
