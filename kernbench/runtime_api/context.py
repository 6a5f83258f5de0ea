"""The context of one simulation: what a rank program calls ``torch``.

A :class:`RuntimeContext` is the way into a :class:`~kernbench.simulation.simulation.Simulation`, whose owners do the work. It
is shaped like the ``torch`` namespace, so that a program takes it as its ``torch`` argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernbench.ccl.config import CclConfig, load_ccl_config
from kernbench.cost.op_estimates import OpCosts
from kernbench.errors import ConfigError, KernbenchError
from kernbench.order import MEMORIES, Choices, mode_of, schedule_asked
from kernbench.plugins.events import ContextEvent
from kernbench.plugins.manager import PluginManager, default_manager
from kernbench.runtime_api.accelerator import Accelerator
from kernbench.runtime_api.distributed import Distributed
from kernbench.runtime_api.factories import Factories
from kernbench.runtime_api.multiprocessing import Multiprocessing
from kernbench.runtime_api.scouting import Scouts
from kernbench.runtime_api.simulate_arguments import require_arguments, require_ranks
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.types import DeviceSelector
from kernbench.scheduler import ChosenOrder, HostEffects, RankScheduler, make_policy
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.sim_engine.op_log import DEFAULT_LIMIT
from kernbench.simulation.active_simulation import activate, deactivate
from kernbench.simulation.launches.kernel_launch import is_kernel
from kernbench.simulation.matching.groups import Collective
from kernbench.simulation.memory.process_memory import parse_limit
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.jitter import Jitter
from kernbench.simulation.time.polling import POLL_SECONDS as POLL_SECONDS
from kernbench.simulation.time.wait_queue import Awaited
from kernbench.simulation.triton_driver import follow_active_simulation
from kernbench.topology import Topology, TopologyHandle, resolve_topology
from kernbench.torch_backend.gpu.device.devices import HostDevices
from kernbench.torch_backend.process_groups.work import Work


@dataclass(eq=False)
class RuntimeContext:
    """One simulation.

    Attributes:
        engine: virtual time and memories of the system.
        target_device: the SIPs that ranks may drive; rank r drives the r-th unless it sets another.
        correlation_id: a name that the user gives this run; it appears in reports and traces.
        spec: the mapping read from the system's YAML.
        seed: seeds the random generators of the ranks, and the ``"random"`` policy.
        policy: which runnable rank goes first: ``"round_robin"`` or ``"random"``.
        ccl: collective configuration; by default the shipped ``ccl.yaml`` and the one in the working directory.
        memory_limit: of each process's memory on a SIP: ``"device"``, ``"off"``, or a size (:func:`simulate`).
        plugins: whose hooks are called; by default those that are installed.
        options: values of the plugins' options; those that are not given have their defaults.
        host_effects: what a run does to its process; by default what ``KERNBENCH_HOST_EFFECTS`` says.
        unknown: what to do when a program looks at a value that was not computed: ``"assume"`` or ``"error"``.
        fold: decides which ranks run; None: all.
        exact_dtype: values of 16-bit products are this CPU's own, however slow it is at them.
        fill_uninitialized: what fresh memory is filled with (:func:`simulate`).
        races: what to do about accesses to memory that nothing orders, and reads of unwritten memory
            (:func:`simulate`).
        memory: what reads see that nothing orders (:func:`simulate`).
        jitter: how unequally quick ranks are (:func:`simulate`).
        stragglers: by rank, how many times as long its kernels take.
        schedule: what goes first where several things could (:func:`simulate`).
        simulation: the owners behind the names.
    """

    engine: GraphEngine
    target_device: DeviceSelector = field(default_factory=DeviceSelector)
    correlation_id: str = ""
    spec: Mapping[str, Any] | None = None
    seed: int = 0
    policy: str = "round_robin"
    ccl: CclConfig | None = None
    memory_limit: int | str = "device"
    plugins: PluginManager = field(default_factory=default_manager, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    host_effects: HostEffects | None = field(default=None, repr=False)
    unknown: str = "assume"
    fold: Scouts | None = field(default=None, repr=False)
    exact_dtype: bool = False
    fill_uninitialized: str = "off"
    races: bool | str | None = None
    memory: str = "strong"
    jitter: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    schedule: str | None = None
    simulation: Simulation = field(init=False, repr=False)
    multiprocessing: Multiprocessing = field(init=False, repr=False)
    distributed: Distributed = field(init=False, repr=False)
    accelerator: Accelerator = field(init=False, repr=False)

    Tensor = Tensor

    def __post_init__(self) -> None:
        topology = self.topology
        if self.spec is None:
            self.spec = topology.spec
        self.options = self.plugins.option_values(self.options)
        self.engine.cost_model = self.plugins.cost_model(topology)
        if self.schedule is not None and self.policy != "round_robin":
            raise ConfigError(f"policy={self.policy!r}: a schedule ({self.schedule}) says who runs next")
        schedule = schedule_asked(self.schedule) if self.policy == "round_robin" else None
        choices = None if schedule is None else Choices(schedule)
        policy = make_policy(self.policy, self.seed) if choices is None else ChosenOrder(choices.pick)
        self.simulation = simulation = Simulation(
            self.engine, RankScheduler(policy, self.host_effects),
            self.target_device.resolve(topology.sip_count), seed=self.seed, title=self.correlation_id, ccl=self.ccl,
            plugins=self.plugins, context=self, describe=self._describe, unknown=self.unknown,
            memory_limit=parse_limit(self.memory_limit),
            exact_dtype=self.exact_dtype, fill_uninitialized=self.fill_uninitialized, races=mode_of(self.races),
            memory=self.memory, choices=choices,
            jitter=Jitter(self.jitter, self.stragglers, self.seed),
        )  # fmt: skip
        devices = HostDevices(simulation)
        simulation.torch_recorder = devices
        self.factories = Factories(simulation)
        self.distributed = simulation.distributed = Distributed(simulation)
        self.multiprocessing = Multiprocessing(simulation, devices, self.distributed, self.fold)
        self.accelerator = Accelerator(simulation)
        self._activate()
        if simulation.hooks is not None:
            simulation.hooks.opened()

    def _describe(self) -> ContextEvent:
        return ContextEvent(
            system=self.topology.system.name, sips=len(self.simulation.sips), seed=self.seed, policy=self.policy,
            enable_data=self.enable_data, correlation_id=self.correlation_id, options=dict(self.options),
            time=self.engine.latest_end,
        )  # fmt: skip

    # -- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> RuntimeContext:
        self._activate()
        return self

    def _activate(self) -> None:
        activate(self.simulation)
        follow_active_simulation()

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        try:
            if exc_type is None:
                self.multiprocessing.join_at_exit()
                self.synchronize()
        finally:
            self.close()

    def close(self) -> None:
        """Unwind what still runs, drop what is still queued. The context's tensors keep their values. Idempotent."""
        try:
            self.simulation.close()
        finally:
            deactivate(self.simulation)
            follow_active_simulation()
            if self.simulation.hooks is not None:
                self.simulation.hooks.closed()

    def _repr_html_(self) -> str:
        """What a notebook shows of it: what has run so far."""
        from kernbench.trace.notebook import context_html

        return context_html(self)

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
    def sips(self) -> Sequence[int]:
        """The SIPs that ranks may drive."""
        return self.simulation.sips

    @property
    def scheduler(self) -> RankScheduler:
        """Of the ranks."""
        return self.simulation.scheduler

    @property
    def op_costs(self) -> OpCosts:
        """What torch's operations cost, and which of them no model knows."""
        return self.simulation.op_costs

    @property
    def ccl_config(self) -> CclConfig:
        """The collective configuration."""
        return self.simulation.ccl_config

    @property
    def _pending_worker_waits(self) -> list[tuple[Awaited, Any]]:
        return self.simulation.waits.pending

    @property
    def _pending_collectives(self) -> list[Collective]:
        return self.simulation.matcher.pending

    def now(self) -> float:
        """Virtual time of the caller, seconds: the rank's host clock; in main, the time when all is done."""
        return self.simulation.now()

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass for this rank, while the others go on."""
        self.simulation.waits.sleep(seconds)

    # -- launching and waiting ---------------------------------------------------------------------------------------

    def launch(self, kernel: Any, grid: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Operation:
        """Enqueue ``kernel`` over ``grid`` programs on the stream of this rank's SIP, and return at once.

        Args:
            kernel: a ``@triton.jit`` kernel, or a Python function called as ``kernel(program_id, *args)``.
            grid: number of programs: an integer, a tuple of up to three, or (Triton) a function of the meta-parameters.
            args: the kernel's arguments; tensors of this context or plain CPU tensors.
            name: what reports and traces call it.
            kwargs: the kernel's keyword arguments, Triton only.
        """
        if is_kernel(kernel):
            return self.simulation.kernels.launch(kernel, grid, args, kwargs, name)
        if not callable(kernel):
            raise KernbenchError(f"cannot launch {kernel!r}: expected a @triton.jit kernel or a Python function")
        if kwargs:
            raise KernbenchError(f"keyword arguments {', '.join(kwargs)} are for Triton kernels; pass them by position")
        return self.simulation.functions.launch(kernel, grid, args, name)

    def wait(self, handle: Awaited | Work) -> None:
        """Block until ``handle`` is done; raise what made it fail.

        In a rank, a handle that is done returns without a switch; else the rank is queued and main goes on. In main it
        drives the simulation. The waiter's host clock moves forward to the handle's end.
        """
        self.simulation.waits.wait(handle.operation if isinstance(handle, Work) else handle)

    def synchronize(self) -> None:
        """Wait for everything this rank has enqueued on its SIP. In main: for everything that is pending.

        Raises what made one of this rank's operations fail, if that one has not been waited for.
        """
        self.simulation.synchronize()

    # -- the rest of torch -------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> torch.Generator:
        """Seed this rank's generator, and return it."""
        return self.simulation.hosts.current().generator.manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        """Tensors are made by :class:`~kernbench.runtime_api.factories.Factories`; all else that is public is torch's."""
        if name.startswith("_") or name in _FIELDS:
            raise AttributeError(name)
        found = getattr(self.factories if hasattr(Factories, name) else torch, name, None)
        if found is None:
            raise AttributeError(f"neither the context nor torch has {name!r}")
        self.__dict__[name] = found  # the next look finds it at once
        return found


FILLS = ("off", "nan", "0xAA")
"""What fresh memory may be filled with."""

_FIELDS = frozenset(RuntimeContext.__dataclass_fields__) | {"factories"}
"""Names that are the context's own, also before they are set."""


@contextmanager
def simulate(
    system: str | Path | TopologyHandle | None = None,
    *,
    world_size: int | None = None,
    nodes: int | None = None,
    enable_data: bool = True,
    seed: int = 0,
    policy: str = "round_robin",
    devices: Sequence[int] | range | int | str = "all",
    correlation_id: str = "",
    ccl: CclConfig | Path | str | None = None,
    plugins: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
    log_limit: int | None = DEFAULT_LIMIT,
    memory_limit: int | str = "device",
    host_effects: HostEffects | None = None,
    unknown: str = "assume",
    ranks: str = "all",
    exact_dtype: bool = False,
    fill_uninitialized: str = "off",
    races: bool | str | None = None,
    memory: str = "strong",
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    schedule: str | None = None,
    stop_after_steps: int | None = None,
) -> Iterator[RuntimeContext]:
    """Open a simulation of ``system`` and yield its :class:`RuntimeContext`.

    Args:
        system: name of a shipped system, path of a YAML file, or a handle; default ``sip8``.
        world_size: ranks that the program will use, at most; checked against the system now, instead of when they are spawned.
        nodes: repeat the system's node this many times, also that of a handle.
        enable_data: compute values; without, time and memory alone are modelled, and values only where they are small and
            follow from known ones (``docs/real_size.md``).
        seed: of the ranks' random generators and of the ``"random"`` policy.
        policy: ``"round_robin"`` or ``"random"``.
        devices: the SIPs to use: ``"all"``, an index, a list or a range.
        correlation_id: a name for this run.
        ccl: path of a ``ccl.yaml``, or a loaded one; default: the one in the working directory over the shipped one.
        plugins: objects, modules or references (as ``--plugin`` takes them) that take part in this simulation, besides
            those that are installed (:mod:`kernbench.plugins`).
        options: values of the plugins' options.
        log_limit: operations that the op log keeps, the last ones; None: all.
        memory_limit: bytes (also ``"80GB"``) that each process may reserve for tensors on a SIP; ``"device"``: what the SIP
            has, less what CUDA and its libraries take (:mod:`kernbench.memory.limits`); ``"off"``: any number.
        host_effects: what the simulation may do to the process while ranks run (:class:`~kernbench.scheduler.HostEffects`);
            default: what ``KERNBENCH_HOST_EFFECTS`` says, all of it if that is not set.
        unknown: without data, what to do when the program looks at a value that was not computed: ``"assume"`` a neutral one
            and say so once per line, or ``"error"``: stop there.
        ranks: ``"all"``, ``"auto"``: run one of each class of ranks that do the same, without data, or the ranks to run
            (``"0,8-11"``); the others are taken to do what these do (``docs/real_size.md``).
        exact_dtype: products of 16-bit floats are computed as this CPU does by itself, also where it has no engine for the
            format and is many times faster in 32 bits, rounded once (the default there).
        fill_uninitialized: fill the memory that ``torch.empty`` and its kin give: ``"nan"`` (integers: their largest value, as
            ``torch.utils.deterministic.fill_uninitialized_memory`` does), ``"0xAA"`` in every byte, or ``"off"``.
        races: look for accesses to the same memory that nothing orders, and for reads of unwritten memory
            (``docs/order.md``): ``True`` or ``"error"`` raises :class:`~kernbench.errors.RaceError` at the second one, or
            :class:`~kernbench.errors.UndefinedMemoryError` at the look, ``"warn"`` collects them in
            ``ctx.simulation.order.races``; default: what ``KERNBENCH_RACES`` says, off if it is not set.
        memory: ``"weak"``: reads that nothing orders behind a write see what was there before, as they may on hardware; with a
            schedule, those of them that it says (``docs/order.md``). ``"strong"``: all see what was written last.
        jitter: standard deviation of the time that the kernels of a rank take, as a share, between ranks and from step to step;
            drawn from ``seed`` (:mod:`kernbench.simulation.time.jitter`, ADR 0130).
        stragglers: by rank, how many times as long its kernels take.
        schedule: what goes first where several things could: ``"default"``, ``"random:SEED"``, or what ``kernbench explore``
            has printed (``docs/order.md``); default: what ``KERNBENCH_SCHEDULE`` says, a run as always if it is not set.
        stop_after_steps: stop the ranks of each spawn after so many optimizer steps, as ``sys.exit()`` in all of them would.

    Raises:
        ConfigError: the description is wrong, or the world does not fit.
        PluginError: a plugin cannot be used, or has failed to decide something.
    """
    require_arguments({
        "system": system, "world_size": world_size, "nodes": nodes, "stop_after_steps": stop_after_steps, "seed": seed,
        "enable_data": enable_data, "exact_dtype": exact_dtype, "correlation_id": correlation_id, "ranks": ranks, "ccl": ccl,
        "options": options, "stragglers": stragglers, "host_effects": host_effects, "devices": devices, "plugins": plugins,
        "log_limit": log_limit, "jitter": jitter, "schedule": schedule,
    })  # fmt: skip
    manager = default_manager().extended(plugins)
    if isinstance(system, TopologyHandle):
        handle = system.with_nodes(nodes)
    else:
        handle = resolve_topology(system, nodes=nodes, plugins=manager)
    if ranks != "all" and enable_data:
        raise ConfigError(
            f"ranks={ranks!r}: ranks stand in for others only without data (enable_data=False, --no-data)"
        )
    if fill_uninitialized not in FILLS:
        raise ConfigError(f"fill_uninitialized={fill_uninitialized!r}: expected {', '.join(map(repr, FILLS))}")
    if memory not in MEMORIES:
        raise ConfigError(f"memory={memory!r}: expected {', '.join(map(repr, MEMORIES))}")
    if memory == "weak" and not enable_data:
        raise ConfigError("memory='weak' is about values: it needs data (enable_data=True, no --no-data)")
    selector = DeviceSelector(devices)
    require_ranks(
        handle.topology_obj, len(selector.resolve(handle.topology_obj.sip_count)), world_size, ranks, stragglers or ()
    )
    if isinstance(ccl, str | Path):
        collectives: CclConfig | None = load_ccl_config(ccl, system=handle.topology_obj.system, plugins=manager)
    else:
        collectives = ccl

    def fresh(fold: Scouts | None = None) -> RuntimeContext:
        return RuntimeContext(
            engine=GraphEngine(handle.topology_obj, enable_data=enable_data, log_limit=log_limit),
            target_device=selector,
            correlation_id=correlation_id,
            seed=seed,
            policy=policy,
            ccl=collectives,
            plugins=manager,
            options=options or {},
            memory_limit=memory_limit,
            host_effects=host_effects,
            unknown=unknown,
            exact_dtype=exact_dtype,
            fill_uninitialized=fill_uninitialized,
            races=races,
            memory=memory,
            jitter=jitter,
            stragglers=stragglers or {},
            schedule=schedule,
            fold=fold,
        )

    with fresh(None if ranks == "all" else Scouts(ranks, fresh)) as ctx:
        ctx.simulation.steps.stop_after(stop_after_steps)
        ctx.multiprocessing.most = world_size
        yield ctx
