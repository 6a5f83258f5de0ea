"""Every torch operation of a rank, on that rank's stream in virtual time.

A dispatch mode per rank sees each operation below autograd, also those of a backward pass. Operations on tensors that are
on a simulated GPU are recorded; in a program that uses no GPU, those on any tensor are. Views cost nothing.

What has to be known about an operation besides its arguments is found out once (:class:`Recorded`).

An operation that follows one whose end is known, which is nearly always, needs no event: its times are set at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch.utils import _python_dispatch as python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.cost.op_estimates import is_matrix_operation
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.tensors import tells_of_looks
from kernbench.torch_backend.gpu.generators import draws
from kernbench.torch_backend.gpu.placement import PLAIN, block_of, place
from kernbench.torch_backend.gpu.rank_device import RankDevice
from kernbench.torch_backend.relies_on import Reliance


def _computes(overload: Any) -> bool:
    return bool(overload._op(torch.ones(1), torch.ones(1)) == 2) and overload._opname == "add"


RELIES_ON = (
    Reliance("torch.ops.aten.add.Tensor", "an overload's `_op` computes what it does", has=("_op", "_opname", "_schema"),
             holds=_computes),
    Reliance("torch._ops.OpOverload", "other callables are no operations of one kind", has=("name",)),
    Reliance("torch.utils._python_dispatch.TorchDispatchMode", "it sees operations below autograd", subclassed=True),
    Reliance("torch.utils._python_dispatch", "it is entered and left without a block", has=("_push_mode", "_pop_mode")),
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),
    Reliance("torch._C._dynamo.eval_frame", "Dynamo is told by these to step over a function", has=(
        "set_code_exec_strategy", "_FrameAction", "_FrameExecStrategy",
    )),
)  # fmt: skip

SKIP, COLLECTIVE, VIEW, FACTORY, TRANSFER, GEMM, MATH = range(7)

_NAMESPACES = frozenset({"aten", "prims", "torchvision"})
_FUNCTIONAL_COLLECTIVES = frozenset({"_c10d_functional", "_dtensor"})
_HOST_READS = frozenset({"_local_scalar_dense", "is_nonzero", "equal"})
_SKIPPED = frozenset(
    {"is_same_size", "detach_", "set_", "resize_", "record_stream", "is_pinned", "_has_compatible_shallow_copy_type"}
)
_TRANSFERS = frozenset({"_to_copy", "copy_"})
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""They take memory and launch nothing."""


def classify(func: Any) -> int:
    """What kind of operation an ``OpOverload`` is."""
    if not isinstance(func, torch._ops.OpOverload):
        return SKIP
    namespace, _, name = func.name().partition("::")
    name = name.partition(".")[0]
    if namespace in _FUNCTIONAL_COLLECTIVES:
        return COLLECTIVE
    if namespace not in _NAMESPACES or name in _SKIPPED:
        return SKIP
    if name in _TRANSFERS:
        return TRANSFER
    if is_matrix_operation(name):
        return GEMM
    schema = func._schema
    returns_alias = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    if returns_alias:
        return VIEW
    if not any("Tensor" in str(argument.type) for argument in schema.arguments):
        return FACTORY
    return MATH


class Recorded:
    """What there is to know about an operation, whatever its arguments: found out when it is first seen.

    Attributes:
        kind: see :func:`classify`.
        call: computes it; without the frame that ``OpOverload.__call__`` is.
        name: without namespace and overload.
        title: with the overload, for traces.
        allocates: it takes memory and launches nothing.
        host_reads: its result is a value of the host's.
        causal: where its argument ``is_causal`` is, None if it has none.
        draws: it draws random numbers.
    """

    __slots__ = ("allocates", "call", "causal", "draws", "host_reads", "kind", "name", "title")

    def __init__(self, func: Any) -> None:
        self.kind = classify(func)
        self.call = func._op if isinstance(func, torch._ops.OpOverload) else func
        self.title = str(getattr(func, "__name__", "op"))
        self.name = getattr(func, "_opname", self.title)
        self.allocates = self.name in _ALLOCATIONS
        self.host_reads = self.name in _HOST_READS
        self.draws = draws(func)
        self.causal: int | None = None
        if self.kind == GEMM:
            names = [argument.name for argument in func._schema.arguments]
            self.causal = names.index("is_causal") if "is_causal" in names else None

    def is_causal(self, args: Any, kwargs: Any) -> bool:
        """Whether an attention was told to skip what comes later."""
        at = self.causal
        if at is None:
            return False
        return bool((kwargs or {}).get("is_causal", args[at] if at < len(args) else False))


class _Operations(dict[Any, Recorded]):
    def __missing__(self, func: Any) -> Recorded:
        found = self[func] = Recorded(func)
        return found


_operations = _Operations()


class Recorder(TorchDispatchMode):
    """Records operations.

    Args:
        simulation: prices them.
        who: the device of whoever runs.
    """

    def __init__(self, simulation: Simulation, who: Callable[[], RankDevice]) -> None:
        super().__init__()
        self._who = who
        self._values = simulation.values
        self._costs = simulation.op_costs

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here that Dynamo could trace, and wrapping would import it

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]  # torch's is a class method, called on the object
        """Whether Dynamo may compile beneath this mode, which sees what was compiled when it runs (ADR 0086)."""
        return not self._who().host.uses_gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for cls in types:
            if cls.__module__ == "torch._subclasses.fake_tensor":
                return func(*args, **(kwargs or {}))  # shapes only: nothing runs
            if cls is not torch.Tensor and cls is not torch.nn.Parameter:
                return NotImplemented  # a subclass unwraps itself: its own operations are recorded
        device = self._who()
        host = device.host
        if host.unsettled:
            self._values.settle_stream()
        operation = _operations[func]
        if operation.kind == COLLECTIVE:
            return self._collective(device, func, args, kwargs or {})
        if operation.host_reads and not host.unrecorded:
            _before_host_read(device, operation.name, args[0])
        if operation.draws and (kwargs or host.uses_gpu):
            result = self._draw(device, operation, args, kwargs or {})
        else:
            result = operation.call(*args, **kwargs) if kwargs else operation.call(*args)
        if operation.kind > VIEW and not host.unrecorded and not operation.host_reads:
            self._record(device, operation, args, kwargs, result)
        return result

    def _collective(self, device: RankDevice, func: Any, args: Any, kwargs: Any) -> Any:
        """A functional collective: C++ allocates what it gives, which is where what it was given is."""
        given = [each for value in args for each in (value if isinstance(value, list | tuple) else (value,))]
        blocks = (block_of(each) for each in given if isinstance(each, torch.Tensor))
        block = next(filter(None, blocks), None) if device.host.uses_gpu else None
        if block is None:
            return func(*args, **kwargs)
        before, device.collective_memory = device.collective_memory, block.memory
        try:
            result = func(*args, **kwargs)
        finally:
            device.collective_memory = before
        for each in result if isinstance(result, list | tuple) else (result,):
            place(each, block.memory)
        return result

    def _draw(self, device: RankDevice, operation: Recorded, args: Any, kwargs: Any) -> Any:
        """Run an operation that draws random numbers: on a GPU, from that GPU's generator."""
        wanted = kwargs.get("device")
        if wanted is not None:
            index = device.number(wanted) if wanted.type == "cuda" else None
        else:
            blocks = (block_of(each) for each in args if isinstance(each, torch.Tensor))
            index = next((block.memory.index for block in blocks if block is not None), None)
        if index is None or kwargs.get("generator") is not None:
            return operation.call(*args, **kwargs)
        with device.generators.drawing(index):
            return operation.call(*args, **kwargs)

    def _record(self, device: RankDevice, operation: Recorded, args: Any, kwargs: Any, result: Any) -> None:
        kind = operation.kind
        inputs: list[torch.Tensor] = []
        for value in args:
            if isinstance(value, torch.Tensor):
                inputs.append(value)
            elif type(value) in (list, tuple):
                inputs += [each for each in value if isinstance(each, torch.Tensor)]
        if isinstance(result, torch.Tensor):
            outputs = [result]
        elif type(result) in (list, tuple):
            outputs = [each for each in result if isinstance(each, torch.Tensor)]
        else:
            outputs = []
        for output in outputs:
            if type(output) not in PLAIN and not tells_of_looks(output):
                return
        if device.host.uses_gpu:
            blocks = [block_of(tensor) for tensor in inputs]
            source = next((block for block in blocks if block is not None), None)
            on_device = source is not None
            wanted = kwargs.get("device") if kwargs else None
            if wanted is not None:
                placed = wanted.type == "cuda" or (on_device and _stays(device, operation.name, inputs, outputs))
                if kind == TRANSFER and placed != on_device:
                    device.transfer(outputs, device.memory_at(wanted) if placed else None)
                    return
            else:
                placed = on_device
            if not placed:
                return
            if kind == TRANSFER and len(blocks) == 2 and (blocks[0] is None) != (blocks[1] is None):
                device.transfer(outputs, None if blocks[0] is None else blocks[0].memory)
                return
            if kind == TRANSFER and len(blocks) == 2:
                target, origin = blocks  # of `copy_`
                if target is not None and origin is not None and target.memory is not origin.memory:
                    device.peer_copy(outputs, origin.memory, target.memory)
                    return
            memory = device.memory if source is None or source.shared else source.memory
            for output in outputs:
                if block_of(output) is None:
                    place(output, memory)
        if operation.allocates or not (outputs or inputs):
            return
        causal = operation.causal is not None and operation.is_causal(args, kwargs)
        cost = self._costs.of_tensors(operation.name, inputs, outputs, causal)
        if device.host.uses_gpu and any(block is not None and block.shared for block in blocks):
            cost = device.over_links(cost, inputs)
        device.enqueue(operation.title, cost)


def _stays(device: RankDevice, name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    """Whether a result stays on the GPU of its input although C++ says that it is for the CPU, where it takes both to be:
    room for a leaf's gradient, and casts that the program has not asked to be on the host (``type_as``, those of a loss)."""
    if name == "new_empty_strided":
        return torch._C._current_graph_task_id() >= 0
    return not device.moving and bool(inputs and outputs) and inputs[0].dtype is not outputs[0].dtype


def _before_host_read(device: RankDevice, name: str, tensor: torch.Tensor) -> None:
    """The host is about to get a value: from a GPU, by a copy; else what the rank has enqueued has ended by then."""
    simulation, host, block = device.simulation, device.host, block_of(tensor)
    if block is None and host.uses_gpu:
        return
    if simulation.hooks is not None:
        simulation.hooks.host_read(tensor, name)
    if block is None:
        simulation.host_reads.finish_stream(host.stream)
        return
    simulation.host_reads.require_values(tensor, block, name)
    simulation.host_reads.to_host(block.memory.sip, tensor.element_size())
    if block.shared:
        device.look_around(name)


@contextmanager
def open_recorder(recorder: Recorder) -> Iterator[None]:
    """Record for the length of a block, in this thread."""
    # not `with recorder`: that also keeps flags per process, which ranks would leave in another order than they entered
    python_dispatch._push_mode(recorder)
    try:
        yield
    finally:
        python_dispatch._pop_mode()


# `torch.compile` must not trace what records. `torch._disable_dynamo` would say so too, but it imports Dynamo, which takes
# seconds.
_skip = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(Recorder.__torch_dispatch__.__code__, eval_frame._FrameExecStrategy(_skip, _skip))
