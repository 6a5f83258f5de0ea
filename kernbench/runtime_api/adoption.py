"""A program that is a rank where it stands: the thread that runs it becomes rank 0 of a world of one.

Ranks of a spawn are functions that are called. A script for one GPU, a suite of tests, a notebook are none: they have begun
already, on Python's main thread, where signals arrive and pytest and debuggers live. So that thread becomes the carrier of
a rank (:class:`~kernbench.scheduler.carrier.Carrier`), and a thread beside it drives the simulation (ADR 0132).

What Python and torch keep per process stays the process's: ``os.environ``, ``sys.argv``, modules and generators are the
program's, as they are under ``python``.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import Any

import torch

from kernbench.driver_tools import nvidia_smi
from kernbench.driver_tools.inventory import has_smi
from kernbench.errors import KernbenchError
from kernbench.runtime_api import started_processes
from kernbench.runtime_api.context import RuntimeContext, simulate
from kernbench.runtime_api.lone_processes import LoneProcesses
from kernbench.runtime_api.multiprocessing import Multiprocessing, SpawnCall
from kernbench.runtime_api.process_context import ProcessContext
from kernbench.runtime_api.spawned_ranks import with_arguments
from kernbench.runtime_api.start_up import ALONE
from kernbench.scheduler import Rank
from kernbench.scheduler.carrier import Carrier, current_carrier
from kernbench.scheduler.host_effects import start_thread
from kernbench.simulation.ranks.failures import SpawnException
from kernbench.simulation.simulation import Simulation
from kernbench.topology import TopologyHandle
from kernbench.torch_backend.environment import Environment
from kernbench.torch_backend.gpu.kernels import program_kernels
from kernbench.torch_backend.patches import Patches
from kernbench.trace.process_figures import OWN_CLOCKS

DRIVER_THREAD = "kernbench-driver"


_AFTERWARDS = (
    "times and memory are those of the program itself, which used its GPU after the ranks that it spawned had ended: theirs "
    "are in the trace alone"
)


def _is_here() -> None:
    raise KernbenchError("an adopted program is not called")


class Adoption:
    """A block whose program is rank 0 of a world of one, from entering it to leaving it.

    What the program raises goes on to the caller. Ranks that it spawns (:meth:`spawn`) have the simulation to themselves.
    """

    def __init__(self, simulation: Simulation, multiprocessing: Multiprocessing) -> None:
        self._simulation = simulation
        self._multiprocessing = multiprocessing
        self._rank: tuple[Rank, Carrier] | None = None
        self._running = ExitStack()
        self._error: BaseException | None = None
        self._kernels: program_kernels.Kernels = {}
        self._threads = torch.get_num_threads()
        self._driver: threading.Thread | None = None
        self._restore: Callable[[], None] | None = None
        self._unjoined: Callable[[], bool] | None = None

    @property
    def holds(self) -> bool:
        """Whether the program is a rank now, and not its spawned ones."""
        return self._rank is not None

    # -- beginning and ending ----------------------------------------------------------------------------------------

    def __enter__(self) -> Adoption:
        simulation = self._simulation
        if self._rank is not None or current_carrier() is not None:
            raise KernbenchError("this is a rank already: it has a GPU")
        self._threads = torch.get_num_threads()
        self._restore = self._memory_of_the_last_world()
        self._path = os.environ.get("PATH", os.defpath)
        if has_smi(simulation.topology):
            os.environ["PATH"] = nvidia_smi.on_path(self._path)
        environment = self._multiprocessing.open_world(SpawnCall(_is_here, (), 1, "carrier", ()))
        assert isinstance(environment, Environment)
        adopted = threading.Event()
        self._driver = threading.Thread(
            target=self._drive, args=(threading.current_thread(), adopted), name=DRIVER_THREAD, daemon=True
        )
        start_thread(self._driver, "the simulation")
        adopted.wait()
        assert self._rank is not None
        rank, carrier = self._rank
        carrier.enter()
        self._running.enter_context(simulation.scheduler.living(rank))
        self._running.enter_context(environment.running(rank.index))
        program_kernels.keep(rank.index, self._kernels)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        adopted, driver = self._rank, self._driver
        if adopted is None or driver is None:
            join, self._unjoined = self._unjoined, None
            while join is not None and error is None and not join():  # a program ends when its processes have
                pass
            return
        rank, carrier = adopted
        host = self._simulation.hosts.of_rank[rank.index]
        idle = not host.tails and not any(memory.ledger.peak for memory in self._simulation.memories.of(host))
        self._kernels = program_kernels.kernels_of(rank.index)
        try:
            self._running.__exit__(kind, error, trace)
        finally:
            self._rank = self._driver = None
            carrier.leave()
            driver.join()
            self._simulation.scheduler.be_driven_here()
            torch.set_num_threads(self._threads)  # a thread that sets it sets it for itself alone
            if os.environ.get("PATH") == nvidia_smi.on_path(self._path):  # and not what the program has set
                os.environ["PATH"] = self._path
            if self._restore is not None and idle:
                self._restore()
            elif self._restore is not None:
                self._simulation.remarks.setdefault(_AFTERWARDS)
        failure, self._error = self._error, None
        if failure is not None and not (isinstance(failure, SpawnException) and error is not None):
            raise failure

    def _drive(self, program: threading.Thread, adopted: threading.Event) -> None:
        """In a thread beside the program's: what main does for ranks."""
        scheduler = self._simulation.scheduler
        scheduler.be_driven_here()
        self._rank = scheduler.adopt(program)
        adopted.set()
        try:
            self._simulation.world.run()
        except BaseException as error:
            self._error = error

    def _memory_of_the_last_world(self) -> Callable[[], None] | None:
        """Reports are of the last world; one that has done nothing is none to report of."""
        hosts, steps = self._simulation.hosts, self._simulation.steps
        before = hosts.of_rank, hosts.folding, steps.of_rank

        def restore() -> None:
            hosts.of_rank, hosts.folding, steps.of_rank = before

        return restore if hosts.of_rank else None

    # -- ranks of the program's own ----------------------------------------------------------------------------------

    def spawn(self, *args: Any, **kwargs: Any) -> ProcessContext | None:
        """``torch.multiprocessing.spawn`` of the program: it is no rank itself until its ranks have ended."""
        if self._rank is None or self._simulation.scheduler.current_rank() is None:
            return self._multiprocessing.spawn(*args, **kwargs)
        self.__exit__(None, None, None)
        self._simulation.remarks.pop(_AFTERWARDS, None)
        started: ProcessContext | None = None
        try:
            started = self._multiprocessing.spawn(*args, **kwargs)
        finally:
            if started is None:
                self.__enter__()
        if started is not None:
            self._unjoined = started.join
            started.join = functools.partial(self._join, started.join)  # type: ignore[method-assign]
        return started

    def _join(self, join: Callable[..., bool], *args: object, **kwargs: object) -> bool:
        ended = True
        try:
            ended = join(*args, **kwargs)
        finally:
            if ended and self._rank is None:
                self.__enter__()
        return ended


@contextmanager
def simulated_gpu(system: str | TopologyHandle = "dgx_h100", **options: Any) -> Iterator[RuntimeContext]:
    """For the length of a block, this process has the GPUs of a node of ``system``, and drives the first.

    ``device="cuda"``, ``torch.cuda``, ``time``, Triton's driver and ``torch.distributed`` of one rank work in it as in a rank;
    ranks that the program spawns with ``torch.multiprocessing.spawn`` are simulated, too. Time is virtual.

    Args:
        system: name of a shipped system, path of a YAML file, or a handle.
        options: of :func:`kernbench.simulate`.

    Yields:
        The context of the simulation.

    Raises:
        ConfigError: there is no such system.
        KernbenchError: in a rank, which has a GPU already.
    """
    patches = Patches()
    with simulate(system, **options) as ctx, ExitStack() as stack:
        adoption, remark = Adoption(ctx.simulation, ctx.multiprocessing), ctx.simulation.remarks.setdefault
        if not isinstance(system, TopologyHandle):  # which may be of no file
            found = stack.enter_context(closing(LoneProcesses(system, options)))
            ctx.multiprocessing.of_children = found.variables_of(ctx.topology)
            stack.callback(lambda: remark(OWN_CLOCKS) if found.figures() else None)
        lone = not isinstance(system, TopologyHandle) or ALONE in os.environ  # as its own children are
        started_processes.install(patches, remark, with_arguments(adoption.spawn), lone=lone)
        stack.callback(patches.undo)
        with adoption:
            yield ctx
