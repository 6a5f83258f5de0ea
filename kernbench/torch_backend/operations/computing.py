"""The values of torch's operations, where there is data: torch's kernels for the CPU, with a GPU's random numbers and sums."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kernbench.torch_backend.gpu.device.generators import home_of, is_of_gpu
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.operations import narrow_formats
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.operators import TorchOperator


class Executor(Protocol):
    """Gives the results of operations."""

    hollow: bool
    """Whether large results have no bytes."""

    def compute(self, call: OperatorCall) -> Any:
        """The result of a call."""

    def stays_unknown(self, call: OperatorCall) -> bool:
        """Whether nothing is ever known of the values that a call gives or writes, however often it is repeated."""


class ComputedValues:
    """Computes operations.

    Args:
        widens: whether 16-bit products are computed in 32 bits where the CPU has no engine for them.
    """

    hollow = False

    def __init__(self, *, widens: bool) -> None:
        self._widens = widens

    @staticmethod
    def stays_unknown(call: OperatorCall) -> bool:
        """See :class:`Executor`."""
        return False

    def compute(self, call: OperatorCall) -> Any:
        """See :class:`Executor`."""
        try:
            return self._compute(call)
        except RuntimeError as error:  # NotImplementedError is one
            result = narrow_formats.again(call.operator, call.args, call.kwargs or {}, error)
            if result is narrow_formats.NOTHING:
                raise
            call.computed_wide = True
            return result

    def _compute(self, call: OperatorCall) -> Any:
        operator, args, kwargs = call.operator, call.args, call.kwargs
        if operator.draws and (kwargs or call.device.host.uses_gpu):
            return _draw(call.device, operator, args, kwargs or {})
        if operator.wide is not None and self._widens:
            return operator.wide(*args, **(kwargs or {}))
        return operator.call(*args, **kwargs) if kwargs else operator.call(*args)


def _draw(device: RankDevice, operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """Run an operation that draws random numbers: on a GPU, from that GPU's generator."""
    wanted = kwargs.get("device")
    if wanted is not None:
        index = device.number(wanted) if wanted.type == "cuda" else None
    else:
        blocks = (block_of(each) for each in args if isinstance(each, torch.Tensor))
        index = next((device.index_of(block.memory.sip) for block in blocks if block is not None), None)
    given = kwargs.get("generator")
    if given is not None:
        _refuse_of_another_kind(given, on_gpu=index is not None)
        kwargs = {**kwargs, "generator": home_of(given)}
    if index is not None and device.host.capture is not None:
        device.host.capture.draw(device.generators.home(index) if given is None else kwargs["generator"])
    if index is None or given is not None:
        return operator.call(*args, **kwargs)
    with device.generators.drawing(index):
        return operator.call(*args, **kwargs)


def _refuse_of_another_kind(generator: torch.Generator, *, on_gpu: bool) -> None:
    wanted, found = ("cuda" if each else "cpu" for each in (on_gpu, is_of_gpu(generator)))
    if wanted != found:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
