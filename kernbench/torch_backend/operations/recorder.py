"""Every torch operation of a rank, on that rank's stream in virtual time: the path of an operation.

A dispatch mode per rank sees each operation below autograd, also those of a backward pass. Operations on tensors that are
on a simulated GPU are recorded; in a program that uses no GPU, those on any tensor are. Views cost nothing.

An operation goes down once: its row (:mod:`~kernbench.torch_backend.operations.operators`) says what kind it is; it is computed
(:class:`~kernbench.torch_backend.operations.computing.Executor`); its result is placed in a SIP's memory; it is priced, and put
on the host's stream. Features listen to these stages (:class:`~kernbench.simulation.ranks.listeners.Listener`).

An operation that follows one whose end is known, which is nearly always, needs no event: its times are set at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch.utils import _python_dispatch as python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.simulation.memory.storages import NOTE, DeviceMemory
from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.listeners import Stages
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.capture_rollback import keep
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.kernels.cuda_words import retold
from kernbench.torch_backend.gpu.kernels.device_asserts import explain_assert
from kernbench.torch_backend.gpu.memory.host_memory import explain_operation
from kernbench.torch_backend.gpu.tensors.nested_tensors import is_nested, is_view
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of, is_described, recount
from kernbench.torch_backend.operations import capture_rules
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.capturing import capture
from kernbench.torch_backend.operations.collective_results import call_collective
from kernbench.torch_backend.operations.computing import Executor
from kernbench.torch_backend.operations.gradient_places import return_gradients
from kernbench.torch_backend.operations.helper_tensors import is_by_indexing, is_helper, made_on_host, mark, position
from kernbench.torch_backend.operations.needs import need
from kernbench.torch_backend.operations.operators import (
    COLLECTIVE,
    COMPOSITE,
    COMPUTE,
    CUSTOM,
    SKIP,
    TRANSFER,
    VIEW,
    TorchOperator,
    operators,
)
from kernbench.torch_backend.operations.plans import NO_PLANS, NOT_PLANNED, Plan, Plans, signature
from kernbench.torch_backend.operations.pricing import Pricing
from kernbench.torch_backend.operations.result_places import ResultPlaces
from kernbench.torch_backend.operations.same_device import check, is_mixed
from kernbench.torch_backend.relies_on import Reliance

_storage: Any = torch._C.TensorBase.untyped_storage
_mode: Any = torch._C._get_dispatch_mode
_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE
_PROXY: Any = torch._C._TorchDispatchModeKey.PROXY
_NO_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl
"""What classes of tensors have that see no operations themselves: they are recorded as any tensor."""

RELIES_ON = (
    Reliance("torch._C._disabled_torch_dispatch_impl", "subclasses without a dispatch of their own have it",
             holds=lambda disabled: torch.Tensor.__torch_dispatch__ is disabled),
    Reliance("torch.utils._python_dispatch.TorchDispatchMode", "it sees operations below autograd", subclassed=True),
    Reliance("torch.utils._python_dispatch", "it is entered and left without a block", has=("_push_mode", "_pop_mode")),
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),
    Reliance("torch._C", "the dispatcher's keys of a thread are read, and set for the length of a block", has=(
        "_ForceDispatchKeyGuard", "_dispatch_tls_local_include_set", "_dispatch_tls_local_exclude_set",
    )),
    Reliance("torch._C.TensorBase.untyped_storage", "of a tensor whatever its class"),
    Reliance("torch._C", "whether tensors are fake, or operations traced: modes that come after all others", has=(
        "_get_dispatch_mode", "_set_dispatch_mode", "_unset_dispatch_mode",
    )),
    Reliance("torch._C._TorchDispatchModeKey", "the kinds of such modes", has=("FAKE", "PROXY")),
    Reliance("torch._C._dynamo.eval_frame", "these have Dynamo step over a function", has=(
        "set_code_exec_strategy", "_FrameAction", "_FrameExecStrategy",
    )),
)  # fmt: skip


class Recorder(TorchDispatchMode):
    """Records operations.

    Args:
        simulation: prices them.
        who: gives the device of the host that runs.
        host: gives that host.
        executor: gives their results.
        plans: what is known of those that have been seen.
        stages: the features that listen.
        shared: whether several ranks run in the thread where it is on. While one of them waits inside an operation, torch has
            taken the mode off; the others need it.
    """

    def __init__(
        self,
        simulation: Simulation,
        who: Callable[[], RankDevice],
        host: Callable[[], Host],
        executor: Executor,
        plans: Plans,
        stages: Stages,
        *,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self._who = who
        self._host = host
        self._hosts = simulation.hosts
        self._shared = shared
        self._while_waiting = functools.partial(_between_operations, self) if shared else nullcontext
        self._executor = executor
        self._stages = stages
        self._values = simulation.values
        self._costs = simulation.op_costs
        spec = simulation.topology.device
        self._places = ResultPlaces(_DISPATCH, spec, self._while_waiting)
        target = spec.target
        self._capability = int(target.arch) if target.backend == "cuda" else 0
        self._pricing = Pricing(simulation)
        self._host_costs = self._pricing.host_costs
        self._flops = self._pricing.flops
        self._engine = simulation.engine
        self._latency = simulation.topology.device.launch.latency
        self._plans = plans
        self._hollow = plans.hollow

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
        """The bare path of an operation whose plan is known, where nothing listens; else the whole one."""
        host = self._host()
        if types or host.detours or host.unsettled:
            return self._whole(func, types, args, kwargs)
        operator = operators[func]
        if operator.passes:
            return operator.call(*args, **kwargs) if kwargs else operator.call(*args)
        known = self._plans.of(host.uses_gpu).get(operator, NO_PLANS)
        if known.view:
            return self._view(host, operator, args, kwargs)
        if not known or host.stream in host.awaited or (self._hollow and _mode(_FAKE)) or _mode(_PROXY):
            return self._whole(func, types, args, kwargs)
        try:
            key, memory = signature(args, kwargs, self._hollow, operator.beside)
            plan = known[key]
        except NOT_PLANNED:
            return self._whole(func, types, args, kwargs)
        if memory and memory.sip != host.sip:  # of another GPU than the current one
            with host.driving(memory.sip):
                if host.stream in host.awaited:
                    return self._whole(func, types, args, kwargs)
                return self._run_plan(host, plan, memory, args, kwargs)
        return self._run_plan(host, plan, memory, args, kwargs)

    def _view(self, host: Host, operator: TorchOperator, args: Any, kwargs: Any) -> Any:
        """A view of a tensor: the host pays for it where it is one of the device's."""
        result = operator.call(*args, **kwargs) if kwargs else operator.call(*args)
        if not host.uses_gpu or block_of(args[0]) is not None:
            host.prepare(self._host_costs.of_view(operator.inner))
        return result

    def _run_plan(self, host: Host, plan: Plan, memory: DeviceMemory | None, args: Any, kwargs: Any) -> Any:
        """Compute what a plan says, place its results, and put it on the host's stream."""
        if plan.make:
            result: Any = plan.make()
        elif plan.marks:
            result = args[0] if plan.returns_first else None
            for each in plan.marks(args, kwargs):
                note = getattr(_storage(each), NOTE)
                note.stated, note.stand_in, note.missing = False, None, None
        else:
            try:
                result = plan.call(*args, **kwargs) if kwargs else plan.call(*args)
            except (RuntimeError, IndexError) as error:
                self._explain(error, self._who(), _name_of(plan), args, kwargs)
                raise
        title = plan.title
        if not title:
            return result
        if memory:
            if plan.fresh >= 0:
                if type(result) is not torch.Tensor:  # a mode below has made another one of it
                    return result
                storage = _storage(result)
                if not hasattr(storage, NOTE):
                    setattr(storage, NOTE, memory.hold_for(host, storage.nbytes()))
            elif plan.place:
                plan.place(result, memory)
        if plan.more:
            if plan.flops:
                self._flops.count(host.account, plan.format, plan.flops)
            if memory:
                need(memory, host, plan.library, plan.scratch)
        around = self._host_costs.around(host, args)
        clock = host.clock = host.clock + around + plan.host
        host.busy = host.busy + around + plan.host
        spent, host.prepared = plan.host + (host.prepared + around), 0.0
        stream = host.stream
        lane = host.lanes.get(stream)
        if not lane or lane.sip != host.sip:
            lane = host.lanes[stream] = self._engine.lane(host.rank, host.sip, stream)
        host.tails[stream] = self._engine.append(lane, title, clock + self._latency, plan.seconds, spent)
        return result

    def _whole(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for cls in types:
            if is_described(cls):
                return func(*args, **(kwargs or {}))  # shapes only: nothing runs, and a mode of theirs may be below
            if cls not in PLAIN and cls.__torch_dispatch__ is not _NO_DISPATCH:
                if getattr(func, "namespace", "") == "c10d" and self._who().doing.dispatched is not None:
                    break
                if (watcher := self._who().host.watcher) is not None:
                    watcher.passed_on()
                self._host().prepare(self._host_costs.subclass)
                return NotImplemented  # a subclass unwraps itself: its own operations are recorded
        tracer = _mode(_PROXY)
        if tracer is not None and _mode(_FAKE) is None and not self._host().unrecorded:
            return self._traced(tracer, func, types, args, kwargs or {})
        operator = operators[func]
        if not types and operator.higher_order and any(is_described(type(each)) for each in listed_tensors(args)):
            return func(*args, **(kwargs or {}))  # torch does not name the classes of its arguments
        device = self._who()
        host = device.host
        if not host.uses_gpu and any(block_of(each) is not None for each in listed_tensors(args)):
            host.uses_gpu = True  # by a tensor that another has made: an argument of a spawn, what a queue has brought
        if operator.kind > VIEW and (there := _elsewhere(device, args, kwargs)) is not None:
            with host.driving(there):
                return self._whole(func, types, args, kwargs)
        if device.doing.helpers_at is not None and device.doing.helpers_at != position(_DISPATCH, _TRACED):
            device.doing.helpers_at = None
            host.detours -= 1
        quiet = not (host.detours or host.unsettled or host.stream in host.awaited or types)
        if host.unsettled:
            with self._while_waiting():
                self._values.settle_stream()
        if device.doing.dispatched is not None and operator.kind == SKIP and func.namespace == "c10d":
            carry_out, device.doing.dispatched = device.doing.dispatched, None
            with open_recorder(self):
                return carry_out()
        if host.capture is not None and not host.unrecorded and operator.mutates:
            keep(host, listed_tensors((*args, *(kwargs or {}).values())))
        if SKIP < operator.kind < VIEW:
            operator = operator.chosen(args, kwargs, host.rank)
        if operator.kind == TRANSFER and type(args[0]) is list and is_mixed(args, kwargs):
            return self._copied_one_by_one(*args, **(kwargs or {}))
        call = OperatorCall(device, operator, args, kwargs)
        if SKIP < operator.kind < VIEW:
            call.kwargs = kwargs or {}
            return self._opened(call)
        if operator.host_reads and not host.unrecorded:
            with self._while_waiting():
                _before_host_read(device, operator.name, args[0])
        if host.uses_gpu and not self._shared and operator.kind == COMPUTE and is_mixed(args, kwargs):
            quiet = self._allows(call) and quiet
            on_host = [each for each in listed_tensors((*args, *(kwargs or {}).values())) if block_of(each) is None]
            quiet = not return_gradients(on_host) and quiet
        if operator.check is not None and self._capability and not device.inside_operation:
            operator.check(self._capability, args, kwargs)
        if host.capture is not None and operator.kind > VIEW and not device.inside_operation:
            capture_rules.check(call, functools.partial(is_helper, device))
        if operator.kind == SKIP and host.watcher is not None:
            with host.watcher.within():
                return self._computed(call)
        result = self._computed(call)
        if host.unrecorded or self._hosts.inside_kernel:
            return result
        if operator.kind == VIEW:
            if host.each is None and (not host.uses_gpu or block_of(args[0]) is not None):
                host.prepare(self._host_costs.of_view(operator.inner))
            if operator not in self._plans.of(host.uses_gpu):
                self._plans.learn_view(operator, host.uses_gpu)
        elif operator.kind > VIEW and not operator.host_reads:
            if host.capture is not None and not self._executor.stays_unknown(call) and not operator.allocates:
                capture(call)  # before it is recorded, as below: it waits for kernels
            self._record(call)
            if host.capture is not None:
                host.capture.memory.hold_expected()
            if device.doing.helpers_at is not None or (host.uses_gpu and (operator.shapes_only or not call.inputs)):
                self._note_helpers(call)
            if quiet and not host.detours:
                self._plans.learn(call, host.uses_gpu)
        return result

    def _copied_one_by_one(
        self, targets: list[torch.Tensor], sources: list[torch.Tensor], non_blocking: bool = False
    ) -> None:
        """``torch._foreach_copy_`` between devices, which is one kernel within one."""
        with open_recorder(self):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking)

    def _traced(self, tracer: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Have a tracer (``make_fx``), which comes after all other modes, see an operation before it is carried out: of what is
        done for that, and of other tensors than it has seen, its graph would not know."""
        kwargs = self._places.as_on_gpus(self._who(), args, kwargs)
        torch._C._unset_dispatch_mode(_PROXY)
        try:
            with open_recorder(self):
                return tracer.__torch_dispatch__(func, types, args, kwargs)
        finally:
            torch._C._set_dispatch_mode(tracer)

    def _allows(self, call: OperatorCall) -> bool:
        """Whether CUDA allows each call like this one, whose tensors are on several devices; False: this one alone, for where
        it is made.

        What makes up another operation, and what a backward pass consists of, may have helpers that C++ has made anywhere.
        Where ranks are greenlets there is no ``cuda``, and none of this. Raises RuntimeError if CUDA refuses it.
        """
        device = call.device
        if device.inside_operation or device.doing.compiling or torch._C._current_graph_task_id() >= 0:
            return False
        return not check(call, functools.partial(is_helper, device), functools.partial(is_by_indexing, _DISPATCH))

    def _note_helpers(self, call: OperatorCall) -> None:
        """Remember what was made of nothing on the host until the program goes on to its next instruction."""
        device = call.device
        made = made_on_host(call)
        if not made:
            return
        at = position(_DISPATCH, _TRACED) if device.doing.helpers_at is None else device.doing.helpers_at
        if mark(call, made, at) and device.doing.helpers_at is None:
            device.doing.helpers_at = at
            device.host.detours += 1

    def _computed(self, call: OperatorCall) -> Any:
        """Compute an operation."""
        stages = self._stages
        with stages.around_computing(call) if stages.computing else _nothing:
            if call.operator.host_reads and not call.device.host.unrecorded:
                for listener in stages.looking:
                    listener(call)
            try:
                call.result = self._executor.compute(call)
            except (RuntimeError, IndexError) as error:
                self._explain(error, call.device, call.operator.name, call.args, call.kwargs)
                raise
        if call.operator.resizes:
            for tensor in call.operator.written(call.args, call.kwargs):
                recount(tensor)
        for listener in stages.computed:
            listener(call)
        return call.result

    def _explain(self, error: Exception, device: RankDevice, name: str, args: Any, kwargs: Any) -> None:
        """Raise what a GPU would have said, or what is wrong on this machine, where that is what a kernel's error is about."""
        if isinstance(error, RuntimeError):
            explain_operation(error, device, name, args, kwargs)
        if self._capability and not device.inside_operation:
            explain_assert(error, name, args, kwargs)
            told = retold(error, args, kwargs)
            if told is not None:
                raise told from error

    def _opened(self, call: OperatorCall) -> Any:
        """Run an operation that consists of others with the mode on, so that it sees them.

        A custom operation stands for one kernel: what it computes with torch is placed and takes no time of its own. Kernels
        that it launches, those of compiled libraries among them, and collectives that it calls do; where there are any, they
        are all that it takes. One whose function is registered for CUDA takes what that does, torch's operations among it,
        unless a cost is known of the whole.
        """
        device, operator, args, kwargs = call.device, call.operator, call.args, call.kwargs
        if operator.kind == COLLECTIVE:
            return call_collective(device, operator.call, args, kwargs)
        host = device.host
        if operator.kind == COMPOSITE and any(map(is_nested, args)):
            # what it is composed of asks for a shape, which these have not: it is one operation, as C++ has it
            result = self._computed(call)
            if not (host.unrecorded or self._hosts.inside_kernel or is_view(result, args[0])):
                self._record(call)
            return result
        on_gpu = any(block_of(each) is not None for each in listed_tensors((*args, *kwargs.values())))
        runs = operator.for_gpus and on_gpu and not self._costs.is_known(operator.name)
        custom, tails = operator.kind == CUSTOM and not runs, host.tails.marks()
        device.doing.in_custom_operation += custom
        host.detours += custom
        try:
            with open_recorder(self), nullcontext() if host.watcher is None else host.watcher.within():
                call.result = operator.body(args, kwargs, on_gpu, host.rank)
        finally:
            device.doing.in_custom_operation -= custom
            host.detours -= custom
        if operator.kind == CUSTOM and not (host.unrecorded or self._hosts.inside_kernel):
            there = _elsewhere(device, args, kwargs)
            with host.driving(there):
                self._record(call, launched=runs or host.tails.marks() != tails)
        return call.result

    def _record(self, call: OperatorCall, *, launched: bool = False) -> None:
        """Put what an operation has given where it belongs, and the operation on its stream.

        ``launched``: kernels of its own are there already, and are all that it takes.
        """
        if self._places.put(call):
            self._pricing.put(call, launched=launched)
        for listener in self._stages.recorded:
            listener(call)


_nothing: Any = nullcontext()


def _elsewhere(device: RankDevice, args: Any, kwargs: Any) -> int | None:
    """The SIP that an operation is on, where that is not the one that the host drives: as its first tensor on one is, or the
    device that it names. One without a number is the current one, whatever the tensors are on."""
    wanted: Any = kwargs.get("device") if kwargs else None
    named = wanted is not None and wanted.type == "cuda"
    if named and wanted.index is None:
        return None
    block = next(filter(None, map(block_of, listed_tensors(args))), None)
    if block is not None:
        sip = block.own_sip
    else:
        sip = device.sip(wanted) if named else None
    return None if sip == device.host.sip else sip


def _name_of(plan: Plan) -> str:
    return plan.title.name.partition(".")[0] if plan.title else "an operation"


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
    simulation.host_reads.to_host(block.own_sip, tensor.element_size())
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


_DISPATCH, _TRACED = Recorder.__torch_dispatch__.__code__, Recorder._traced.__code__

_INCLUDED, _EXCLUDED = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
"""The dispatcher's keys of a thread that is in no operation."""


@contextmanager
def _between_operations(recorder: Recorder) -> Iterator[None]:
    """For the length of a block, in which other ranks of the thread may run: as if the thread were in no operation.

    Inside one the dispatcher leaves out keys (autograd's, say), by thread.
    """
    with torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED), open_recorder(recorder):
        yield


# `torch.compile` must not trace what records. `torch._disable_dynamo` would say so too, but it imports Dynamo, which takes
# seconds.
_skip = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(Recorder.__torch_dispatch__.__code__, eval_frame._FrameExecStrategy(_skip, _skip))
