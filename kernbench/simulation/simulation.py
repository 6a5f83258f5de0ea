"""The owners of one simulation, wired."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch.distributed

from kernbench.ccl.config import CclConfig, load_ccl_config
from kernbench.cost.gemm import kernels_of
from kernbench.cost.op_costs import OpCosts
from kernbench.cost.registry import brought
from kernbench.order import Choices, Order, WeakMemory
from kernbench.plugins.events import ContextEvent
from kernbench.plugins.manager import PluginManager
from kernbench.scheduler import ChosenOrder, RankScheduler
from kernbench.scheduler.standstill import Outlook
from kernbench.sim_engine import DataExecutor, GraphEngine, Operation
from kernbench.simulation.deadlock_reports import who_waits
from kernbench.simulation.drain import Drain
from kernbench.simulation.host_reads import HostReads
from kernbench.simulation.launches.function_launch import FunctionLauncher
from kernbench.simulation.launches.kernel_launch import KernelLauncher
from kernbench.simulation.launches.signal_timing import SignalTiming
from kernbench.simulation.launches.streams import Streams
from kernbench.simulation.matching.collective_runs import CollectiveRuns
from kernbench.simulation.matching.groups import Communicator
from kernbench.simulation.matching.hooks import open_hooks
from kernbench.simulation.matching.matcher import Matcher
from kernbench.simulation.matching.monitored_barriers import MonitoredBarriers
from kernbench.simulation.memory.memory_limit import Limit
from kernbench.simulation.memory.process_memory import ProcessMemories
from kernbench.simulation.memory.storages import StorageTable
from kernbench.simulation.operation_descriptions import DescribedLog, Descriptions
from kernbench.simulation.order.stream_order import StreamOrder
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.ranks.listeners import Listener, Stages
from kernbench.simulation.ranks.locations import NOWHERE, user_location, working_folder
from kernbench.simulation.ranks.serving_requests import Requests
from kernbench.simulation.ranks.training_steps import Steps
from kernbench.simulation.time.deadlines import Deadlines
from kernbench.simulation.time.disk_times import Disks
from kernbench.simulation.time.jitter import Jitter
from kernbench.simulation.time.polling import Polls
from kernbench.simulation.time.power import clock_limit
from kernbench.simulation.time.preemption import GivingWay
from kernbench.simulation.time.rank_threads import RankThreads
from kernbench.simulation.time.thread_looks import ThreadLooks
from kernbench.simulation.time.wait_queue import Waits
from kernbench.simulation.values.assumptions import Assumptions
from kernbench.simulation.values.deferred_launches import Values
from kernbench.simulation.world import World


class TorchRecorder(Protocol):
    """What records torch's operations; the room that touches torch's privates has one."""

    def recording(self) -> AbstractContextManager[None]:
        """For the length of a block, what torch computes in this thread is recorded."""

    def paused(self) -> AbstractContextManager[None]:
        """For the length of a block, it is not."""


class RankGroups(Protocol):
    """Makes process groups for ranks that have not called ``torch.distributed.init_process_group``: ``ctx.distributed``."""

    def new_group(self, ranks: Sequence[int]) -> object:
        """A group of ranks of the world."""


class Simulation:
    """One simulation. A record: what happens is its owners' business, each of which has what it needs.

    Args:
        engine: virtual time and memories of the system.
        scheduler: of the ranks.
        sips: that ranks may drive.
        seed: of the ranks' generators.
        title: of the run, in reports.
        ccl: collective configuration; None: read when it is first needed.
        plugins: whose hooks are called.
        context: what they are given as the context.
        describe: says what the context is.
        unknown: what to do when a program looks at a value that was not computed (:mod:`.assumptions`).
        memory_limit: of each process's memory on a SIP.
        exact_dtype: values of 16-bit products are this CPU's own, however slow it is at them.
        fill_uninitialized: what fresh memory is filled with: ``"off"`` (nothing), ``"nan"`` or ``"0xAA"``.
        races: what to do about accesses that nothing orders (:data:`kernbench.order.MODES`).
        memory: what reads see that nothing orders ("strong" or "weak").
        jitter: how quick ranks are; default: all alike.
        choices: say what goes first where several things could; the scheduler's policy asks them, too. None: no policy.

    Attributes:
        topology: the system.
        op_costs: what torch's operations cost.
        memories: what each process has of each SIP's memory.
        hosts, streams, storages, disks, values, host_reads, functions, kernels: what a rank does by itself.
        threads: of ranks, which take turns.
        looks: of threads, at what others are to do.
        steps: where the ranks' programs have got to.
        requests: of serving engines, as they report them.
        waits, matcher, runs, deadlines, monitored, polls, signal_timing, drain, world: what concerns others.
        assumptions: what was assumed of values that were not computed.
        jitter: how quick ranks are.
        interrupted: the signal that has ended the run before its end; empty: none has.
        remarks: what the run is to say of itself besides, sentences; the values mean nothing.
        descriptions: note what operations are, for a report; None if not requested.
        hooks: what plugins receive, None if none listens.
        order: watches for races, None: no listener.
        choices: as given.
        giving_way: asks a rank whether others go first, None if no rank is asked.
        distributed: makes process groups.
        torch_recorder: records torch's operations where no rank's thread does: in main, and for greenlets.
    """

    distributed: RankGroups
    torch_recorder: TorchRecorder

    def __init__(
        self,
        engine: GraphEngine,
        scheduler: RankScheduler,
        sips: Sequence[int],
        *,
        seed: int,
        title: str,
        ccl: CclConfig | None,
        plugins: PluginManager,
        context: object,
        describe: Callable[[], ContextEvent],
        unknown: str = "assume",
        memory_limit: Limit = "device",
        exact_dtype: bool = False,
        fill_uninitialized: str = "off",
        races: str = "off",
        memory: str = "strong",
        jitter: Jitter | None = None,
        choices: Choices | None = None,
    ) -> None:
        working_folder.note()
        self.engine = engine
        self.exact_dtype = exact_dtype
        self.fill_uninitialized = fill_uninitialized
        self.topology = engine.topology
        self.scheduler = scheduler
        self.sips = sips
        self.seed = seed
        self._plugins = plugins
        self._ccl = ccl
        device = self.topology.device
        self.op_costs = OpCosts(device, brought(plugins.operator_costs()), lambda: str(user_location()),
                                self.topology.system.host)  # fmt: skip
        engine.clocks.limit = clock_limit(device)
        engine.interference.persistent = kernels_of(device).persistent
        self.assumptions = Assumptions(unknown)
        self.interrupted = ""
        self.remarks: dict[str, None] = {}
        self.choices = choices
        self.descriptions: Descriptions | None = None
        self.executor = DataExecutor()
        self.executor.on_broken_off = self.engine.break_off
        self.hosts = Hosts(scheduler, sips, seed)
        self.order = self.hosts.order = self._order(races, weak=memory == "weak")
        self.memories = ProcessMemories(engine, self.hosts, memory_limit)
        self.storages = StorageTable(engine.memory, sips, self.memories, has_data=engine.enable_data)
        self.steps = Steps(self.hosts, engine.clocks)
        self.requests = Requests()
        self.hooks = open_hooks(plugins, context, describe, engine, scheduler, self.executor, self.hosts)
        self.waits = Waits(engine, self.hosts, scheduler)
        self.giving_way = self._giving_way()
        self.jitter = jitter or Jitter()
        self.listeners = list(self._listeners())
        self.streams = Streams(engine, self.hosts, self.storages, Stages(self.listeners))
        if self.listeners or engine.cost_model is not None:
            self.hosts.add_detour()
        self.disks = Disks(engine, self.hosts, self.waits)
        self.values = Values(self.executor, self.hosts, self.waits)
        self.host_reads = HostReads(
            engine, self.hosts, self.storages, self.streams, self.values, self.waits, self.hooks
        )
        self.signal_timing = SignalTiming(engine)
        self.functions = FunctionLauncher(engine, self.hosts, self.streams, self.executor, self.values)
        self.kernels = KernelLauncher(
            engine, self.hosts, scheduler, self.streams, self.executor, self.signal_timing, self.op_costs.unmodelled.say,
            self.waits,
        )  # fmt: skip
        self.runs = CollectiveRuns(
            engine, self.hosts, self.storages, lambda: self.ccl_config, lambda: self.torch_recorder.paused(), self.hooks
        )
        self.matcher = Matcher(engine, self.hosts, self.streams, self.executor, self.runs, self.hooks)
        self.matcher.mailbox.first.remark = self.remarks.setdefault
        self.deadlines = Deadlines()
        self.monitored = MonitoredBarriers(self.matcher, self.deadlines)
        self.polls = Polls(engine, self.hosts, scheduler, self.waits)
        self.threads = RankThreads(engine, self.hosts, scheduler, self.waits)
        self.looks = ThreadLooks(self.hosts, self.waits, self.threads)
        self.drain = Drain(
            title, engine, scheduler, self.executor, self.waits, self.matcher, self.signal_timing, self.polls,
            self.deadlines, self.threads, self.hooks,
        )  # fmt: skip
        self.world = World(engine, self.hosts, scheduler, self.waits, self.values, self.matcher, self.drain, self.steps,
                           self.jitter)  # fmt: skip
        scheduler.outlook = Outlook(self._progress, self._doing, self.threads.ranks_outside)
        if self.giving_way is not None and choices is not None:
            self.drain.release = self.giving_way.release
            self.executor.pick = self.matcher.mailbox.pick = self.memories.pick = choices.pick

    def _progress(self) -> object:
        """Another value whenever a rank has come further."""
        log, clocks = self.engine.op_log, [host.clock for host in self.hosts.of_rank.values()]
        return (
            self.threads.turns,
            self.engine.now,
            log.dropped + len(log.operations),
            self.matcher.posted,
            sum(clocks),
        )

    def _doing(self) -> dict[int, str]:
        """What each rank does or waits for, in words; of very many, the first."""
        doing = who_waits(self.scheduler, self.waits, self.matcher)[1]
        return {rank: words.removesuffix(f" at {NOWHERE}") for rank, words in doing.items()}

    def _order(self, races: str, *, weak: bool) -> Order | None:
        if not weak:
            return None if races == "off" else Order(races, user_location)
        pick = None if self.choices is None else self.choices.pick
        return Order(races, user_location, WeakMemory(pick, self.remarks.setdefault))

    def _listeners(self) -> Iterator[Listener]:
        """The features that are on, in the order in which they listen."""
        if self.giving_way is not None:
            yield self.giving_way
        if self.jitter.is_on:
            yield self.jitter
        if self.hooks is not None and self.hooks.follows_kernels:
            yield self.hooks
        if self.order is not None:
            yield StreamOrder()

    def _giving_way(self) -> GivingWay | None:
        """What lets ranks be interrupted, where a schedule says who runs."""
        ready = self.scheduler.ready
        if self.choices is None:
            return None
        assert isinstance(ready, ChosenOrder)
        ready.rank_of = self.scheduler.rank_by_greenlet
        return GivingWay(self.choices, ready, self.executor, self.hosts, self.scheduler, self.waits)

    def describe_operations(self) -> None:
        """From now on note of each operation of a rank what it is and which lines led to it; call it before ranks run."""
        self.descriptions = Descriptions()
        self.engine.op_log = DescribedLog(self.engine.op_log, self.descriptions)
        self.matcher.history.noted = self.descriptions.posted
        self.hosts.add_detour()

    @property
    def ccl_config(self) -> CclConfig:
        """The collective configuration, read when it is first needed."""
        if self._ccl is None:
            self._ccl = load_ccl_config(system=self.topology.system, plugins=self._plugins)
        return self._ccl

    def now(self) -> float:
        """Virtual time of the caller, seconds: the rank's host clock; in main, the time when all is done."""
        host = self.hosts.current()
        return max(host.clock, self.engine.now) if host is self.hosts.main else host.clock

    def wait_on_stream(self, op: Operation) -> None:
        """Let the stream that is current on ``op``'s GPU wait for it, while the host goes on: NCCL's ``wait`` (ADR 0070).

        The values must be there for what the host computes next, so the rank is blocked until all members of the collective
        have arrived; no virtual time passes for its host. Raises what made it fail.
        """
        needed = not op.executed and op.error is None
        self.waits.wait_for_values(op, self.runs.values_of(op) if needed else None)
        host = self.hosts.current()
        stream = host.stream_on(op.sip)
        host.let_wait(stream, (op,))
        if host.order is not None:
            host.order.stream_waits_for_work(stream, getattr(op, "moment", None))

    def limit(self, op: Operation, seconds: float, number: int, group: Communicator, asked_for: bool) -> None:
        """Let a collective or message fail with ``torch.distributed.DistBackendError`` if it has not started ``seconds`` of
        virtual time after it was posted.

        Args:
            number: of the rank in ``group``.
            asked_for: whether the program gave this limit (:mod:`kernbench.simulation.time.deadlines`).
        """
        self.deadlines.add(op, op.enqueue + seconds, asked_for, self._expire, seconds, number, group)

    def _expire(self, op: Operation, at: float, seconds: float, number: int, group: Communicator) -> None:
        situation = "\n".join(self.drain.situation())
        waited = f"Rank {number}: Timed out waiting {round(seconds * 1000)}ms (virtual time)"
        error = torch.distributed.DistBackendError(f"{waited} for {op.name} on {group.name}.\n{situation}")
        self.matcher.give_up(op, error, at)

    def limit_wait(self, op: Operation, at: float, seconds: float, of_nccl: bool) -> None:
        """Let an operation that a rank waits for, for ``seconds`` at most, fail if it has not begun ``at`` s."""
        self.deadlines.add(op, at, True, self._expire_wait, seconds, of_nccl)

    def _expire_wait(self, op: Operation, at: float, seconds: float, of_nccl: bool) -> None:
        waited = f"{op.name} has not begun {round(seconds * 1000)} ms (virtual time) after it was "
        situation = "\n".join(self.drain.situation())
        if of_nccl:
            text = f"Work timed out in blocking wait: {waited}called.\n{situation}"
            self.matcher.give_up(op, torch.distributed.DistBackendError(text), at)
        else:
            self.matcher.give_up(op, RuntimeError(f"Operation timed out! {waited}waited for.\n{situation}"), at)

    def synchronize(self) -> None:
        """Wait for everything this rank has enqueued on its SIP. In main: for everything that is pending.

        Raises what made one of this rank's operations fail, if that one has not been waited for.
        """
        if self.hosts.current() is self.hosts.main:
            self.drain.pending()
            self.executor.flush(self.engine.now)
            self.hosts.settle_main(self.drain.settle_time())
        self.host_reads.synchronize(self.executor.failed)

    def close(self) -> None:
        """Unwind what still runs, drop what is still queued. What tensors remain keep their values. Idempotent."""
        try:
            self.world.unwind()
        finally:
            self.world.close()
            self.storages.close()
