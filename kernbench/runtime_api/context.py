"""The context of one simulation: what a rank program calls ``torch``.

A :class:`RuntimeContext` is the way into a :class:`~kernbench.simulation.simulation.Simulation`, whose owners do the work. It
is shaped like the ``torch`` namespace, so that a program takes it as its ``torch`` argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from kernbench.ccl.config import CclConfig, load_ccl_config
from kernbench.cost.op_costs import OpCosts
from kernbench.defaults import LOG_LIMIT
from kernbench.errors import ConfigError, KernbenchError
from kernbench.options import SimulateOptions, options_of
from kernbench.order import Choices, mode_of, schedule_asked
from kernbench.plugins.events import ContextEvent
from kernbench.plugins.manager import PluginManager, default_manager
from kernbench.runtime_api.accelerator import Accelerator
from kernbench.runtime_api.distributed import Distributed
from kernbench.runtime_api.factories import Factories
from kernbench.runtime_api.multiprocessing import Multiprocessing
from kernbench.runtime_api.scouting import Scouts
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.types import DeviceSelector
from kernbench.scheduler import ChosenOrder, HostEffects, RankScheduler, make_policy
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.simulation.active_simulation import activate, deactivate
from kernbench.simulation.launches.kernel_launch import is_kernel
from kernbench.simulation.matching.groups import Collective
from kernbench.simulation.memory.memory_limit import parse_limit
from kernbench.simulation.ranks.folding import chosen_ranks
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
        ccl: collective configuration; by default the shipped ``ccl.yaml`` and the one in the working directory.
        plugins: whose hooks are called; by default those that are installed.
        settings: the arguments of :func:`simulate`.
        fold: decides which ranks run; None: all.
        options: values of the plugins' options; those that are not given have their defaults.
        simulation: the owners behind the names.
    """

    engine: GraphEngine
    target_device: DeviceSelector = field(default_factory=DeviceSelector)
    correlation_id: str = ""
    spec: Mapping[str, Any] | None = None
    ccl: CclConfig | None = None
    plugins: PluginManager = field(default_factory=default_manager, repr=False)
    settings: SimulateOptions = field(default=SimulateOptions(), repr=False)
    fold: Scouts | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(init=False, repr=False)
    simulation: Simulation = field(init=False, repr=False)
    multiprocessing: Multiprocessing = field(init=False, repr=False)
    distributed: Distributed = field(init=False, repr=False)
    accelerator: Accelerator = field(init=False, repr=False)

    Tensor = Tensor

    def __post_init__(self) -> None:
        topology = self.topology
        if self.spec is None:
            self.spec = topology.spec
        told = self.settings
        self.options = self.plugins.option_values(told.options or {})
        self.engine.cost_model = self.plugins.cost_model(topology)
        if told.schedule is not None and told.policy != "round_robin":
            raise ConfigError(f"policy={told.policy!r}: a schedule ({told.schedule}) says who runs next")
        schedule = schedule_asked(told.schedule) if told.policy == "round_robin" else None
        choices = None if schedule is None else Choices(schedule)
        policy = make_policy(told.policy, told.seed) if choices is None else ChosenOrder(choices.pick)
        self.simulation = simulation = Simulation(
            self.engine, RankScheduler(policy, told.host_effects),
            self.target_device.resolve(topology.sip_count), seed=told.seed, title=self.correlation_id, ccl=self.ccl,
            plugins=self.plugins, context=self, describe=self._describe, unknown=told.unknown,
            memory_limit=parse_limit(told.memory_limit), exact_dtype=told.exact_dtype,
            fill_uninitialized=told.fill_uninitialized, races=mode_of(told.races), memory=told.memory, choices=choices,
            jitter=Jitter(told.jitter, told.stragglers or {}, told.seed),
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
            system=self.topology.system.name, sips=len(self.simulation.sips), seed=self.seed, policy=self.settings.policy,
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

    def __exit__(self, exc_type: object, exc: Any, traceback: Any) -> None:
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
    def seed(self) -> int:
        """Seeds the random generators of the ranks."""
        return self.settings.seed

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
    def _pending_worker_waits(self) -> list[tuple[Awaited, object]]:
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

    def launch(
        self, kernel: object, grid: object, *args: object, name: str | None = None, **kwargs: object
    ) -> Operation:
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


F = TypeVar("F", bound=Callable[..., Any])

_FIELDS = frozenset(RuntimeContext.__dataclass_fields__) | {"factories"}
"""Names that are the context's own, also before they are set."""


def _require_ranks(topology: Topology, sips: int, told: SimulateOptions) -> None:
    """Raises :class:`ConfigError` for a rank that no world has which fits ``sips`` SIPs, and the stated world."""
    if told.world_size is not None:
        topology.require_world(told.world_size)
    most = sips if told.world_size is None else min(sips, told.world_size)
    chosen_ranks(told.ranks, most)
    for rank in told.stragglers or ():
        if not 0 <= rank < most:
            raise ConfigError(f"straggler {rank} is not one of {most} ranks, the most that there can be here")


def _with_options(function: F) -> F:
    """Its docstring says what each option is, before what it raises."""
    told = "".join(f"    {row.name}: {row.about}\n" for row in options_of(SimulateOptions))
    said = inspect.cleandoc(function.__doc__ or "")  # as Python 3.13 has it
    function.__doc__ = said.replace("Raises:\n", f"Args:\n{told}\nRaises:\n")
    return function


@contextmanager
@_with_options
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
    plugins: Sequence[object] = (),
    options: Mapping[str, object] | None = None,
    log_limit: int | None = LOG_LIMIT,
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
    """Open a simulation of ``system`` and yield its :class:`RuntimeContext`. ``docs/options.md`` shows its options.

    Raises:
        ConfigError: the description is wrong, or the world does not fit.
        PluginError: a plugin cannot be used, or has failed to decide something.
    """
    told = SimulateOptions(**locals())
    manager = default_manager().extended(told.plugins)
    if isinstance(system, TopologyHandle):
        handle = system.with_nodes(told.nodes)
    else:
        handle = resolve_topology(system, nodes=told.nodes, plugins=manager)
    if told.ranks != "all" and told.enable_data:
        raise ConfigError(
            f"ranks={ranks!r}: ranks stand in for others only without data (enable_data=False, --no-data); how many there are "
            "in all is said by spawn's nprocs, --nproc-per-node"
        )
    if told.memory == "weak" and not told.enable_data:
        raise ConfigError("memory='weak' is about values: it needs data (enable_data=True, no --no-data)")
    selector = DeviceSelector(told.devices)
    sips = len(selector.resolve(handle.topology_obj.sip_count))
    _require_ranks(handle.topology_obj, sips, told)
    if isinstance(ccl, str | Path):
        ccl = load_ccl_config(ccl, system=handle.topology_obj.system, plugins=manager)

    def fresh(fold: Scouts | None = None) -> RuntimeContext:
        return RuntimeContext(
            engine=GraphEngine(handle.topology_obj, enable_data=told.enable_data, log_limit=told.log_limit),
            target_device=selector, correlation_id=told.correlation_id, ccl=ccl, plugins=manager, settings=told, fold=fold,
        )  # fmt: skip

    with fresh(None if told.ranks == "all" else Scouts(told.ranks, fresh)) as ctx:
        ctx.simulation.steps.stop_after(told.stop_after_steps)
        ctx.multiprocessing.most = told.world_size
        yield ctx
