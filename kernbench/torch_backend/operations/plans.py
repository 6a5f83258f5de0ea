"""What an operation with a signature does, found out once: applied again, it is a look-up, a computation and a row of the log.

The **signature** of a call is all of its arguments that its results' shapes, its cost and its FLOPs depend on: of tensors
shape, dtype and whether they are on the GPU (without data also strides, and whether they are hollow), of floats the type alone,
of all else the value. A **plan** never holds a value. A call has no signature, and takes the whole path, if its tensors are on
several GPUs, in memory that ranks share, have no storage or another class, are given by keyword, or if something in it has no
hash.

What makes a plan invalid is a part of the signature or moves the epoch of the costs; what takes a host off the bare path is
counted in :attr:`~kernbench.simulation.ranks.hosts.Host.detours`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernbench.cost.op_costs import OpCosts
from kernbench.sim_engine.log_rows import Title
from kernbench.sim_engine.operation import ON_PES
from kernbench.simulation.memory.storages import NOTE, Block, DeviceMemory
from kernbench.simulation.memory.tensor_queries import made_tensors
from kernbench.torch_backend.gpu.kernels.wide_products import slow_formats
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, place_result
from kernbench.torch_backend.hollow.executor import HollowValues
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.computing import Executor
from kernbench.torch_backend.operations.flop_counts import FlopCounts
from kernbench.torch_backend.operations.operators import TorchOperator
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (Reliance("torch._C.TensorBase.untyped_storage", "of a tensor whatever its class"),)

Signature = tuple[Any, ...]
_storage: Any = torch._C.TensorBase.untyped_storage
_stride: Any = torch.Tensor.stride  # whatever attributes a program gives its parameters
_Tensor, _Parameter = PLAIN
_STRIDED = torch.strided
MOST_KNOWN = 1 << 16
"""Plans that are kept of one operator."""


class UnplannableError(Exception):
    """A call has no signature."""


class Plan:
    """What an operation with a signature does.

    Attributes:
        call: computes it.
        make: gives hollow results, which are not computed; None: it is computed, or writes what it is given.
        marks: gives what it writes, of which nothing is known afterwards, as it is not computed; None: it is.
        returns_first: of such a one, it returns its first argument, and nothing otherwise.
        fresh: bytes of its one new result; -1: it has none, or what ``place`` places.
        place: puts several new results, or one of which something is assumed, in the memory of the GPU.
        title: in the log; None: it takes no time, as what the host computes for itself in a program that uses a GPU.
        seconds: of the stream.
        host: of the host, for its launch.
        format, flops: that are counted.
        library: whose product it is; "": it is none that has a workspace.
        scratch: bytes of each piece of memory that its kernels have while they run.
        more: whether it has any of these three.
    """

    __slots__ = (
        "call",
        "flops",
        "format",
        "fresh",
        "host",
        "library",
        "make",
        "marks",
        "more",
        "place",
        "returns_first",
        "scratch",
        "seconds",
        "title",
    )

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.make: Callable[[], Any] | None = None
        self.place: Callable[[Any, DeviceMemory], None] | None = None
        self.marks: Callable[[Any, Any], list[torch.Tensor]] | None = None
        self.returns_first = False
        self.fresh = -1
        self.title: Title | None = None
        self.seconds = self.host = 0.0
        self.format = ""
        self.flops = 0
        self.library = ""
        self.scratch: Sequence[int] = ()
        self.more = False


class KnownPlans(dict[Signature, Plan]):
    """The plans of one operator. ``view``: it makes views, which need none."""

    __slots__ = ("view",)

    def __init__(self, *, view: bool) -> None:
        super().__init__()
        self.view = view


NO_PLANS = KnownPlans(view=False)
NOT_PLANNED = (KeyError, UnplannableError, TypeError, NotImplementedError, RuntimeError)
"""What looking up the plan of a call that has none raises."""


def signature(
    args: Any, kwargs: Any, hollow: bool, beside: Callable[[Any], list[Any]] | None
) -> tuple[Signature, DeviceMemory | None]:
    """The signature of a call, and the memory of the GPU that its tensors are on. Raises :class:`UnplannableError`.

    Args:
        args, kwargs: of the call.
        hollow: without data, where what is answered by its shape depends on strides, too, and on what is assumed.
        beside: gives what else the cost depends on: strides of a copy, the precision of a product; None: nothing.
    """
    parts: list[Any] = [torch.get_default_dtype()]  # what factories, and whole numbers with floats, give
    memory = _read(args, parts, None, hollow)
    if beside:
        parts += beside(args)
    if kwargs:
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor) or (name == "device" and value is not None):
                raise UnplannableError
            parts += (name, type(value), None if type(value) is float else value)
    return tuple(parts), memory


def _read(values: Any, parts: list[Any], memory: DeviceMemory | None, hollow: bool) -> DeviceMemory | None:
    for value in values:
        kind = type(value)
        if kind is _Tensor or kind is _Parameter:
            if value.layout is not _STRIDED:
                raise UnplannableError
            stored = getattr(_storage(value), NOTE, None)
            if type(stored) is Block:
                if stored.memory is not memory:
                    if memory is not None:
                        raise UnplannableError
                    memory = stored.memory
                if stored.shared:
                    raise UnplannableError
                if hollow:
                    parts += (value.shape, value.dtype, _stride(value), stored.hollow, stored.stand_in)
                else:
                    parts += (value.shape, value.dtype, True)
            elif hollow:
                if value.is_meta:
                    raise UnplannableError
                parts += (value.shape, value.dtype, _stride(value), None if stored is None else stored.hollow, "host")
            else:
                parts += (value.shape, value.dtype, False)
        elif kind is float:
            parts.append(float)
        elif kind is list or kind is tuple:
            parts.append(len(value))
            memory = _read(value, parts, memory, hollow)
        elif isinstance(value, torch.Tensor):
            raise UnplannableError
        else:
            parts += (kind, value)
    return memory


class Plans:
    """The plans of one simulation, of all its ranks.

    Args:
        costs: price operations.
        flops: knows what they count.
        executor: gives results.
        launch: seconds of the host for a launch.
        widens: whether 16-bit products are computed in 32 bits where the CPU has no engine for them.
    """

    def __init__(self, costs: OpCosts, flops: FlopCounts, executor: Executor, launch: float, *, widens: bool) -> None:
        self._costs = costs
        self._flops = flops
        self._executor = executor
        self._launch = launch
        self._widens = widens
        self._epoch = costs.epoch
        self.hollow = executor.hollow
        self._known: dict[bool, dict[TorchOperator, KnownPlans]] = {False: {}, True: {}}

    def of(self, uses_gpu: bool) -> dict[TorchOperator, KnownPlans]:
        """The plans of programs that use a GPU, or of those that do not, by operator."""
        if self._epoch != self._costs.epoch:
            self._epoch = self._costs.epoch
            for known in self._known.values():
                known.clear()
        return self._known[uses_gpu]

    def learn_view(self, operator: TorchOperator, uses_gpu: bool) -> None:
        """An operator makes views."""
        self.of(uses_gpu)[operator] = KnownPlans(view=True)

    def learn(self, call: OperatorCall, uses_gpu: bool) -> None:
        """Make the plan of a call that has just taken the whole path, if calls like it may take the bare one."""
        operator = call.operator
        if not operator.by_signature:
            return
        try:
            key, memory = signature(call.args, call.kwargs, self.hollow, operator.beside)
            hash(key)
        except (UnplannableError, TypeError, NotImplementedError, RuntimeError):
            return
        plan = self._plan(call, memory, uses_gpu)
        if plan is not None:
            known = self.of(uses_gpu).setdefault(operator, KnownPlans(view=False))
            if len(known) >= MOST_KNOWN:
                known.clear()
            known[key] = plan

    def _plan(self, call: OperatorCall, memory: DeviceMemory | None, uses_gpu: bool) -> Plan | None:
        operator, cost = call.operator, call.cost
        recorded = memory is not None or not uses_gpu
        results = _results(call.result)
        if results is None or call.computed_wide or (recorded and cost is None) or operator.check_depends(call.inputs):
            return None
        plan = Plan(self._computes(operator, call))
        if self.hollow and not self._answered(plan, call, results):
            return None
        if cost is None or not recorded:
            return plan
        if cost.kind not in ON_PES or not self._costs.is_known(operator.name) or operator.name in self._costs.seeing:
            return None
        if memory is not None and not (operator.returns_written or plan.place):
            if isinstance(call.result, torch.Tensor):
                plan.fresh = _storage(results[0]).nbytes()
            elif results:
                plan.place = _place_all
        plan.title = Title(operator.title, cost.kind, cost.nbytes, cost.spread, cost.draw)
        plan.seconds, plan.host = cost.seconds, self._launch + cost.host
        plan.format, plan.flops = self._flops.of(cost)
        plan.library, plan.scratch = call.library, call.scratch
        plan.more = bool(plan.flops or plan.library or plan.scratch)
        return plan

    def _computes(self, operator: TorchOperator, call: OperatorCall) -> Callable[..., Any]:
        if operator.wide is None or not self._widens or call.args[0].dtype not in slow_formats():
            return operator.call
        return operator.wide

    def _answered(self, plan: Plan, call: OperatorCall, results: list[torch.Tensor]) -> bool:
        """Have a plan give what has been answered by shape; False: what is computed or assumed does not follow from that."""
        executor = self._executor
        assert isinstance(executor, HollowValues)
        if call.operator.returns_written:
            plan.marks = call.operator.written if executor.marks_plainly(call) else None
            plan.returns_first = bool(results)
            return plan.marks is not None and (call.result is None or call.result is call.args[0])
        if executor.computes_always(call):
            return True
        made = executor.plain_results(call)
        if not made:
            return False
        if isinstance(call.result, torch.Tensor):
            (size, stride, dtype), stand_in = made[0]
            if stand_in is not None:
                plan.place = functools.partial(_place_assumed, stand_in)
            plan.make = lambda: torch.empty_strided(size, stride, dtype=dtype)
        elif type(call.result) is tuple and all(stand_in is None for _, stand_in in made):
            several = [what for what, _ in made]
            plan.make = lambda: tuple(
                [torch.empty_strided(size, stride, dtype=dtype) for size, stride, dtype in several]
            )
        return plan.make is not None


def _place_all(results: Any, memory: DeviceMemory) -> None:
    for each in made_tensors(results):
        place_result(each, memory)


def _place_assumed(stand_in: float, result: torch.Tensor, memory: DeviceMemory) -> None:
    place_result(result, memory)
    getattr(_storage(result), NOTE).stand_in = stand_in


def _results(result: Any) -> list[torch.Tensor] | None:
    """The tensors that a call has given; None: not all of them are plain, with a storage."""
    flat = [each for each in (result if isinstance(result, list | tuple) else (result,)) if each is not None]
    return flat if all(type(each) in PLAIN and each.layout is torch.strided for each in flat) else None
