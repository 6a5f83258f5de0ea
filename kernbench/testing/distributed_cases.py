"""torch's test cases of many processes on simulated ranks.

``torch.testing._internal.common_distributed`` has the base classes that torch's own distributed tests, and those of packages
around it, derive from: ``MultiProcessTestCase`` (with ``DistributedTestBase``, ``FSDPTest``, ``DTensorTestBase``),
``MultiProcContinuousTest`` and ``MultiThreadedTestCase``. Each starts processes or threads and has them run one method of the
test's class. :class:`SimulatedTestCases` replaces the starting and the waiting: simulated ranks run the same method.

A rank has a class of its own, derived from the test's, so that what a test sets on its class stays in the "process" that it
set it in; ranks that stand for threads share it.
"""

from __future__ import annotations

import functools
import queue
import sys
import time
import types
import unittest
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kernbench.simulation.ranks.failures import SpawnException, pid_of
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.device import software_versions
from kernbench.torch_backend.gpu.device.devices import bound_devices, current_rank
from kernbench.torch_backend.gpu.names import cuda_names
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.process_groups import backend_classes, stores
from kernbench.torch_backend.relies_on import Reliance

RunRanks = Callable[[Callable[[int], None], int, Sequence[str]], None]
"""Runs a body on so many simulated ranks, with the globals of these modules per rank; raises :class:`SpawnException`."""

_THREADS_MEET = "store of threads"
"""Name of the store by which ranks that stand for threads find each other."""

_TERMINATED = -15
"""Exit code of a process that its parent has ended because another one failed."""


_CASES = "torch.testing._internal.common_distributed"

_relies = functools.partial(Reliance, needs="expecttest")
"""On torch's own test cases, whose module is imported with that package."""

RELIES_ON = (
    _relies(f"{_CASES}.MultiProcessTestCase", "a test's processes are started, run and judged here", has=(
        "_start_processes", "_join_processes", "_event_listener", "_check_return_codes", "_current_test_name",
        "TEST_ERROR_EXIT_CODE", "world_size",
    )),
    _relies(
        f"{_CASES}.MultiProcessTestCase._run", "it is what one of the processes does",
        parameters=("rank", "test_name", "file_name", "parent_pipe"),
    ),
    _relies(f"{_CASES}.MultiProcContinuousTest", "the workers of a class of tests are", has=(
        "_spawn_processes", "_worker_run_main_wait", "MAIN_PROCESS_RANK",
    )),
    _relies(
        f"{_CASES}.MultiProcContinuousTest._worker_loop", "it is what one of the workers does",
        parameters=("rank", "world_size", "rdvz_file", "task_queue", "completion_queue"),
    ),
    _relies(f"{_CASES}.MultiThreadedTestCase", "a test's threads are", has=(
        "_spawn_threads", "join_or_run", "MAIN_THREAD_RANK", "exception_queue", "_current_test_name",
    )),
    _relies(f"{_CASES}.MultiThreadedTestCase._run", "it is what one of the threads does", parameters=("test_name", "rank")),
    _relies(
        f"{_CASES}.MultiThreadedTestCase._check_return_codes", "it judges what threads raised",
        parameters=("failed_ranks", "timeout", "fn"),
    ),
    _relies(_CASES, "functions with threads of their own, and tests of one process, run on ranks", has=(
        "spawn_threads_and_init_comms", "DEFAULT_WORLD_SIZE", "TestCase",
    )),
    _relies("torch.testing._internal.common_device_type.CUDATestBase", "its class is set up without a CUDA runtime", has=(
        "setUpClass", "_do_cuda_non_default_stream", "_do_cuda_memory_leak_check",
    )),
)  # fmt: skip


class SimulatedProcess:
    """What a test case keeps of a process that it has started: a rank that will run when the test waits for it.

    Attributes:
        args, kwargs: what it is given.
    """

    def __init__(self, rank: int) -> None:
        self.name = f"process {rank}"
        self.pid = pid_of(rank)
        self.exitcode: int | None = None
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    def takes(self, *args: Any, **kwargs: Any) -> None:
        """Keep what it is given."""
        self.args, self.kwargs = args, kwargs

    def is_alive(self) -> bool:
        """False: the caller is not a rank, and ranks have ended then."""
        return False

    def terminate(self) -> None:
        """Nothing to end: see ``is_alive``."""

    def join(self, timeout: float | None = None) -> None:
        """Nothing to wait for: see ``is_alive``."""

    kill = terminate


class PipeEnd:
    """One end of a pipe between a test case and a rank."""

    def __init__(self) -> None:
        self.arrived: deque[Any] = deque()
        self.other = self
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[PipeEnd, PipeEnd]:
        """Two ends."""
        one, other = cls(), cls()
        one.other, other.other = other, one
        return one, other

    def send(self, value: object) -> None:
        """To the other end."""
        self.other.arrived.append(value)

    def recv(self) -> object:
        """The next value. Raises :class:`EOFError` if there is none: ranks run once the test waits for them, and in turns."""
        if not self.arrived:
            raise EOFError(
                "nothing has been sent: a test's simulated ranks run when it waits for them to end, so that they and the "
                "test's own process cannot answer each other"
            )
        return self.arrived.popleft()

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether there is one."""
        return bool(self.arrived)

    def close(self) -> None:
        """No rank sends or receives any more."""
        self.closed = True


def _makes_pipes(stock: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """Pipes that a test makes in its own process are to its ranks, which do not run while it waits for what they send."""

    @functools.wraps(stock)
    def Pipe(duplex: bool = True) -> tuple[Any, Any]:
        return PipeEnd.pair() if current_rank() is None else stock(duplex)

    return Pipe


def own_class(cls: type, rank: int) -> type:
    """``cls`` for one rank: what it sets on its class stays with it."""
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (cls,), namespace)


class SimulatedTestCases:
    """Makes torch's base classes use simulated ranks.

    Args:
        run: how ranks are run.
    """

    def __init__(self, run: RunRanks) -> None:
        self._run = run
        self._patches = Patches()

    def install(self) -> None:
        """Replace what starts processes and threads. Raises ImportError without ``expecttest``, which torch needs."""
        from torch.testing._internal import common_distributed as common

        patch = self._patches.set
        processes: Any = common.MultiProcessTestCase
        patch(processes, "_start_processes", _starts_processes)
        patch(processes, "_join_processes", self._joins_processes())
        patch(processes, "_event_listener", staticmethod(lambda *args: None))  # tracebacks are not requested
        patch(torch.multiprocessing, "Pipe", _makes_pipes(torch.multiprocessing.Pipe))
        continuous: Any = getattr(common, "MultiProcContinuousTest", None)
        if continuous is not None:
            patch(continuous, "_spawn_processes", classmethod(_starts_workers))
            patch(continuous, "_worker_run_main_wait", self._waits_for_workers(continuous._worker_run_main_wait))
        threads: Any = common.MultiThreadedTestCase
        patch(threads, "_spawn_threads", _starts_threads)
        patch(threads, "join_or_run", self._joins_threads())
        patch(common, "spawn_threads_and_init_comms", self._decorates_with_threads(common))
        from torch.testing._internal import common_device_type

        cuda: Any = common_device_type.CUDATestBase
        patch(cuda, "setUpClass", classmethod(_sets_up_cuda_class))
        patch(cuda, "_do_cuda_non_default_stream", False)  # both ask a CUDA runtime
        patch(cuda, "_do_cuda_memory_leak_check", False)
        self._solo(common)

    def undo(self) -> None:
        """Put torch's own back. Idempotent."""
        self._patches.undo()

    # -- processes ---------------------------------------------------------------------------------------------------

    def _joins_processes(self) -> Callable[..., None]:
        run = self._run

        def join_processes(case: Any, fn: object) -> None:
            began = time.time()
            try:
                _run_processes(run, case)
                case._check_return_codes(fn, time.time() - began)
            finally:
                for pipe in case.pid_to_pipe.values():
                    pipe.close()

        return join_processes

    def _waits_for_workers(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        run = self._run

        def worker_run_main_wait(case: object, fn: Any) -> Any:
            waits = stock(case, fn).__func__

            @functools.wraps(fn)
            def wrapper(self: Any) -> None:
                if self.rank == self.MAIN_PROCESS_RANK:
                    _run_workers(run, self)
                waits(self)

            return types.MethodType(wrapper, case)

        return worker_run_main_wait

    # -- threads -----------------------------------------------------------------------------------------------------

    def _joins_threads(self) -> Callable[..., Any]:
        run = self._run

        def join_or_run(case: object, fn: Any) -> Any:
            @functools.wraps(fn)
            def wrapper(self: Any) -> None:
                if self.rank != self.MAIN_THREAD_RANK:
                    fn()
                    return
                cls, name, size = type(self), self._current_test_name, self.world_size

                def body(rank: int) -> None:
                    cls.global_store = dist.FileStore(_THREADS_MEET, size)
                    cls._run(name, rank, size)

                failed = _run_threads(run, body, size)
                while not cls.exception_queue.empty():
                    failed.append(cls.exception_queue.get())
                cls._check_return_codes(failed, 0, fn)

            return types.MethodType(wrapper, case)

        return join_or_run

    def _decorates_with_threads(self, common: Any) -> Callable[..., Any]:
        run = self._run

        def spawn_threads_and_init_comms(
            func: Any = None, timeout: object = None, world_size: int = common.DEFAULT_WORLD_SIZE
        ) -> Any:
            if func is None:
                return functools.partial(spawn_threads_and_init_comms, timeout=timeout, world_size=world_size)

            @functools.wraps(func)
            def wrapper(case: Any, *args: object, **kwargs: object) -> None:
                def body(rank: int) -> None:
                    store = dist.FileStore(_THREADS_MEET, world_size)
                    dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
                    try:
                        func(case, *args, **kwargs)
                    finally:
                        if dist.is_initialized():
                            dist.destroy_process_group()

                common.MultiThreadedTestCase._check_return_codes(_run_threads(run, body, world_size), 0, func)

            return wrapper

        return spawn_threads_and_init_comms

    # -- tests of one process ----------------------------------------------------------------------------------------

    def _solo(self, common: Any) -> None:
        """Other test cases of torch's: one rank, which has the simulated GPUs that the modules of tests have seen.

        A test of one process waits only for its own threads: it keeps torch's own stores, and has not been launched.
        """
        own_stores = {name: getattr(dist, name) for name in stores.CLASSES}

        def alone(case: Any, result: object) -> None:
            patches = Patches()
            if hasattr(case, "_tls"):  # tolerances are of the thread, and main has set them
                case._tls.precision, case._tls.rel_tol = type(case)._precision, type(case)._rel_tol
            stores.install(patches, own_stores)
            try:
                stock(case, result)
            finally:
                patches.undo()

        of_many = tuple(
            cls
            for name in ("MultiProcessTestCase", "MultiProcContinuousTest", "MultiThreadedTestCase")
            if (cls := getattr(common, name, None)) is not None
        )
        base: Any = common.TestCase
        stock, run = base.run, self._run

        @functools.wraps(stock)
        def run_test(case: object, result: object = None) -> Any:
            if isinstance(case, of_many):
                return stock(case, result)
            run(lambda rank: alone(case, result), 1, ())
            return result

        self._patches.set(base, "run", run_test)


_IDLE_IN_MAIN = ("_lazy_init", "init", "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all")


def see_devices(patches: Patches, simulation: Simulation) -> None:
    """Let main, too, see how many simulated GPUs there are and what they are: modules of tests ask when they are imported.

    Args:
        simulation: a simulation of the system whose GPUs they are.
    """
    count, properties = len(simulation.sips), cuda_names.properties_of(simulation.topology)
    seen: dict[str, Any] = {
        "is_available": cuda_names.always,
        "is_bf16_supported": cuda_names.always,
        "can_device_access_peer": cuda_names.always,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_arch_list": lambda: software_versions.architectures(simulation.topology),
        **dict.fromkeys(_IDLE_IN_MAIN, cuda_names.nothing),
    }
    patches.set(torch.version, "cuda", software_versions.cuda_version(simulation.topology))
    cuda = cuda_names.each_its_own(seen)
    accelerator = cuda_names.each_its_own({name: seen[name] for name in ("is_available", "device_count")}, cuda)
    for name, value in cuda.items():
        patches.set(torch.cuda, name, value)
    for name, value in accelerator.items():
        patches.set(torch.accelerator, name, value)
    patches.set(torch.accelerator, "current_accelerator", cuda_names.ACCELERATOR["current_accelerator"])
    patches.set(torch.cuda.nccl, "version", software_versions.nccl_version)
    for module in (dist.constants, dist.distributed_c10d):
        patches.set(module, "default_pg_nccl_timeout", timedelta(minutes=10))
    for module in (dist, dist.distributed_c10d):
        patches.set(module, "is_nccl_available", lambda: True)
    if not hasattr(dist, "ProcessGroupNCCL"):
        backend_classes.install(patches, backends=("nccl",))


_HELPERS = "torch.testing._internal.distributed"
"""Where torch's helpers of its tests keep lists and counts, each process its own."""

_PATCHED = ("torch.distributed.fsdp.",)
"""Where torch's tests replace methods, each process its own."""


def patched_classes() -> list[type]:
    """Classes of torch whose methods tests replace: those are each rank's own."""
    return [
        value
        for name, module in list(sys.modules.items())
        if name.startswith(_PATCHED)
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == name and not issubclass(value, tuple | BaseException)
    ]


def _sets_up_cuda_class(cls: Any) -> None:
    """torch's own makes a tensor, in main."""
    cls.no_magma = cls.no_cudnn = True
    cls.cudnn_version = None
    cls.primary_device = "cuda:0"


def _starts_processes(case: Any, proc: Callable[..., Any]) -> None:
    """``proc`` makes a process, which is not started: what it would be given, with what tests add to that, its rank is."""
    case.processes = []
    for rank in range(int(case.world_size)):
        process = SimulatedProcess(rank)
        ours, theirs = PipeEnd.pair()
        proc(
            target=process.takes, name=process.name, args=(rank, case._current_test_name(), case.file_name, theirs),
            kwargs={"fake_pg": getattr(case, "fake_pg", False)},
        ).run()  # fmt: skip
        case.pid_to_pipe[process.pid] = ours
        case.processes.append(process)


def _run_processes(run: RunRanks, case: Any) -> None:
    """Run what the processes of ``case`` were started for; they have exit codes then."""
    cls, failing = type(case), case.TEST_ERROR_EXIT_CODE
    exits: dict[int, int] = {}

    def body(rank: int) -> None:
        process = case.processes[rank]
        try:
            own_class(cls, rank)._run(*process.args, **process.kwargs)  # type: ignore[attr-defined]
        except SystemExit as exit_:
            code = exit_.code
            if code is None:
                raise
            exits[rank] = code if isinstance(code, int) else 1
            if exits[rank] == failing:
                raise  # the test has failed: its other processes are ended

    ended = 0
    try:
        if case.processes:
            run(body, len(case.processes), (cls.__module__, _HELPERS))
    except SpawnException as error:
        if not all(isinstance(cause, SystemExit) for cause in error.errors.values()):
            raise
        ended = _TERMINATED
    for rank, process in enumerate(case.processes):
        process.exitcode = exits.get(rank, ended)


def _starts_workers(cls: Any, world_size: int) -> None:
    cls.processes = [SimulatedProcess(rank) for rank in range(int(world_size))]
    cls.task_queues = [queue.Queue() for _ in range(int(world_size))]
    cls.completion_queues = [queue.Queue() for _ in range(int(world_size))]
    cls.rdvz_file = f"kernbench rendezvous of {cls.__qualname__}"


def _run_workers(run: RunRanks, case: Any) -> None:
    """Run the test that the workers have received: new ones for each test."""
    cls: Any = type(case)

    def body(rank: int) -> None:
        tasks = cls.task_queues[rank]
        tasks.put(None)
        own: Any = own_class(cls, rank)
        own._worker_loop(rank, cls.world_size, cls.rdvz_file, tasks, cls.completion_queues[rank])

    run(body, cls.world_size, (cls.__module__, _HELPERS))
    type(case).poison_pill = False


def _starts_threads(case: Any) -> None:
    case.threads = []


def _run_threads(run: RunRanks, body: Callable[[int], None], count: int) -> list[tuple[int, object]]:
    """Run ``body`` on ranks that stand for threads; what they raised, as ``_check_return_codes`` takes it.

    CUDA's current device is each thread's own, and the first one until the thread says otherwise.
    """
    failed: list[tuple[int, Any]] = []

    def noting(rank: int) -> None:
        device = bound_devices().mine()
        device.host.drive(device.sip(0))
        try:
            body(rank)
        except (unittest.SkipTest, SystemExit) as outcome:
            if isinstance(outcome, SystemExit) and outcome.code is None:
                raise
            failed.append((rank, sys.exc_info()))

    run(noting, count, ())
    return failed
