"""``ctx.multiprocessing``: ``torch.multiprocessing.spawn`` for simulated ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from greenlet import getcurrent

from kernbench.driver_tools.system_tools import SystemTools
from kernbench.errors import ConfigError, KernbenchError
from kernbench.processes import start as processes
from kernbench.processes.joined import Company, Joined
from kernbench.processes.program import join
from kernbench.processes.seat import Seat
from kernbench.processes.timekeeper import Timekeeper
from kernbench.runtime_api.distributed import Distributed
from kernbench.runtime_api.process_context import ProcessContext
from kernbench.simulation.active_simulation import activate
from kernbench.simulation.ranks.failures import SpawnException as SpawnException
from kernbench.simulation.ranks.folding import Folding
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.triton_driver import follow_active_simulation
from kernbench.torch_backend.environment import Environment
from kernbench.torch_backend.features.optimizer_steps import OptimizerSteps
from kernbench.torch_backend.gpu.device.devices import HostDevices
from kernbench.torch_backend.gpu.device.visible_devices import visible_first
from kernbench.torch_backend.process_groups import late_joining, stores
from kernbench.torch_backend.rank_state import late_calls, thread_waits
from kernbench.torch_backend.rank_state.greenlets import GreenletEnvironment
from kernbench.torch_backend.rank_state.interpreter import InterpreterState

ISOLATIONS = ("carrier", "greenlet", "process")


class HasSimulation(Protocol):
    """A context, for :func:`_drain_pending`."""

    simulation: Simulation


@dataclass(frozen=True)
class SpawnCall:
    """What a spawn runs, as :meth:`Multiprocessing.spawn` was given it."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    nprocs: int
    isolation: str
    per_rank_modules: Sequence[str]


Fold = Callable[["Multiprocessing", SpawnCall], "Folding | None"]
"""Who runs a program that is spawned; None: all."""


class Multiprocessing:
    """``torch.multiprocessing`` of a context.

    Args:
        fold: decides which of the ranks of a spawn run; None: all.

    Attributes:
        configure: receives the environment of carriers before it is opened.
        most: ranks that a spawn may have; None: as many as there are SIPs.
        of_children: what else the environment of a process says that ranks start with these variables.
    """

    def __init__(
        self, simulation: Simulation, devices: HostDevices, distributed: Distributed, fold: Fold | None = None
    ) -> None:
        self._fold = fold
        self._simulation = simulation
        self._devices = devices
        self._distributed = distributed
        self._daemon = False
        self._unjoined: ProcessContext | None = None
        self.most: int | None = None
        self.configure: Callable[[Environment], None] | None = None
        self.of_children: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda environ: {}

    def spawn(
        self,
        fn: Callable[..., object],
        args: tuple[object, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        *,
        isolation: str = "carrier",
        per_rank_modules: Sequence[str] = (),
    ) -> ProcessContext | None:
        """Call ``fn(rank, *args)`` once per rank, for ranks ``0 .. nprocs - 1``.

        PyTorch's signature and behaviour come first: ``sys.exit(0)`` and KeyboardInterrupt in a rank are success,
        ``nprocs=0`` returns at once, ``join=False`` returns a :class:`ProcessContext`. Ranks that are not joined when
        the context ends are joined then, or unwound if ``daemon``. ``start_method`` is accepted and means nothing here.

        Args:
            isolation: ``"carrier"`` runs each rank's body on an OS thread of its own behind a baton, so that torch's
                thread-local state belongs to the rank; ``"greenlet"`` is quicker, for programs that switch only in
                calls of the context; ``"process"`` forks a process per rank, which has everything of its own and runs beside
                the others (``docs/processes.md``).
            per_rank_modules: prefixes of modules whose globals each rank has of its own.

        Raises:
            SpawnException: one or more ranks raised; the context stays usable.
            KernbenchError: called from inside a rank.
            ConfigError: the world does not fit the system, or an argument is wrong.
        """
        simulation = self._simulation
        scheduler = simulation.scheduler
        if scheduler.current_rank() is not None or getcurrent() is not scheduler.main:
            raise KernbenchError(
                "spawn was called from inside a rank: nested worlds are not simulated. A script that makes its own ranks is "
                "run without --nproc-per-node; for a part of the ranks there is new_group, and another spawn may follow this"
            )
        if isolation not in ISOLATIONS:
            raise ConfigError(f"isolation {isolation!r}: expected one of {', '.join(ISOLATIONS)}")
        if per_rank_modules and isolation == "greenlet":
            raise ConfigError("per_rank_modules needs isolation='carrier' or 'process'")
        if isolation == "process":
            if simulation.choices is not None:
                raise ConfigError("isolation='process': ranks that are processes have no schedule but the default one")
            processes.require(simulation)
        if not isinstance(nprocs, int) or nprocs < 0:
            raise ConfigError(f"nprocs {nprocs!r}: expected an integer >= 0")
        if nprocs == 0:
            return None if join else ProcessContext(simulation, 0)
        if scheduler.live_count:
            raise KernbenchError(
                f"{scheduler.live_count} ranks of an earlier spawn(join=False) have not ended: join them first"
            )
        if simulation.world.size:  # one that main has not joined, though its ranks have ended
            simulation.world.close()
        self._require_fit(nprocs)
        program = SpawnCall(fn, args, nprocs, isolation, per_rank_modules)
        self._start(program, None if self._fold is None else self._fold(self, program))
        self._daemon = daemon
        if not join:
            self._unjoined = ProcessContext(simulation, nprocs)
            return self._unjoined
        simulation.world.run()
        return None

    def _start(self, program: SpawnCall, folding: Folding | None) -> None:
        """Make the ranks that run, ready to."""
        late_calls.expect()  # it stays when all else is put back
        interpreter = InterpreterState()
        ranks = range(program.nprocs) if folding is None else folding.live
        environment = self.open_world(program, folding)
        thread_waits.start_with_these()
        bodies: list[Callable[[], Any]] = [functools.partial(program.fn, rank, *program.args) for rank in ranks]
        before_run = None
        self._simulation.world.closers.insert(0, interpreter.put_back)
        if isinstance(environment, Environment):
            bodies = [environment.wrap(rank, body) for rank, body in zip(ranks, bodies, strict=True)]
            if program.isolation == "carrier":
                before_run = environment.state.enter
            else:
                try:
                    bodies = processes.start(self._simulation, environment, ranks, bodies)
                except BaseException:
                    self._simulation.world.close()
                    raise
        self._simulation.scheduler.start(bodies, isolation=program.isolation, before_run=before_run, indices=ranks)

    def open_world(self, program: SpawnCall, folding: Folding | None = None) -> Environment | GreenletEnvironment:
        """Make the hosts of the ranks that run, and torch what they are to find; the world closes it."""
        environment: Environment | GreenletEnvironment
        self._open_hosts(program.nprocs, self._simulation.now(), folding)
        if program.isolation == "greenlet":
            environment = GreenletEnvironment(self._devices)
        else:
            modules = program.per_rank_modules if program.isolation == "carrier" else ()
            environment = Environment(self._devices, self._tools(), modules)
            self._tell_children(environment, self.of_children)
            if self.configure is not None:
                self.configure(environment)
        self._open(environment)
        return environment

    def _tools(self) -> SystemTools:
        return SystemTools(self._simulation.topology)

    def _open_hosts(
        self, nprocs: int, clock: float, folding: Folding | None = None, driven: Sequence[int] = ()
    ) -> None:
        """``driven``: the SIPs that ranks drive, by rank; default: as this process's environment has it."""
        simulation = self._simulation
        simulation.hosts.sips = driven or visible_first(simulation.topology, simulation.sips)
        activate(simulation)
        follow_active_simulation()
        simulation.drain.pending()
        simulation.world.open(nprocs, clock, folding)

    def _open(self, environment: Environment | GreenletEnvironment) -> None:
        """Have torch as it is for ranks, until the world is closed."""
        late_joining.simulates()
        optimizers = OptimizerSteps(self._simulation)
        self._simulation.world.closers += [self._distributed.close, environment.close, optimizers.close]
        environment.open()
        optimizers.open()
        self._distributed.open(environment.groups)

    def serve(
        self, by_rank: Mapping[int, Joined], launcher: int, until: ExitStack, keeper: Timekeeper | None = None
    ) -> None:
        """Run a world whose ranks are processes that another launcher has started and that have joined, until all have ended.

        Args:
            launcher: a descriptor of what has started them, readable when that has ended.
            until: when it is closed, those that are left are ended.
            keeper: keeps the time of processes that are no ranks.

        Raises:
            SpawnException: one or more ranks raised.
        """
        simulation, company = self._simulation, Company(by_rank, launcher, keeper)
        until.callback(company.close)
        self._open_hosts(len(by_rank), simulation.now())
        self._open(Environment(self._devices, self._tools()))
        simulation.threads.has_others = lambda: True  # whatever has started them
        bodies = processes.relay(simulation, company, keeper)
        simulation.scheduler.start(bodies, isolation="process", indices=list(by_rank))
        try:
            simulation.world.run()
        except SpawnException:
            company.part()
            raise

    def take(
        self, seat: Seat, nprocs: int, keep: Collection[str] = (), of_children: Mapping[str, str] | None = None
    ) -> None:
        """This process is the rank of another one's simulation that has the ``seat``, from here on until it ends.

        ``keep``: modules whose random generators go on where they are; the others are seeded. ``of_children``: environment
        variables that the processes have which it starts, and not it itself.
        """
        self._open_hosts(nprocs, seat.welcome.clock, driven=seat.welcome.driven)
        self._simulation.world.apart = True
        environment = Environment(self._devices, self._tools(), alone=True)
        environment.state.variables = lambda rank: {}  # it has those that it was started with
        self._tell_children(environment, lambda environ: of_children or {})
        self._open(environment)
        join(seat, self._simulation, environment, stores.innermost(), keep)

    @staticmethod
    def _tell_children(environment: Environment, more: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        told = environment.state.of_children
        environment.state.of_children = lambda environ: {**told(environ), **more(environ)}

    def require_joined(self, nprocs: int, local_size: int = 0) -> None:
        """Raise :class:`ConfigError` if ``nprocs`` ranks that join cannot be had, ``local_size`` of them on a node (0: any)."""
        processes.require(self._simulation)
        self._require_fit(nprocs)
        per_node = self._simulation.topology.sips_per_node
        if local_size and nprocs > local_size != per_node:
            raise ConfigError(
                f"{nprocs} ranks, {local_size} on each node, do not fill nodes of {per_node} SIPs: ranks that join drive the "
                "SIPs in their order"
            )

    def remark(self, text: str) -> None:
        """Have the summary say something besides."""
        self._simulation.remarks.setdefault(text)

    def run_part(self, program: SpawnCall, folding: Folding) -> None:
        """Run a program in the ranks of ``folding`` alone, and join them. Raises what :meth:`spawn` does."""
        self._start(program, folding)
        self._simulation.world.run()

    def join_at_exit(self) -> None:
        """What happens to ranks that are not joined when the context ends: as to processes when theirs ends."""
        if self._unjoined is not None:
            self._unjoined.raise_failure()
        if self._simulation.world.size:
            if self._daemon:
                self._simulation.world.abort()
            else:
                self._simulation.world.run()

    def _require_fit(self, nprocs: int) -> None:
        simulation = self._simulation
        if self.most is not None and nprocs > self.most:
            raise ConfigError(
                f"{nprocs} ranks are more than the world_size={self.most} that the simulation was opened for: "
                f"give it {nprocs}, or leave it out"
            )
        if len(simulation.sips) == simulation.topology.sip_count:
            simulation.topology.require_world(nprocs)
        elif nprocs > len(simulation.sips):
            raise ConfigError(
                f"world_size {nprocs} does not fit the {len(simulation.sips)} SIPs selected by target_device: select more, or "
                "use fewer ranks"
            )


def _drain_pending(ctx: HasSimulation) -> None:
    """Drain worker waits, then collectives, in one barrier, until both queues are empty. Idempotent.

    Raises:
        DeadlockError: something is left that cannot be completed, and no greenlet waits for it that could be notified.
    """
    ctx.simulation.drain.pending()
