"""Every torch operation of a rank, on that rank's stream in virtual time.

A dispatch mode per rank sees each operation below autograd, also those of a backward pass. Operations on tensors that are
on a simulated GPU are recorded; in a program that uses no GPU, those on any tensor are. Views cost nothing.

What has to be known about an operation besides its arguments is found out once (:class:`Recorded`).

An operation that follows one whose end is known, which is nearly always, needs no event: its times are set at once.

Relies on: ``OpOverload._op`` computing what the overload does, ``_opname`` and ``_schema``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo import eval_frame
from torch.utils import _python_dispatch as python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.cost.op_estimates import is_matrix_operation
from kernbench.cost.operators import Kind, find
from kernbench.cost.work import Cost
from kernbench.sim_engine.operation import Operation
from kernbench.torch_backend.gpu.generators import draws
from kernbench.torch_backend.gpu.placement import PLAIN, block_of, place

if TYPE_CHECKING:
    from kernbench.torch_backend.gpu.devices import RankDevice


SKIP, COLLECTIVE, COMPOSITE, CUSTOM, VIEW, TRANSFER, COMPUTE = range(7)
"""Kinds of operations. Those between SKIP and VIEW are opened; those behind VIEW are recorded."""

_TORCHS_OWN = frozenset({"aten", "prims", "torchvision"})
_FUNCTIONAL_COLLECTIVES = frozenset({"_c10d_functional", "_dtensor"})
_RUN_ELSEWHERE = frozenset({"c10d", "c10d_functional", "symm_mem", "profiler", "prim"})
"""Namespaces of what is no kernel, or is put on its stream by whoever carries it out."""
_WRITTEN_IN_PYTHON = frozenset({"torch_nn", "_c10d_functional_autograd"})
"""Namespaces of what torch composes of other operations, in Python."""


def classify(func: Any) -> int:
    """What kind of operation an ``OpOverload`` is: by the table of operators, then by its schema."""
    if not isinstance(func, torch._ops.OpOverload):
        return SKIP
    namespace = func.namespace
    if namespace in _FUNCTIONAL_COLLECTIVES:
        return COLLECTIVE
    schema = func._schema
    if namespace in _RUN_ELSEWHERE:
        return SKIP
    if namespace in _WRITTEN_IN_PYTHON or torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    ):
        return COMPOSITE
    row = find(func.name())
    kind = None if row is None else row.kind
    if kind is Kind.METADATA:
        return SKIP
    if kind is Kind.TRANSFER:
        return TRANSFER
    if kind is Kind.VIEW or torch.Tag.inplace_view in func.tags:
        return VIEW
    if namespace not in _TORCHS_OWN:
        tensors = any("Tensor" in str(argument.type) for argument in (*schema.arguments, *schema.returns))
        return CUSTOM if tensors else SKIP
    if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
        return VIEW
    return COMPUTE


class Recorded:
    """What there is to know about an operation, whatever its arguments: found out when it is first seen.

    Attributes:
        kind: see :func:`classify`.
        call: computes it; without the frame that ``OpOverload.__call__`` is.
        name: without overload, and without namespace if it is torch's own.
        title: with the overload, for traces.
        allocates: it takes memory and launches nothing.
        host_reads: its result is a value of the host's.
        causal: where the argument of an attention is that says whether it is causal, None if it has none.
        draws: it draws random numbers.
        writes: arguments that it writes and does not return, by place and name.
    """

    __slots__ = (
        "_func",
        "allocates",
        "call",
        "causal",
        "causal_name",
        "draws",
        "host_reads",
        "kind",
        "name",
        "title",
        "writes",
    )

    def __init__(self, func: Any) -> None:
        self._func = func
        self.kind = classify(func)
        self.title = str(getattr(func, "__name__", "op"))
        self.draws = draws(func)
        self.causal: int | None = None
        self.causal_name = ""
        self.writes: list[tuple[int, str]] = []
        if not isinstance(func, torch._ops.OpOverload):
            self.call, self.name, self.allocates, self.host_reads = func, self.title, False, False
            return
        self.call = func._op
        self.name = func._opname if func.namespace in _TORCHS_OWN else f"{func.namespace}::{func._opname}"
        if self.kind == CUSTOM:
            self.title = self.name
        row = find(self.name)
        self.allocates = row is not None and row.kind is Kind.ALLOCATION
        self.host_reads = row is not None and row.kind is Kind.HOST_READ
        arguments = func._schema.arguments
        for at, argument in enumerate(arguments):
            if argument.name in _CAUSAL and (self.kind == CUSTOM or is_matrix_operation(self.name)):
                self.causal, self.causal_name = at, argument.name
        returned = {name for each in func._schema.returns if each.alias_info for name in each.alias_info.before_set}
        for at, argument in enumerate(arguments):
            alias = argument.alias_info
            if alias is not None and alias.is_write and not returned.intersection(alias.before_set):
                self.writes.append((at, argument.name))

    def is_causal(self, args: Any, kwargs: Any) -> bool:
        """Whether an attention was told to skip what comes later."""
        at = self.causal
        if at is None:
            return False
        return bool((kwargs or {}).get(self.causal_name, args[at] if at < len(args) else False))

    def written(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The arguments that it writes and does not return."""
        return _tensors_in([args[at] if at < len(args) else (kwargs or {}).get(name) for at, name in self.writes])

    def body(self, args: Any, kwargs: Any, on_gpu: bool) -> Any:
        """Compute it so that a mode which is on sees what it consists of.

        A custom operation runs as on hardware: the kernel for CUDA, where it has one of its own and its arguments are on a GPU.
        """
        func, kwargs = self._func, kwargs or {}
        if self.kind == COMPOSITE and func._can_decompose():
            return func.decompose(*args, **kwargs)
        given = [
            each
            for value in (*args, *kwargs.values())
            for each in (value if isinstance(value, list | tuple) else (value,))
        ]
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
        for each in given:
            if isinstance(each, torch.Tensor):
                keys = keys | torch._C._dispatch_keys(each)
        if on_gpu and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CUDA"):
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        return func.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args, **kwargs)


_CAUSAL = ("is_causal", "causal")


def _tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors among arguments and in lists of them."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


class _Operations(dict[Any, Recorded]):
    def __missing__(self, func: Any) -> Recorded:
        found = self[func] = Recorded(func)
        return found


_operations = _Operations()


class Recorder(TorchDispatchMode):
    """Records the operations of one rank.

    Args:
        device: the rank's.
    """

    def __init__(self, device: RankDevice) -> None:
        super().__init__()
        self._device = device
        self._state = device.state
        self._costs = device.ctx.op_costs

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here that Dynamo could trace, and wrapping would import it

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]  # torch's is a class method, called on the object
        """Whether Dynamo may compile beneath this mode, which sees what was compiled when it runs (ADR 0086)."""
        return not self._device.used

    def open(self) -> None:
        """Record from now on, in this thread."""
        # not `with self`: that also keeps flags per process, which ranks would leave in another order than they entered
        python_dispatch._push_mode(self)

    def close(self) -> None:
        """Stop recording in this thread."""
        python_dispatch._pop_mode()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for cls in types:
            if cls.__module__ == "torch._subclasses.fake_tensor":
                return func(*args, **(kwargs or {}))  # shapes only: nothing runs
            if cls is not torch.Tensor and cls is not torch.nn.Parameter:
                return NotImplemented  # a subclass unwraps itself: its own operations are recorded
        state = self._state
        if state.unsettled:
            self._device.ctx.settle_stream()
        operation = _operations[func]
        if SKIP < operation.kind < VIEW:
            return self._opened(operation, func, args, kwargs or {})
        if operation.draws and (kwargs or self._device.used):
            result = self._draw(operation, args, kwargs or {})
        else:
            result = operation.call(*args, **kwargs) if kwargs else operation.call(*args)
        if operation.kind > VIEW and not state.inside_operation and not (state.holds_tensors and self._is_the_hosts()):
            self._record(operation, args, kwargs, result)
        return result

    def _opened(self, operation: Recorded, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that consists of others with the mode on, so that it sees them.

        A custom operation stands for one kernel: what it computes with torch is placed and takes no time of its own. Kernels
        that it launches and collectives that it calls do; where there are any, they are all that it takes.
        """
        if operation.kind == COLLECTIVE:
            return self._collective(func, args, kwargs)
        device, state = self._device, self._state
        custom, tails = operation.kind == CUSTOM, list(state.tails.values())
        device.in_custom_operation += custom
        on_gpu = any(block_of(each) is not None for each in _tensors_in((*args, *kwargs.values())))
        python_dispatch._push_mode(self)
        try:
            result = operation.body(args, kwargs, on_gpu)
        finally:
            python_dispatch._pop_mode()
            device.in_custom_operation -= custom
        if custom and not state.inside_operation and not (state.holds_tensors and self._is_the_hosts()):
            now = list(state.tails.values())
            launched = len(now) != len(tails) or any(a is not b for a, b in zip(now, tails, strict=True))
            self._record(operation, args, kwargs, result, launched=launched)
        return result

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A functional collective: C++ allocates what it gives, which is where what it was given is."""
        device = self._device
        given = [each for value in args for each in (value if isinstance(value, list | tuple) else (value,))]
        blocks = (block_of(each) for each in given if isinstance(each, torch.Tensor))
        block = next(filter(None, blocks), None) if device.used else None
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

    def _draw(self, operation: Recorded, args: Any, kwargs: Any) -> Any:
        """Run an operation that draws random numbers: on a GPU, from that GPU's generator."""
        wanted = kwargs.get("device")
        if wanted is not None:
            index = self._device.number(wanted) if wanted.type == "cuda" else None
        else:
            blocks = (block_of(each) for each in args if isinstance(each, torch.Tensor))
            index = next((block.memory.index for block in blocks if block is not None), None)
        if index is None or kwargs.get("generator") is not None:
            return operation.call(*args, **kwargs)
        with self._device.generators.drawing(index):
            return operation.call(*args, **kwargs)

    def _is_the_hosts(self) -> bool:
        """Whether an operation of a rank that works on the context's tensors is the host's.

        Such a rank says what its device does, and the context records that itself: its plain CPU tensors are the host's. What
        autograd computes below them in a backward pass is seen here only.
        """
        return not self._device.used and torch._C._current_graph_task_id() < 0

    def _record(self, operation: Recorded, args: Any, kwargs: Any, result: Any, *, launched: bool = False) -> None:
        device, kind = self._device, operation.kind
        inputs, outputs = _tensors_in(args), _tensors_in((result,))
        for output in outputs:
            if output.is_meta or type(output) not in PLAIN:
                return
        if device.used:
            blocks = [block_of(tensor) for tensor in inputs]
            source = next((block for block in blocks if block is not None), None)
            on_device = source is not None
            wanted = kwargs.get("device") if kwargs else None
            if wanted is not None:
                placed = wanted.type == "cuda" or (on_device and _accumulates(operation.name))
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
        if operation.host_reads:
            if device.ctx.hooks is not None:
                device.ctx.hooks.host_read(inputs[0], operation.name)
            device.finish()
            block = block_of(inputs[0])
            if block is not None and block.shared:
                device.look_around(operation.name)
            return
        if launched or (device.in_custom_operation and kind != CUSTOM):
            return
        if operation.writes:
            outputs += operation.written(args, kwargs)
        causal = operation.causal is not None and operation.is_causal(args, kwargs)
        cost = self._costs.of_tensors(operation.name, inputs, outputs, causal)
        if device.used and any(block is not None and block.shared for block in blocks):
            cost = device.over_links(cost, inputs)
        put_on_stream(device, operation.title, cost)


def _accumulates(name: str) -> bool:
    """Whether this makes room for a leaf's gradient: in C++, which says that the leaf is on the CPU."""
    return name == "new_empty_strided" and torch._C._current_graph_task_id() >= 0


def put_on_stream(device: RankDevice, name: str, cost: Cost) -> Operation:
    """Put an operation whose values are there already on the rank's stream."""
    me, engine = device.state, device.ctx.engine
    launch = device.ctx.launch_costs
    me.clock += launch.overhead
    stream = engine.stream(me.sip, me.stream)
    seconds = cost.seconds
    op = Operation(name, cost.kind, me.rank, me.sip, me.stream, me.clock + launch.latency, seconds, cost.spread)
    op.nbytes = cost.nbytes
    tail = stream.tail
    if (tail is None or tail.end is not None) and not me.awaited:
        start = op.enqueue if tail is None or tail.end is None or tail.end < op.enqueue else tail.end
        if engine.cost_model is not None:
            op.duration = seconds = engine.cost_model(op, seconds)
        op.start = start
        op.end = end = start + seconds
        stream.tail = op
        engine.op_log.add(op)
        if end > engine.latest_end:
            engine.latest_end = end
    else:
        engine.submit(op, after=me.take_awaited())
    me.last = me.tails[me.stream] = op
    if device.ctx.hooks is not None:
        device.ctx.hooks.launched(op)
    return op


# `torch.compile` must not trace what records. `torch._disable_dynamo` would say so too, but it imports Dynamo, which takes
# seconds.
_skip = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(Recorder.__torch_dispatch__.__code__, eval_frame._FrameExecStrategy(_skip, _skip))
