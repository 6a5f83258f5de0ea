"""What is different about torch and Python while simulated ranks run.

An :class:`Environment` is opened by ``spawn`` before its ranks start, and closed when they have ended or were unwound. In
between, names of torch's distributed package, of ``torch.cuda`` and of ``time`` have other values, and process-wide state
is switched with the ranks. Closing puts everything back, also after a failure.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed.distributed_c10d

from kernbench.torch_backend.compiled import described_gpu
from kernbench.torch_backend.features import checkpoint_files, compiling, file_times, saved_devices
from kernbench.torch_backend.gpu.device.devices import HostDevices, take_pinned
from kernbench.torch_backend.gpu.device.software_versions import cuda_version
from kernbench.torch_backend.gpu.memory import replaced_data
from kernbench.torch_backend.gpu.tensors import pinning, sent_storages
from kernbench.torch_backend.hollow import sinks
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.operations.recorder import open_recorder
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.process_groups import backend_registry
from kernbench.torch_backend.process_groups.making import GroupMaker
from kernbench.torch_backend.process_groups.world import ProcessWorld, RankWorld
from kernbench.torch_backend.rank_state import clocks, daemon_modules, ends_of_all, late_calls, module_hooks, signals
from kernbench.torch_backend.rank_state.daemon_processes import DaemonProcesses
from kernbench.torch_backend.rank_state.forked import ending_forks
from kernbench.torch_backend.rank_state.imports import StockImports
from kernbench.torch_backend.rank_state.interpreter import InterpreterState, bound_recursion
from kernbench.torch_backend.rank_state.process_state import ProcessState
from kernbench.torch_backend.rank_state.process_waits import ProcessWaits
from kernbench.torch_backend.rank_state.side_threads import SideThreads
from kernbench.torch_backend.relies_on import Reliance
from kernbench.torch_backend.replaced_names import ReplacedNames
from kernbench.triton_engine.threads import set_product_threads

c10d: Any = torch.distributed.distributed_c10d
_registry: Any = torch._C._distributed_c10d


RELIES_ON = (
    Reliance("torch._C._distributed_c10d._set_thread_isolation_mode", "C++ registers names of groups per thread then"),
    Reliance("torch.distributed.distributed_c10d", "a rank's groups are forgotten with it", has=(
        "_world", "_unregister_all_process_groups",
    )),
)  # fmt: skip


def _one_thread(nthreads: int) -> None:
    """``torch.set_num_threads`` of a rank that is a process: OpenMP's threads are its parent's, and a child that asks for more
    than one would wait for them for ever."""


def _nothing() -> None:
    """There is nothing to undo."""


@functools.cache
def _start_autograd() -> None:
    """Let autograd's engine start where torch knows of no GPU: beside one it starts threads, and then the process cannot be
    forked any more."""
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones((), device="cpu", requires_grad=True).backward()


class DriverTools(Protocol):
    """What ranks find of the tools of a GPU's driver (:mod:`kernbench.driver_tools`)."""

    def install(self, patches: Patches) -> None:
        """Let ranks load its libraries."""

    def search_path(self, path: str) -> str:
        """``PATH`` of a rank for that of main."""
        ...

    def variables_of_children(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What else the environment of a process says that the current rank starts with these variables."""
        ...


class Environment:
    """Torch for the ranks of one spawn.

    Args:
        tools: of the driver.
        per_rank_modules: prefixes of modules of which each rank has globals of its own.
        alone: whether this process is one rank's, and may have been forked: OpenMP's threads are not started.

    Attributes:
        state: what torch and Python keep per process.
        end_alone: whether a rank that ends its process (``os.kill``, ``os._exit``) ends alone, with its exit code.
    """

    end_alone = False

    def __init__(
        self, devices: HostDevices, tools: DriverTools, per_rank_modules: Sequence[str] = (), *, alone: bool = False
    ) -> None:
        simulation = devices.simulation
        self._host_devices = devices
        self._tools = tools
        self._patches = Patches()
        self._alone = alone
        self._threads = torch.get_num_threads()
        self._product_threads: int | None = None
        self._isolated = False
        self._told_no_more: Callable[[], None] = _nothing
        self._forget_backends: Callable[[], None] = _nothing
        self._side_threads = SideThreads(simulation, lambda rank: open_recorder(devices.recorder_of(rank)), devices.of)
        self._daemon_processes = DaemonProcesses(simulation)
        self._process_waits = ProcessWaits(simulation)
        self._interpreter = InterpreterState()
        self._replaced = ReplacedNames.take()
        self.state = ProcessState(simulation, simulation.world.size, per_rank_modules, self._replaced.generators)
        self.state.of_children = tools.variables_of_children
        self.state.search_path = tools.search_path
        self._imports = StockImports(self._patches, self._lifted, self.state, marks=not simulation.engine.enable_data)

    # -- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Replace what is different."""
        _start_autograd()
        try:
            if self._threads != 1:
                if not self._alone:
                    with plain_torch():
                        self._product_threads = set_product_threads(self._threads)
                torch.set_num_threads(1)  # ranks take turns, and sums must not depend on the number of threads
            _registry._set_thread_isolation_mode(True)
            self._isolated = True
            compiling.forget_compiled()
            described_gpu.forget()
            self._replaced.open(self._host_devices, self.state.modules)
            self._replace_distributed()
            self._replaced.devices.open(self._host_devices)
            pinning.count_by(take_pinned)
            sent_storages.open_for_ranks(alone=self._alone)
            self._replaced.symmetric_memory.open()
            clocks.install_kept(self._patches)
            module_hooks.install(self._patches, self.state.modules)
            self._side_threads.install(self._patches)
            self._daemon_processes.install(self._patches)
            self._process_waits.install(self._patches, alone=self._alone)
            simulation = self._host_devices.simulation
            signals.install(
                self._patches, lambda text: simulation.remarks.setdefault(text), simulation.scheduler.set_alarm
            )
            if not self._alone:
                bound_recursion(self._patches)
                self._told_no_more = ends_of_all.install(
                    self._patches, self._host_devices.simulation, end_alone=self.end_alone
                )
            checkpoint_files.install(self._patches, self._host_devices.simulation)
            saved_devices.install(self._patches)
            file_times.install(self._patches, self._host_devices.simulation)
            self._tools.install(self._patches)
            if not self._host_devices.simulation.engine.enable_data:
                sinks.install(self._patches)
            self._patches.set(torch.version, "cuda", cuda_version(self._host_devices.simulation.topology))
            if self._host_devices.simulation.order is not None:
                replaced_data.install(self._patches)
            self._imports.install()
            self.state.open(self._patches)  # what classes have by now, every rank begins with
            if (modules := self.state.rank_modules) is not None:
                self._side_threads.before_daemons = functools.partial(
                    daemon_modules.install, self._patches, modules.may_be_own
                )
            self._imports.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Put everything back. Idempotent."""
        self._imports.close()
        self._told_no_more()
        self._forget_backends()
        self._told_no_more = self._forget_backends = _nothing
        self.state.close()
        self._patches.undo()
        late_calls.expect()
        pinning.forget()
        sent_storages.close()
        compiling.forget_names()
        self._replaced.close()
        compiling.forget_compiled()
        described_gpu.forget()
        if self._isolated:
            self._isolated = False
            _registry._set_thread_isolation_mode(False)
        if self._product_threads is not None:
            set_product_threads(self._product_threads)
            self._product_threads = None
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    @contextmanager
    def _lifted(self) -> Iterator[None]:
        """Stock torch and Python, for the length of a block, in which nothing is an operation of the rank's."""
        names = self._replaced.names
        modules = self.state.modules
        paused, modules.paused = modules.paused, True
        try:
            with (
                self._host_devices.simulation.hosts.current().aside(),
                self._patches.lifted(),
                nullcontext() if names is None else names.lifted(),
            ):
                yield
        finally:
            modules.paused = paused

    def wrap(self, rank: int, body: Callable[[], object]) -> Callable[[], Any]:
        """``body`` with what a rank's thread needs around it."""
        return functools.partial(self._run_rank, rank, body)

    def be_alone(self, rank: int, keep: Collection[str] = ()) -> None:
        """This process is ``rank``'s from here on: a fork of the one where this was opened, or that very one.

        ``keep``: modules whose random generators go on where they are (``"torch"``, ``"random"``, ``"numpy.random"``); the
        others are seeded.
        """
        generator = torch.get_rng_state() if "torch" in keep else None
        self.state.enter(rank)
        self._process_waits.be_alone()
        if generator is not None:
            torch.set_rng_state(generator)
        self._replaced.generators.keep(rank, keep)
        c10d._world = ProcessWorld()
        _registry._set_thread_isolation_mode(False)
        set_product_threads(1)  # the other cores are for the other ranks
        torch.set_num_threads = _one_thread

    @property
    def groups(self) -> GroupMaker:
        """Makes the ranks' process groups."""
        assert self._replaced.groups is not None
        return self._replaced.groups

    def _run_rank(self, rank: int, body: Callable[[], object]) -> Any:
        with self.running(rank), ending_forks():
            try:
                return body()
            finally:
                self._interpreter.put_back_names()

    @contextmanager
    def running(self, rank: int) -> Iterator[None]:
        """The block is the program of ``rank``, in its thread."""
        try:
            with open_recorder(self._host_devices.recorder_of(rank)):
                yield
                self._side_threads.finish(rank)
                self._replaced.futures.finish()
        finally:
            self._daemon_processes.close(rank)
            self._side_threads.close(rank)
            # the C++ registry of group names belongs to this thread, which is about to end
            world = c10d._world
            if isinstance(world, RankWorld) and world.pg_map:
                c10d._unregister_all_process_groups()
                world.__dict__.clear()
                world.__init__()  # type: ignore[misc]

    # -- distributed -------------------------------------------------------------------------------------------------

    def _replace_distributed(self) -> None:
        patch = self._patches.set
        patch(sys, "excepthook", sys.excepthook)  # init_process_group wraps it, also that of a rank which has no thread
        patch(c10d, "_world", RankWorld())
        self._forget_backends = backend_registry.install(self._patches, shared=self.state.modules.shared)
