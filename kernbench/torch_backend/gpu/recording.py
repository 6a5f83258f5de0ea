"""Every torch operation of a rank, on that rank's stream in virtual time.

A dispatch mode per rank sees each operation below autograd, also those of a backward pass. Operations on tensors that are
on a simulated GPU are recorded; in a program that uses no GPU, those on any tensor are. Views cost nothing.

What has to be known about an operation besides its arguments is found out once (:class:`Recorded`).

An operation that follows one whose end is known, which is nearly always, needs no event: its times are set at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch.utils import _python_dispatch as python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.cost.op_estimates import is_matrix_operation
from kernbench.cost.operators import Kind, find
from kernbench.cost.work import Cost
from kernbench.simulation.capture_effects import keep
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.tensors import listed_tensors, plain_of, tells_of_looks
from kernbench.topology.system import HostSpec
from kernbench.torch_backend.gpu.captured_values import computes_again
from kernbench.torch_backend.gpu.flop_counts import FlopCounts, formula_of
from kernbench.torch_backend.gpu.generators import draws, home_of
from kernbench.torch_backend.gpu.missing_kernels import kernel_of
from kernbench.torch_backend.gpu.nested_tensors import as_rows, is_nested, is_view
from kernbench.torch_backend.gpu.overridden import dispatches_to_gpu, is_overridden, kernel_for, overload, tell
from kernbench.torch_backend.gpu.pinning import is_pinned, pinned
from kernbench.torch_backend.gpu.placement import PLAIN, block_of, is_described, place, place_result, resized
from kernbench.torch_backend.gpu.rank_device import RankDevice
from kernbench.torch_backend.gpu.scaled_products import refusal_of
from kernbench.torch_backend.gpu.wide_products import widened
from kernbench.torch_backend.relies_on import Reliance


def _computes(overload: Any) -> bool:
    return bool(overload._op(torch.ones(1), torch.ones(1)) == 2) and overload._opname == "add"


_NO_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl
"""What classes of tensors have that see no operations themselves: they are recorded as any tensor."""

RELIES_ON = (
    Reliance("torch._C._disabled_torch_dispatch_impl", "subclasses without a dispatch of their own have it",
             holds=lambda disabled: torch.Tensor.__torch_dispatch__ is disabled),
    Reliance("torch.ops.aten.add.Tensor", "an overload's `_op` computes what it does", has=("_op", "_opname", "_schema"),
             holds=_computes),
    Reliance("torch._ops.OpOverload", "other callables are no operations of one kind", has=("name",)),
    Reliance("torch._ops.HigherOrderOperator", "its functions of Python are found by dispatch key", has=("name", "py_impl"),
             holds=lambda kind: hasattr(torch.ops.higher_order.cond, "py_kernels")),
    Reliance("torch.utils._python_dispatch.TorchDispatchMode", "it sees operations below autograd", subclassed=True),
    Reliance("torch.utils._python_dispatch", "it is entered and left without a block", has=("_push_mode", "_pop_mode")),
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),
    Reliance("torch._C", "a custom operator goes on below autograd, to the kernel of the GPU where it has one", has=(
        "DispatchKey", "DispatchKeySet", "_dispatch_keys", "_after_ADInplaceOrView_keyset",
        "_dispatch_has_kernel_for_dispatch_key",
    )),
    Reliance("torch._C._dynamo.eval_frame", "Dynamo is told by these to step over a function", has=(
        "set_code_exec_strategy", "_FrameAction", "_FrameExecStrategy",
    )),
)  # fmt: skip

SKIP, COLLECTIVE, COMPOSITE, HIGHER, CUSTOM, VIEW, TRANSFER, COMPUTE = range(8)
"""Kinds of operations. Those between SKIP and VIEW are opened; those behind VIEW are recorded."""

_TORCHS_OWN = frozenset({"aten", "prims", "torchvision"})
_FUNCTIONAL_COLLECTIVES = frozenset({"_c10d_functional", "_dtensor"})
_RUN_ELSEWHERE = frozenset({"c10d", "c10d_functional", "symm_mem", "profiler", "prim"})
"""Namespaces of what is no kernel, or is put on its stream by whoever carries it out."""
_WRITTEN_IN_PYTHON = frozenset({"torch_nn", "_c10d_functional_autograd"})
"""Namespaces of what torch composes of other operations, in Python."""


def classify(func: Any) -> int:
    """What kind of operation an ``OpOverload`` is: by the table of operators, then by its schema."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        return SKIP if _implementation(func) is None else CUSTOM if find(func.name()) is not None else HIGHER
    if not isinstance(func, torch._ops.OpOverload):
        return SKIP
    namespace = func.namespace
    if namespace in _FUNCTIONAL_COLLECTIVES:
        return COLLECTIVE
    schema = func._schema
    if namespace in _RUN_ELSEWHERE:
        return SKIP
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composed = has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")
    if namespace in _WRITTEN_IN_PYTHON or composed:
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


def _implementation(func: Any) -> Any:
    """The function of Python that carries out an operation of higher order; None if it has none here."""
    key = torch._C.DispatchKey
    keys: Any = (key.BackendSelect, key.CompositeExplicitAutograd, key.CPU)
    return next((func.py_kernels[each] for each in keys if each in func.py_kernels), None)


class Recorded:
    """What there is to know about an operation, whatever its arguments: found out when it is first seen.

    Attributes:
        func: the operation.
        kind: see :func:`classify`.
        call: computes it; without the frame that ``OpOverload.__call__`` is.
        name: without overload, and without namespace if it is torch's own.
        title: with the overload, for traces.
        allocates: it takes memory and launches nothing.
        host_reads: its result is a value of the host's.
        multiplies: it may have FLOPs to count.
        flag: which argument, by place and name, changes what it costs, and to what value: an attention is causal, a product
            in eight bits keeps its sums in 32 bits; None if it has none.
        copies: it copies one tensor.
        draws: it draws random numbers.
        check: raises if CUDA refuses it with given arguments; None for what it never refuses.
        wide: computes a product in 32 bits where the CPU is slow at less; None for what is no product.
        writes: arguments that it writes and does not return, by place and name.
        stock: for one that a rank's program computes by a kernel of its own on GPUs: what it is everywhere else.
    """

    __slots__ = (
        "allocates",
        "call",
        "check",
        "copies",
        "draws",
        "flag",
        "func",
        "host_reads",
        "kind",
        "multiplies",
        "name",
        "stock",
        "title",
        "wide",
        "writes",
    )

    def __init__(self, func: Any, *, overridden: bool = False) -> None:
        self.func = func
        self.stock = Recorded(func) if overridden else None
        self.kind = CUSTOM if overridden else classify(func)
        self.title = str(getattr(func, "__name__", "op"))
        self.draws = draws(func)
        self.wide = widened(func)
        self.copies = self.title.partition(".")[0] in _COPIES
        self.multiplies = False
        self.check: Any = None
        self.flag: tuple[int, str, bool] | None = None
        self.writes: list[tuple[int, str]] = []
        if not isinstance(func, torch._ops.OpOverload):
            self.call, self.name, self.allocates, self.host_reads = func, self.title, False, False
            if self.kind in (HIGHER, CUSTOM):
                self.name = self.title = func.name()
                self.draws = False  # what it consists of does
            return
        self.call = kernel_of(func)
        self.name = func._opname if func.namespace in _TORCHS_OWN else f"{func.namespace}::{func._opname}"
        if self.kind == CUSTOM:
            self.title = self.name
        self.multiplies = self.kind == CUSTOM or is_matrix_operation(self.name) or formula_of(func) is not None
        self.check = refusal_of(self.name)
        row = find(self.name)
        self.allocates = row is not None and row.kind is Kind.ALLOCATION
        self.host_reads = row is not None and row.kind is Kind.HOST_READ
        arguments = func._schema.arguments
        for at, argument in enumerate(arguments):
            if argument.name in _FLAGS and (self.kind == CUSTOM or is_matrix_operation(self.name)):
                self.flag = at, argument.name, _FLAGS[argument.name]
        returned = {name for each in func._schema.returns if each.alias_info for name in each.alias_info.before_set}
        for at, argument in enumerate(arguments):
            alias = argument.alias_info
            if alias is not None and alias.is_write and not returned.intersection(alias.before_set):
                self.writes.append((at, argument.name))

    def is_flagged(self, args: Any, kwargs: Any) -> bool:
        """Whether an attention was told to skip what comes later, or a product to keep its sums in 32 bits."""
        if self.flag is None:
            return False
        at, name, value = self.flag
        return bool((kwargs or {}).get(name, args[at] if at < len(args) else False)) is value

    def is_non_blocking(self, args: Any, kwargs: Any) -> bool:
        """Whether a copy was told not to wait for its end."""
        if kwargs and "non_blocking" in kwargs:
            return bool(kwargs["non_blocking"])
        return self.name == "copy_" and len(args) > 2 and bool(args[2])

    def written(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The arguments that it writes and does not return."""
        return listed_tensors([args[at] if at < len(args) else (kwargs or {}).get(name) for at, name in self.writes])

    def chosen(self, args: Any, kwargs: Any, rank: int | None) -> Recorded:
        """What it is with given arguments: the kernel of the rank's program is for tensors on GPUs."""
        if self.stock is None or (kernel_for(self.func.name(), rank) is not None and dispatches_to_gpu(args, kwargs)):
            return self
        return self.stock

    def body(self, args: Any, kwargs: Any, on_gpu: bool, rank: int | None) -> Any:
        """Compute it so that a mode which is on sees what it consists of.

        A custom operation runs as on hardware: the kernel for CUDA, where it has one of its own and its arguments are on a GPU.
        """
        func, kwargs = self.func, kwargs or {}
        if self.stock is not None:
            kernel = kernel_for(func.name(), rank)
            assert kernel is not None
            return kernel(*args, **kwargs)
        if isinstance(func, torch._ops.HigherOrderOperator):
            return _implementation(func)(*args, **kwargs)
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


_COPIES = ("clone", "copy_", "_to_copy")
_FLAGS = {"is_causal": True, "causal": True, "use_fast_accum": False}


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds of the host around an operator, by who calls it.

    Attributes:
        view: it launches nothing.
        autograd: the program, and a gradient of it is wanted.
        backward: autograd.
    """

    view: float
    autograd: float
    backward: float

    @classmethod
    def of(cls, spec: HostSpec) -> HostCosts:
        """Those of a system's host."""
        return cls(*(spec.factor * seconds for seconds in (spec.view, spec.autograd, spec.backward)))

    def around(self, inputs: Sequence[torch.Tensor]) -> float:
        """What comes on top of a launch of an operator with these inputs, called now."""
        if torch._C._current_graph_task_id() >= 0:
            return self.backward
        if torch.is_grad_enabled():
            for each in inputs:
                if each.requires_grad:
                    return self.autograd
        return 0.0


class _RecordedByOperator(dict[Any, Recorded]):
    def __missing__(self, func: Any) -> Recorded:
        overridden = isinstance(func, torch._ops.OpOverload) and is_overridden(func.name())
        found = self[func] = Recorded(func, overridden=overridden)
        return found

    def forget(self, operator: str) -> None:
        self.pop(overload(operator), None)


_operations = _RecordedByOperator()
tell(_operations.forget)


class Recorder(TorchDispatchMode):
    """Records operations.

    Args:
        simulation: prices them.
        who: the device of whoever runs.
        shared: whether several ranks run in the thread where it is on. While one of them waits inside an operation, torch has
            taken the mode off; the others need it.
    """

    def __init__(self, simulation: Simulation, who: Callable[[], RankDevice], *, shared: bool = False) -> None:
        super().__init__()
        self._who = who
        self._hosts = simulation.hosts
        self._shared = shared
        self._while_waiting = functools.partial(open_recorder, self) if shared else nullcontext
        self._values = simulation.values
        self._costs = simulation.op_costs
        self._widens = not simulation.exact_dtype
        target = simulation.topology.device.target
        self._capability = int(target.arch) if target.backend == "cuda" else 0
        self._host_costs = HostCosts.of(simulation.topology.system.host)
        self._flops = FlopCounts(simulation.op_costs)
        self._enqueue = simulation.streams.enqueue
        self._descriptions = simulation.descriptions

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here that Dynamo could trace, and wrapping would import it

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]  # torch's is a class method, called on the object
        """Whether Dynamo may compile beneath this mode, which sees what was compiled when it runs (ADR 0111).

        Where ranks share a thread, they share what Dynamo does with it: what they put on GPUs runs as it is written.
        """
        return not self._shared or not self._who().host.uses_gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for cls in types:
            if is_described(cls):
                return func(*args, **(kwargs or {}))  # shapes only: nothing runs, and a mode of theirs may be below
            if cls not in PLAIN and cls.__torch_dispatch__ is not _NO_DISPATCH:
                if getattr(func, "namespace", "") == "c10d" and self._who().dispatched is not None:
                    break
                if (watcher := self._who().host.watcher) is not None:
                    watcher.passed_on()
                return NotImplemented  # a subclass unwraps itself: its own operations are recorded
        if not types and any(is_described(type(tensor)) for tensor in listed_tensors(args)):
            return func(
                *args, **(kwargs or {})
            )  # an operation of higher order, whose arguments' classes torch does not tell
        device = self._who()
        host = device.host
        if host.unsettled:
            with self._while_waiting():
                self._values.settle_stream()
        operation = _operations[func]
        if device.dispatched is not None and operation.kind == SKIP and func.namespace == "c10d":
            carry_out, device.dispatched = device.dispatched, None
            with open_recorder(self):
                return carry_out()
        if (
            host.capture is not None
            and not host.unrecorded
            and getattr(getattr(func, "_schema", None), "is_mutable", False)
        ):
            keep(host, listed_tensors((*args, *(kwargs or {}).values())))
        if SKIP < operation.kind < VIEW:
            operation = operation.chosen(args, kwargs, host.rank)
        if SKIP < operation.kind < VIEW:
            return self._opened(device, operation, func, args, kwargs or {})
        if operation.host_reads and not host.unrecorded:
            with self._while_waiting():
                _before_host_read(device, operation.name, args[0])
        if operation.check is not None and self._capability:
            operation.check(self._capability, args)
        if operation.kind == SKIP and host.watcher is not None:
            with host.watcher.within():
                return self._computed(device, operation, func, args, kwargs)
        result = self._computed(device, operation, func, args, kwargs)
        if host.unrecorded or self._hosts.inside_kernel:
            return result
        if operation.kind == VIEW:
            if host.each is None and (not host.uses_gpu or block_of(args[0]) is not None):
                host.prepare(self._host_costs.view)
        elif operation.kind > VIEW and not operation.host_reads:
            if host.capture is not None and not operation.allocates:
                # before it is told, as below: it waits for kernels
                self._capture(device, operation, func, args, kwargs or {}, result)
            self._record(device, operation, args, kwargs, result)
        return result

    @staticmethod
    def _capture(device: RankDevice, operation: Recorded, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Have the values of an operation on a GPU computed again when the graph that is being captured is replayed."""
        tensors = listed_tensors((*args, *kwargs.values(), result))
        if device.moving or any(block_of(each) is not None for each in tensors):
            host = device.host
            assert host.capture is not None
            if operation.draws and kwargs.get("generator") is not None:
                kwargs = {**kwargs, "generator": home_of(kwargs["generator"])}
            again = functools.partial(func, *args, **kwargs)
            host.capture.add(
                computes_again(host, device.generators.as_now(again) if operation.draws else again, result)
            )

    def _computed(self, device: RankDevice, operation: Recorded, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation."""
        if operation.draws and (kwargs or device.host.uses_gpu):
            return self._draw(device, operation, args, kwargs or {})
        if operation.wide is not None and self._widens:
            return operation.wide(*args, **(kwargs or {}))
        return operation.call(*args, **kwargs) if kwargs else operation.call(*args)

    def _opened(self, device: RankDevice, operation: Recorded, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that consists of others with the mode on, so that it sees them.

        A custom operation stands for one kernel: what it computes with torch is placed and takes no time of its own. Kernels
        that it launches and collectives that it calls do; where there are any, they are all that it takes.
        """
        if operation.kind == COLLECTIVE:
            return self._collective(device, operation.call, args, kwargs)
        host = device.host
        if operation.kind == COMPOSITE and any(map(is_nested, args)):
            # what it is composed of asks for a shape, which these have not: it is one operation, as C++ has it
            result = self._computed(device, operation, func, args, kwargs)
            if not (host.unrecorded or self._hosts.inside_kernel or is_view(result, args[0])):
                self._record(device, operation, args, kwargs, result)
            return result
        custom, tails = operation.kind == CUSTOM, list(host.tails.values())
        device.in_custom_operation += custom
        on_gpu = any(block_of(each) is not None for each in listed_tensors((*args, *kwargs.values())))
        try:
            with open_recorder(self), nullcontext() if host.watcher is None else host.watcher.within():
                result = operation.body(args, kwargs, on_gpu, host.rank)
        finally:
            device.in_custom_operation -= custom
        if custom and not (host.unrecorded or self._hosts.inside_kernel):
            now = list(host.tails.values())
            launched = len(now) != len(tails) or any(a is not b for a, b in zip(now, tails, strict=True))
            self._record(device, operation, args, kwargs, result, launched=launched)
        return result

    def _collective(self, device: RankDevice, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A functional collective: C++ allocates what it gives, which is where what it was given is."""
        given = [each for value in args for each in (value if isinstance(value, list | tuple) else (value,))]
        blocks = (block_of(each) for each in given if isinstance(each, torch.Tensor))
        block = next(filter(None, blocks), None) if device.host.uses_gpu else None
        if block is None:
            return call(*args, **kwargs)
        before, device.collective_memory = device.collective_memory, block.memory
        try:
            result = call(*args, **kwargs)
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
            index = next((device.index_of(block.memory.sip) for block in blocks if block is not None), None)
        given = kwargs.get("generator")
        if given is not None:
            kwargs = {**kwargs, "generator": home_of(given)}
        if index is not None and device.host.capture is not None:
            device.host.capture.draw(device.generators.home(index) if given is None else kwargs["generator"])
        if index is None or given is not None:
            return operation.call(*args, **kwargs)
        with device.generators.drawing(index):
            return operation.call(*args, **kwargs)

    def _cost(self, operation: Recorded, inputs: list[torch.Tensor], outputs: list[torch.Tensor], flag: bool) -> Cost:
        """What it takes. Raises RuntimeError if a tensor has no shape."""
        crossed = operation.copies and len(outputs) == 1 and _crosses(inputs[-1], outputs[0])
        return self._costs.of_tensors(operation.name, inputs, outputs, flag, crossed)

    def _record(
        self, device: RankDevice, operation: Recorded, args: Any, kwargs: Any, result: Any, *, launched: bool = False
    ) -> None:
        kind, shared = operation.kind, False
        inputs = _as_they_are(listed_tensors(args))
        outputs = _as_they_are([result] if isinstance(result, torch.Tensor) else listed_tensors((result,)))
        for output in outputs:
            if type(output) not in PLAIN and not tells_of_looks(output):
                return
        if device.host.uses_gpu:
            blocks = [block_of(tensor) for tensor in inputs]
            source = None
            for block in blocks:
                if block is not None:
                    source = source or block
                    shared = shared or block.shared
            on_device = source is not None
            wanted = kwargs.get("device") if kwargs else None
            if wanted is not None:
                placed = wanted.type == "cuda" or (on_device and _stays(device, operation.name, inputs, outputs))
                if kind == TRANSFER and placed != on_device:
                    goes_on = not placed and operation.is_non_blocking(args, kwargs)
                    if goes_on:
                        pinned(outputs[0])  # what torch allocates for it is
                    with self._while_waiting():
                        target = device.memory_at(wanted) if placed else None
                        device.transfer(outputs, target, inputs[0], waits=not goes_on)
                    return
            else:
                placed = on_device
            if not placed:
                return
            if kind == TRANSFER and len(blocks) == 2 and (blocks[0] is None) != (blocks[1] is None):
                goes_on = blocks[0] is None and is_pinned(outputs[0]) and operation.is_non_blocking(args, kwargs)
                with self._while_waiting():
                    target = None if blocks[0] is None else blocks[0].memory
                    device.transfer(outputs, target, inputs[1], waits=not goes_on)
                return
            if kind == TRANSFER and len(blocks) == 2:
                there, origin = blocks  # of `copy_`
                if there is not None and origin is not None and there.memory is not origin.memory:
                    device.peer_copy(outputs, origin.memory, there.memory)
                    return
            memory = device.memory if source is None or source.shared else source.memory
            for output in outputs:
                place_result(output, memory)
                if not inputs:
                    resized(output)
        if operation.allocates or not (outputs or inputs):
            return
        if launched or (device.in_custom_operation and kind != CUSTOM):
            if launched and not device.in_custom_operation:
                call = operation.func, operation.name, args, kwargs, result, inputs, outputs
                self._flops.add_whole(device.host.account, call)
            return
        if operation.writes:
            outputs += operation.written(args, kwargs)
        flag = operation.flag is not None and operation.is_flagged(args, kwargs)
        try:
            cost = self._cost(operation, inputs, outputs, flag)
        except RuntimeError:
            if not any(map(is_nested, (*inputs, *outputs))):
                raise
            inputs, outputs = as_rows(inputs), as_rows(outputs)
            cost = self._cost(operation, inputs, outputs, flag)
        if operation.multiplies and not device.in_custom_operation:
            call = operation.func, operation.name, args, kwargs, result, inputs, outputs
            self._flops.add(device.host.account, cost, call)
        if shared:
            cost = device.over_links(cost, inputs)
        if device.diverted is not None:
            device.diverted(operation.name, inputs, outputs, cost)
            return
        if device.host.each is None:
            device.host.prepare(self._host_costs.around(inputs))
        op = self._enqueue(device.host, operation.title, cost)
        if self._descriptions is not None:
            known = self._costs.flops.get(id(cost))
            self._descriptions.record(op, inputs, outputs, 0 if known is None or known[0] is not cost else known[2])


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


def _crosses(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether neighbours in the memory of a copy are none in that of the original: rows become columns."""
    if source.shape != target.shape or source.layout is not torch.strided:
        return False
    beside = zip(source.shape, source.stride(), target.stride(), strict=True)
    return any(there == 1 and size > 1 and here > 1 for size, here, there in beside)


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
