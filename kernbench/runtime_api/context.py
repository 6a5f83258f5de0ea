"""The context of one simulation: what a rank program calls ``torch``.

A :class:`RuntimeContext` owns a system, the ranks that run on it, their values and their virtual time. It is shaped like
the ``torch`` namespace, so that a program takes it as its ``torch`` argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from greenlet import getcurrent

from kernbench.ccl.config import CclConfig, load_ccl_config
from kernbench.cost.op_estimates import OpCosts
from kernbench.cost.registry import brought
from kernbench.cost.work import Cost
from kernbench.errors import KernbenchError
from kernbench.plugins.manager import PluginManager, default_manager
from kernbench.runtime_api import current, triton_launch
from kernbench.runtime_api.accelerator import Accelerator
from kernbench.runtime_api.barriers import Barriers
from kernbench.runtime_api.couplings import Couplings
from kernbench.runtime_api.deadlines import Deadlines
from kernbench.runtime_api.distributed import Collective, Distributed
from kernbench.runtime_api.factories import Factories
from kernbench.runtime_api.handles import Handle, Work
from kernbench.runtime_api.hooks import open_hooks
from kernbench.runtime_api.launch import FunctionLaunch, ValueMarker, as_grid, function_work
from kernbench.runtime_api.locations import user_location
from kernbench.runtime_api.multiprocessing import Multiprocessing, _drain_pending, drive_until
from kernbench.runtime_api.polling import POLL_SECONDS as POLL_SECONDS
from kernbench.runtime_api.polling import Polls
from kernbench.runtime_api.rank_state import RankState
from kernbench.runtime_api.storages import StorageTable
from kernbench.runtime_api.tensor import Tensor, plain, storage_of, tensors_in
from kernbench.runtime_api.types import DeviceSelector
from kernbench.scheduler import RankScheduler, make_policy
from kernbench.sim_engine import DataExecutor, GraphEngine, Operation
from kernbench.sim_engine.op_log import DEFAULT_LIMIT
from kernbench.topology import Topology, TopologyHandle, resolve_topology

if TYPE_CHECKING:
    from kernbench.torch_backend.environment import Environment
    from kernbench.torch_backend.rank_state.leaks import LeakGuard


@dataclass(eq=False)
class RuntimeContext(Factories, Barriers):
    """One simulation.

    Attributes:
        engine: virtual time and memories of the system.
        target_device: the SIPs that ranks may drive; rank r drives the r-th unless it sets another.
        correlation_id: a name that the user gives this run; it appears in reports and traces.
        spec: the mapping read from the system's YAML.
        seed: seeds the random generators of the ranks, and the ``"random"`` policy.
        policy: which runnable rank goes first: ``"round_robin"`` or ``"random"``.
        ccl: collective configuration; by default the shipped ``ccl.yaml`` and the one in the working directory.
        plugins: whose hooks are called; by default those that are installed.
        options: values of the plugins' options; those that are not given have their defaults.
    """

    engine: GraphEngine
    target_device: DeviceSelector = field(default_factory=DeviceSelector)
    correlation_id: str = ""
    spec: Mapping[str, Any] | None = None
    seed: int = 0
    policy: str = "round_robin"
    ccl: CclConfig | None = None
    plugins: PluginManager = field(default_factory=default_manager, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    multiprocessing: Multiprocessing = field(init=False, repr=False)
    distributed: Distributed = field(init=False, repr=False)
    accelerator: Accelerator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.spec is None:
            self.spec = self.topology.spec
        self.sips = self.target_device.resolve(self.topology.sip_count)
        self.scheduler = RankScheduler(make_policy(self.policy, self.seed))
        self.executor = DataExecutor()
        self.storages = StorageTable(self.engine.memory, self.note_memory)
        self._pending_worker_waits: list[tuple[Handle, Any]] = []
        self._ended_waits: list[Operation] = []
        """Operations that somebody waits for and whose end is known; their values may be to come."""
        self._pending_collectives: list[Collective] = []
        self.deadlines = Deadlines()
        self._environment: Environment | None = None
        self._leaks: LeakGuard | None = None
        self._ccl_loaded: CclConfig | None = self.ccl
        self.polls = Polls(self)
        self.couplings = Couplings(self)
        self._inside_kernel = False
        self.launch_costs = self.topology.device.launch
        """What a launch costs, which every operation looks up."""
        self.last_launch: Operation | None = None
        self.kernel_memory = triton_launch.KernelMemory(self.engine.memory)
        self.op_costs = OpCosts(
            self.topology.device, brought(self.plugins.operator_costs()), lambda: str(user_location())
        )
        self.wave_reads: dict[Any, tuple[int, int] | None] = {}  # of products, by program and shapes
        self.sampled_costs: dict[Any, Cost] = {}  # of launches that were only counted, by program and shapes
        self._main = RankState(None, self.sips[0], self.seed)
        self._ranks: dict[int, RankState] = {}
        self.multiprocessing = Multiprocessing(self)
        self.distributed = Distributed(self)
        self.accelerator = Accelerator(self)
        self.observing = False
        """Whether a plugin is being told something: what it does is not the program's."""
        self.options = self.plugins.option_values(self.options)
        self.engine.cost_model = self.plugins.cost_model(self.topology)
        self.hooks = open_hooks(self, self.plugins)
        self._activate()
        if self.hooks is not None:
            self.hooks.opened()

    # -- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> RuntimeContext:
        self._activate()
        return self

    def _activate(self) -> None:
        current.activate(self)
        triton_launch.follow_active_context()

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        try:
            if exc_type is None:
                self.multiprocessing._join_at_exit()
                self.synchronize()
        finally:
            self.close()

    def close(self) -> None:
        """Unwind what still runs, drop what is still queued. The context's tensors keep their values. Idempotent."""
        waiting = [target for _, target in self._pending_worker_waits]
        try:
            self.scheduler.abort(waiting)
        finally:
            self._clear_queues()
            self.distributed._reset()
            current.deactivate(self)
            triton_launch.follow_active_context()
            hooks, self.hooks = self.hooks, None
            if hooks is not None:
                hooks.closed()

    def _clear_queues(self) -> None:
        self._pending_worker_waits.clear()
        self._ended_waits.clear()
        self._pending_collectives.clear()
        self.deadlines.clear()
        self.polls.clear()
        self.couplings.clear()
        self.executor.clear()

    # -- who and when ------------------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """The system's graph."""
        return self.engine.topology

    @property
    def enable_data(self) -> bool:
        """Whether values are computed."""
        return self.engine.enable_data

    @property
    def ccl_config(self) -> CclConfig:
        """The collective configuration, read when it is first needed."""
        if self._ccl_loaded is None:
            self._ccl_loaded = load_ccl_config(system=self.topology.system, plugins=self.plugins)
        return self._ccl_loaded

    def _activity(self) -> tuple[int, int]:
        """Changes whenever a rank has run or an operation has ended: memory may have been written since."""
        return self.engine.progress, self.scheduler.resumed

    def _me(self) -> RankState:
        """State of whoever runs: a rank's, or main's."""
        rank = self.scheduler.rank_by_greenlet.get(getcurrent())
        return self._main if rank is None else self._ranks[rank]

    def now(self) -> float:
        """Virtual time of whoever asks, seconds: the rank's host clock; in main, the time when all is done."""
        me = self._me()
        return max(me.clock, self.engine.now) if me is self._main else me.clock

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass for this rank, while the others go on."""
        if seconds < 0:
            raise ValueError(f"sleep length must be non-negative, got {seconds}")
        me = self._me()
        self.wait(self._timer(me, me.clock + seconds))

    def _timer(self, me: RankState, at: float) -> Operation:
        if self.observing:
            raise self._beside_the_program("wait")
        op = Operation("sleep", "timer", rank=me.rank, sip=me.sip, stream="host", enqueue=me.clock)
        if at <= self.engine.now:  # a host that is behind its device
            op.resolve(me.clock, at)
            return op
        self.engine.at(at, lambda: self.engine.resolve_now(op))
        return op

    # -- launching ---------------------------------------------------------------------------------------------------

    def launch(self, kernel: Any, grid: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Handle:
        """Enqueue ``kernel`` over ``grid`` programs on the stream of this rank's SIP, and return at once.

        Args:
            kernel: a ``@triton.jit`` kernel, or a Python function called as ``kernel(program_id, *args)``.
            grid: number of programs: an integer, a tuple of up to three, or (Triton) a function of the meta-parameters.
            args: the kernel's arguments; tensors of this context or plain CPU tensors.
            name: what reports and traces call it.
            kwargs: the kernel's keyword arguments, Triton only.
        """
        if triton_launch.is_kernel(kernel):
            return triton_launch.launch(self, kernel, grid, args, kwargs, name)
        if not callable(kernel):
            raise KernbenchError(f"cannot launch {kernel!r}: expected a @triton.jit kernel or a Python function")
        if kwargs:
            raise KernbenchError(f"keyword arguments {', '.join(kwargs)} are for Triton kernels; pass them by position")
        sizes = as_grid(grid)
        work = function_work(kernel, sizes, args)
        label = name or str(getattr(kernel, "__name__", type(kernel).__name__))
        awaited = self._me().awaiting_values()
        op = self._enqueue(label, "kernel", work.cost(self.topology.device), args)
        op.detail = {"grid": list(sizes)}
        if self.enable_data:
            self.executor.submit(FunctionLaunch(self, kernel, sizes, args, op, awaited))
            if any(type(tensor) is not Tensor for tensor in tensors_in(args)):
                self._flush_values()  # nobody tells us when the host looks at a plain tensor
        if self.hooks is not None:
            self.hooks.launched(op)
        return op

    def _enqueue(self, name: str, kind: str, cost: Cost | None, tensors: Iterable[Any]) -> Operation:
        """Put an operation on this rank's compute stream; the host pays the launch and goes on.

        ``cost`` None: its duration will be told once it has been executed.
        """
        if self.observing:
            raise self._beside_the_program("launch")
        me = self._me()
        launch = self.launch_costs
        me.clock += launch.overhead
        op = Operation(
            name, kind, rank=me.rank, sip=me.sip, stream=me.stream, enqueue=me.clock + launch.latency,
            duration=None,
        )  # fmt: skip
        if cost is not None:
            op.duration, op.spread, op.nbytes = cost.seconds, cost.spread, cost.nbytes
        self._touch(op, tensors, me)
        self.engine.submit(op, after=me.take_awaited())
        me.last = me.tails[me.stream] = op
        return op

    def _touch(self, op: Operation, tensors: Iterable[Any], me: RankState) -> None:
        """Note in ``op`` and in the storages which memory it touches."""
        operands = []
        for tensor in tensors_in(tensors):
            state = self.storages.adopt(tensor, me)
            state.last = op
            operands.append(state.operand(tensor))
        op.operands = operands

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, handle: Handle | Work) -> None:
        """Block until ``handle`` is done; raise what made it fail.

        In a rank, a handle that is done returns without a switch; else the rank is queued and main goes on. In main it
        drives the simulation. The host clock of whoever waits moves forward to the handle's end.
        """
        op = handle.operation if isinstance(handle, Work) else handle
        op.observed = True
        try:
            if not op.done:
                self._block_on(op)
        finally:
            self._host_waited(self._me(), op)
        if op.error is not None:
            raise op.error

    def note_memory(self, sip: int, change: int) -> None:
        """Log that ``change`` bytes more are allocated on ``sip`` now."""
        self.engine.op_log.note_memory(sip, self.now(), change)

    def wait_on_stream(self, handle: Handle) -> None:
        """Let this rank's current stream wait for ``handle``, while its host goes on: what NCCL's ``wait`` does (ADR 0070).

        The values must be there for what the host computes next, so the rank is blocked until all members of the collective
        have arrived; no virtual time passes for its host. Raises what made it fail.
        """
        handle.observed = True
        if not handle.executed and handle.error is None:
            self._block_on(self.distributed.matcher.runs.values_of(handle))
        if handle.error is not None:
            raise handle.error
        me = self._me()
        me.let_wait(me.stream, (handle,))

    def _host_waited(self, me: RankState, op: Operation) -> None:
        """Move a host clock forward to the end of what it has waited for, and log the wait."""
        end = op.end
        if end is not None and end > me.clock:
            self.engine.op_log.add_wait((me.rank, me.clock, end, op))
            me.clock = end

    def _block_on(self, op: Operation) -> None:
        if self.observing:
            raise self._beside_the_program("wait, or read another operation's result")
        if self._inside_kernel:
            raise KernbenchError(
                "a kernel cannot wait for a handle or read another operation's result: launch it later"
            )
        scheduler = self.scheduler
        if getcurrent() is scheduler.main:
            drive_until(self, op)
        else:
            if scheduler.before_switch is not None:
                scheduler.before_switch()
            self._pending_worker_waits.append((op, scheduler.waitable()))
            op.when_resolved(partial(self._ended_waits.append, op))
            scheduler.switch_to_main()
            if not op.done:
                raise KernbenchError(
                    f"resumed before {op!r} was done: a greenlet was switched to from outside kernbench"
                )

    def settle_stream(self) -> None:
        """What this rank's current stream has to do first has been computed; its host's clock stays where it is.

        For operations that torch computes at once: a launch before them may wait for somebody still.
        """
        me = self._me()
        behind = [*me.unsettled.pop(me.stream, ()), *me.awaiting_values()]
        for stream in [stream for stream, ops in me.unsettled.items() if all(op.executed for op in ops)]:
            del me.unsettled[stream]
        if not all(op.executed for op in behind):
            marker = Operation("values", "timer", rank=me.rank, sip=me.sip, stream="host", enqueue=me.clock)
            marker.resolve(me.clock, me.clock)
            self.executor.submit(ValueMarker(marker, behind))
            self._block_on(marker)
        for op in behind:
            if op.error is not None and not op.observed:
                op.observed = True
                raise op.error

    @staticmethod
    def _beside_the_program(what: str) -> KernbenchError:
        return KernbenchError(f"a plugin that observes cannot {what}: it is no part of the program")

    def synchronize(self) -> None:
        """Wait for everything this rank has enqueued on its SIP. In main: for everything that is pending.

        Raises what made one of this rank's operations fail, if nobody has waited for that one.
        """
        me = self._me()
        if me is self._main:
            _drain_pending(self)
            self.executor.flush(self.engine.now)
            self._settle_time()
        for op in list(me.tails.values()):
            self.wait(op)
        if self.executor.failed:
            self._flush_values()
            for op in self._unobserved_failures(me):
                op.observed = True
                assert op.error is not None
                raise op.error

    def _settle_time(self) -> None:
        """In main: run the engine until nothing is in flight; main's host clock moves to the end of it all."""
        self.engine.run()
        while self.couplings.settle():
            self.engine.run()
        self._main.clock = max(self._main.clock, self.engine.now, self.engine.latest_end)

    def _unobserved_failures(self, me: RankState | None = None) -> list[Operation]:
        """Failed operations (of ``me``) that nobody has waited for."""
        return [op for op in self.executor.failed if not op.observed and (me is None or op.rank == me.rank)]

    # -- recording ---------------------------------------------------------------------------------------------------

    def _record_compute(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Put a torch operation that has just been computed on this rank's stream."""
        inputs = list(tensors_in(args, kwargs))
        outputs = list(tensors_in((result,)))
        name = getattr(func, "__name__", "op")
        if outputs and _is_view(name, inputs, outputs):
            return
        cost = self.op_costs.of_tensors(name, inputs, outputs)
        op = self._enqueue(name.strip("_"), cost.kind, cost, outputs or inputs)
        if self.hooks is not None:
            self.hooks.launched(op)

    @contextmanager
    def _operation_of_its_own(self) -> Iterator[None]:
        """What torch computes in here is recorded as one operation, by the context: whoever else records steps aside."""
        me = self._me()
        outer, me.inside_operation = me.inside_operation, True
        try:
            yield
        finally:
            me.inside_operation = outer

    def _adopt(self, tensor: torch.Tensor, *, name: str = "") -> Tensor:
        """Make ``tensor`` a tensor of this context, in the memory of this rank's SIP."""
        me = self._me()
        me.holds_tensors = True
        self.storages.allocate(plain(tensor), me, name, noted=True)
        return tensor.as_subclass(Tensor)

    Tensor = Tensor


def _is_view(name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an operation has only made views of its inputs: ``reshape`` or ``contiguous`` without need for a copy."""
    if name.endswith("_") or any(output is each for output in outputs for each in inputs[1:]):
        return False  # in place, or out=
    memory = {id(storage_of(each)) for each in inputs}
    return all(id(storage_of(output)) in memory for output in outputs)


@contextmanager
def simulate(
    system: str | TopologyHandle | None = None,
    *,
    world_size: int | None = None,
    nodes: int | None = None,
    enable_data: bool = True,
    seed: int = 0,
    policy: str = "round_robin",
    devices: Sequence[int] | range | int | str = "all",
    correlation_id: str = "",
    ccl: CclConfig | str | None = None,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
    log_limit: int | None = DEFAULT_LIMIT,
) -> Iterator[RuntimeContext]:
    """Open a simulation of ``system`` and yield its :class:`RuntimeContext`.

    Args:
        system: name of a shipped system, path of a YAML file, or a handle; default ``sip8``.
        world_size: ranks that the program will use; checked against the system now, instead of when they are spawned.
        nodes: repeat the system's node this many times.
        enable_data: compute values; without, only time is modelled.
        seed: of the ranks' random generators and of the ``"random"`` policy.
        policy: ``"round_robin"`` or ``"random"``.
        devices: the SIPs to use: ``"all"``, an index, a list or a range.
        correlation_id: a name for this run.
        ccl: path of a ``ccl.yaml``, or a loaded one; default: the one in the working directory over the shipped one.
        plugins: objects, modules or references (as ``--plugin`` takes them) that take part in this simulation, besides
            those that are installed (:mod:`kernbench.plugins`).
        options: values of the plugins' options.
        log_limit: operations that the op log keeps, the last ones; None: all.

    Raises:
        ConfigError: the description is wrong, or the world does not fit.
        PluginError: a plugin cannot be used, or has failed to decide something.
    """
    manager = default_manager().extended(plugins)
    if isinstance(system, TopologyHandle):
        handle = system
    else:
        handle = resolve_topology(system, nodes=nodes, plugins=manager)
    if world_size is not None:
        handle.topology_obj.require_world(world_size)
    ctx = RuntimeContext(
        engine=GraphEngine(handle.topology_obj, enable_data=enable_data, log_limit=log_limit),
        target_device=DeviceSelector(devices),
        correlation_id=correlation_id,
        seed=seed,
        policy=policy,
        ccl=load_ccl_config(ccl, system=handle.topology_obj.system, plugins=manager) if isinstance(ccl, str) else ccl,
        plugins=manager,
        options=options or {},
    )
    with ctx:
        yield ctx
