"""What an operation of torch takes: its cost, what it multiplies, the host's time for it; and its place on a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from kernbench.cost.flops import counted_format
from kernbench.cost.work import Cost
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.tensors.nested_tensors import as_rows, is_nested
from kernbench.torch_backend.gpu.tensors.placement import is_sparse
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.flop_counts import FlopCounts
from kernbench.torch_backend.operations.host_costs import HostCosts
from kernbench.torch_backend.operations.operators import CUSTOM
from kernbench.torch_backend.operations.seen_operands import operands_of
from kernbench.torch_backend.operations.sparse_operands import (
    as_components,
    like_dense,
    multiplies_sparse,
    sparse_flops,
)


class Pricing:
    """Prices operations.

    Args:
        simulation: has the costs and the streams.

    Attributes:
        flops: counts what operations multiply.
        host_costs: of Python around operations.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.flops = FlopCounts(simulation.op_costs)
        self.host_costs = HostCosts.of(simulation.topology.system.host)
        self._costs = simulation.op_costs
        self._enqueue = simulation.streams.enqueue
        self._descriptions = simulation.descriptions

    def put(self, call: OperatorCall, *, launched: bool) -> None:
        """Count what an operation does, and put it on the host's stream.

        ``launched``: kernels of its own are there already, and are all that it takes.
        """
        device, operator, inputs, outputs = call.device, call.operator, call.inputs, call.outputs
        host = device.host
        if operator.allocates or not (outputs or inputs):
            return
        if launched or (device.doing.in_custom_operation and not (operator.one_kernel or operator.kind == CUSTOM)):
            if launched and not device.doing.in_custom_operation:
                self.flops.add_whole(host.account, call)
            return
        if operator.unreturned:
            outputs += operator.written_unreturned(call.args, call.kwargs)
        flag = operator.is_flagged(call.args, call.kwargs)
        cost_then: Callable[[], Cost] | None = None
        name, sparse = operator.name, any(map(is_sparse, (*inputs, *outputs)))
        if sparse:
            name = like_dense(name, inputs)
            inputs, outputs = call.inputs, call.outputs = as_components(inputs), as_components(outputs)
        try:
            if operator.name in self._costs.seeing:
                operands = operands_of(call)
                cost = self._costs.of_values(operator.name, operands)
                if operands.looked_at:
                    cost_then = functools.partial(self._costs.of_values, operator.name, operands)
            else:
                cost = self._cost(call, name, inputs, outputs, flag)
        except RuntimeError:
            if not any(map(is_nested, (*inputs, *outputs))):
                raise
            inputs, outputs = call.inputs, call.outputs = as_rows(inputs), as_rows(outputs)
            cost = self._cost(call, name, inputs, outputs, flag)
        if sparse and multiplies_sparse(operator.name):
            self.flops.count(host.account, counted_format(operator.name, tuple((each.shape, each.dtype) for each in inputs)),
                              sparse_flops(inputs, outputs))  # fmt: skip
        elif operator.multiplies and (operator.one_kernel or not device.doing.in_custom_operation):
            self.flops.add(host.account, cost, call)
        if call.over_links:
            cost = device.over_links(cost, inputs)
        if device.doing.diverted is not None:
            device.doing.diverted(operator.name, inputs, outputs, cost)
            return
        call.cost = cost
        if host.each is None:
            host.prepare(self.host_costs.around(host, inputs))
        op = self._enqueue(host, operator.title, cost, cost_then=cost_then)
        if self._descriptions is not None:
            self._descriptions.record(op, inputs, outputs, self.flops.of(cost)[1])

    def of(self, call: OperatorCall) -> Cost:
        """What an operation takes that is priced alone: nothing of it is counted, and it is put on no stream."""
        operator = call.operator
        if operator.name in self._costs.seeing:
            return self._costs.of_values(operator.name, operands_of(call))
        return self._cost(call, operator.name, call.inputs, call.outputs, operator.is_flagged(call.args, call.kwargs))

    def _cost(
        self, call: OperatorCall, name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], flag: bool
    ) -> Cost:
        """What it takes, priced as the operator ``name``. Raises RuntimeError if a tensor has no shape."""
        operator, layout = call.operator, ""
        if operator.beyond_shapes:
            layout = operator.layout(call.args, call.kwargs)
        elif operator.copies and inputs and len(outputs) == 1:  # what is copied may be a number
            layout = _layout(inputs[-1], outputs[0])
        return self._costs.of_tensors(name, inputs, outputs, flag, layout)


def _layout(source: torch.Tensor, target: torch.Tensor) -> str:
    """What kind of copy it is: neighbours in the copy's memory are none in the original's (``"transpose"``: rows become
    columns); one of both has gaps (``"strided"``); else nothing."""
    if source.shape != target.shape or source.layout is not torch.strided:
        return ""
    read, written = torch.Tensor.stride(source), torch.Tensor.stride(target)
    beside = zip(source.shape, read, written, strict=True)
    if any(there == 1 and size > 1 and here > 1 for size, here, there in beside):
        return "transpose"
    return "" if read == written or (_is_dense(source) and _is_dense(target)) else "strided"


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(torch.Tensor.stride(tensor), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
