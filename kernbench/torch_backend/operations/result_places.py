"""Where the results of an operation of torch are: in the memory of the GPU of its operands, of the device that it names, or on
the host; and the copies between these.

To C++ a simulated GPU's tensors are the host's (ADR 0041): where it names the host for what it makes of them by itself, that is
the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

import torch
from torch.autograd import forward_ad

from kernbench.simulation.memory.storages import Block
from kernbench.simulation.memory.tensor_queries import listed_tensors, made_tensors, plain_of, tells_of_looks
from kernbench.topology.device import DeviceSpec
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.nested_tensors import as_rows, is_nested
from kernbench.torch_backend.gpu.tensors.pinning import is_pinned, pinned
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of, place_result, recount
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.gradient_places import (
    is_by_engine,
    is_for_engine,
    is_gradient_of_gpu,
    return_gradients,
)
from kernbench.torch_backend.operations.helper_tensors import is_helper
from kernbench.torch_backend.operations.needs import need, needs_of
from kernbench.torch_backend.operations.operators import TRANSFER
from kernbench.torch_backend.relies_on import Reliance

_NO_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl

RELIES_ON = (
    Reliance("torch._C._disabled_torch_dispatch_impl", "subclasses without a dispatch of their own have it",
             holds=lambda disabled: torch.Tensor.__torch_dispatch__ is disabled),
    Reliance("torch.autograd.forward_ad", "the level is negative outside forward derivatives", has=("_current_level",),
             holds=lambda module: module._current_level == -1),
)  # fmt: skip


class ResultPlaces:
    """Puts results where they belong.

    Args:
        seen_by: code of the function of Python that C++ calls for an operation.
        spec: of the GPUs: what their libraries keep in memory depends on it.
        while_waiting: what is entered where other ranks may run within an operation.
    """

    def __init__(
        self, seen_by: CodeType, spec: DeviceSpec, while_waiting: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._seen_by = seen_by
        self._spec = spec
        self._while_waiting = while_waiting

    def put(self, call: OperatorCall) -> bool:
        """Put the results in the memory of the GPU that they are on; whether the operation is one of the device's.

        It is none if it is the host's, or a copy between devices, which is enqueued here.
        """
        device, operator = call.device, call.operator
        call.inputs = inputs = _as_they_are(listed_tensors(call.args))
        call.outputs = outputs = _as_they_are(made_tensors(call.result))
        for output in outputs:
            if type(output) not in PLAIN and not tells_of_looks(output):
                return False
        if not device.host.uses_gpu:
            return True
        blocks = [block_of(tensor) for tensor in inputs]
        source = next((block for block in blocks if block is not None), None)
        if not self._is_on_gpu(call, source):
            return False
        if operator.kind == TRANSFER and len(blocks) == 2 and self._is_copied(call, *blocks):
            return False
        memory = device.memory if source is None or source.shared else source.memory
        for at, output in enumerate(outputs):
            if at == operator.on_host:
                continue
            place_result(output, memory)
            if not inputs:
                recount(output)  # kernels that make a tensor of nothing (`arange`) begin with none
        if operator.row is not None and not device.doing.in_custom_operation:
            tensors = (inputs, outputs)
            if any(map(is_nested, (*inputs, *outputs))):
                tensors = (as_rows(inputs), as_rows(outputs))
            call.library, call.scratch = needs_of(operator.row, *tensors, call.args, self._spec)
            need(memory, device.host, call.library, call.scratch)
        call.over_links = any(block.shared for block in blocks if block is not None)
        return True

    def _is_on_gpu(self, call: OperatorCall, source: Block | None) -> bool:
        """Whether an operation whose first operand on a GPU is ``source`` gives what is on one, too. A copy to the device that
        it names is enqueued."""
        device, operator, inputs, outputs = call.device, call.operator, call.inputs, call.outputs
        on_device = source is not None
        wanted = call.kwargs.get("device") if call.kwargs else None
        if wanted is None:
            return on_device
        stays = on_device and wanted.type != "meta" and self._stays(device, inputs, outputs)
        placed: bool = wanted.type == "cuda" or stays
        if operator.kind == TRANSFER and placed != on_device:
            goes_on = operator.is_non_blocking(call.args, call.kwargs)
            if goes_on and not placed:
                pinned(outputs[0])  # what torch allocates for it is
            with self._while_waiting():
                target = device.memory_at(wanted) if placed else None
                device.transfer(outputs, target, (inputs or outputs)[0], waits=not goes_on)
            return False
        if not inputs and not placed:
            return is_by_engine(self._seen_by) and is_gradient_of_gpu()
        return placed

    def _is_copied(self, call: OperatorCall, there: Block | None, origin: Block | None) -> bool:
        """Enqueue a ``copy_`` between two devices; False: it is within one, or names a device itself."""
        device, operator, inputs, outputs = call.device, call.operator, call.inputs, call.outputs
        if call.kwargs and call.kwargs.get("device") is not None:
            return False
        if (there is None) != (origin is None) and not (there is None and is_helper(device, outputs[0])):
            return_gradients(inputs[1:])
            goes_on = (there is not None or is_pinned(outputs[0])) and operator.is_non_blocking(call.args, call.kwargs)
            with self._while_waiting():
                device.transfer(outputs, None if there is None else there.memory, inputs[1], waits=not goes_on)
            return True
        if there is not None and origin is not None and there.memory is not origin.memory:
            device.peer_copy(outputs, origin.memory, there.memory)
            return True
        return False

    def _stays(self, device: RankDevice, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
        """Whether a result stays on the GPU of its input although C++ says that it is for the CPU, where it takes both to be:
        gradients and room for a leaf's, casts that the program has not asked to be on the host (``type_as``, those of a loss),
        and sums with the zeros of forward derivatives."""
        if not outputs:
            return is_by_engine(self._seen_by)
        return not device.doing.moving and self._is_of_cpp(inputs[0].dtype, outputs[0].dtype)

    def as_on_gpus(self, device: RankDevice, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of a call as C++ has them where it knows of GPUs: without the host, where it would not name that."""
        wanted = kwargs.get("device")
        if wanted is None or wanted.type != "cpu":
            return kwargs
        if device.doing.moving:
            return {**kwargs, "device": device.doing.moving_to}
        given = listed_tensors(args)
        if not given:
            made_for_gpu = is_by_engine(self._seen_by) and is_gradient_of_gpu()
            return {**kwargs, "device": torch.device("cuda", device.index)} if made_for_gpu else kwargs
        if block_of(given[0]) is None or not self._is_of_cpp(given[0].dtype, kwargs.get("dtype")):
            return kwargs
        return {name: value for name, value in kwargs.items() if name != "device"}

    def _is_of_cpp(self, before: torch.dtype, after: torch.dtype | None) -> bool:
        """Whether C++ itself puts what it makes of a GPU's tensor where that is, and names the host: see :meth:`_stays`."""
        return after not in (None, before) or is_for_engine(self._seen_by) or forward_ad._current_level >= 0


def _as_they_are(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors without classes that see no operations: what these say of them (a shape of their own) is not asked."""
    for tensor in tensors:
        if type(tensor) not in PLAIN:
            break
    else:
        return tensors
    return [
        each if tells_of_looks(each) or type(each).__torch_dispatch__ is not _NO_DISPATCH else plain_of(each)
        for each in tensors
    ]
