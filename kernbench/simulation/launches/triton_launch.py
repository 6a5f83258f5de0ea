"""A launch of a Triton kernel by a rank, and what runs launches of the same kernel by several ranks as one batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch

from kernbench.cost.peer_access import peer_share
from kernbench.cost.work import Cost, over_links
from kernbench.errors import KernbenchError
from kernbench.scheduler import RankScheduler
from kernbench.sim_engine import Condition, DataExecutor, GraphEngine, Operation
from kernbench.sim_engine.data_executor import Deferred, Running
from kernbench.simulation.launches.kernel_memory import KernelMemory
from kernbench.simulation.launches.kernel_tensors import tensor_of, tensors_of
from kernbench.simulation.launches.remote_traffic import Home, traffic_of_launches
from kernbench.simulation.launches.signal_timing import SignalTiming
from kernbench.simulation.launches.streams import Streams
from kernbench.simulation.memory.storages import Block
from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.values.assumptions import is_finite, keep_finite
from kernbench.triton_engine.counts import Counts
from kernbench.triton_engine.duration import estimate
from kernbench.triton_engine.launching import executed, is_profiled
from kernbench.triton_engine.machine import Execution, Launch
from kernbench.triton_engine.memory import registry, write_epoch
from kernbench.triton_engine.reuse import Look, look_at
from kernbench.triton_engine.signals import Party
from kernbench.triton_engine.values import way_of_reading

_MOST_YIELDS = 1000
"""Turns in a row that a kernel may give way without anything changing, before it counts as waiting for another writer."""


class SiblingFailedError(KernbenchError):
    """The launch ran as one batch with another rank's, which failed: its values are incomplete."""


@dataclass(eq=False)
class LaunchContext:
    """What the launches of one simulation are computed with.

    Attributes:
        say: takes what is assumed of launches, for the summary.
        memory: what their pointers point to.
        looks: what a look at launches found, by program and shapes.
        sampled: what launches cost that were only counted, by program and shapes.
    """

    engine: GraphEngine
    hosts: Hosts
    scheduler: RankScheduler
    streams: Streams
    executor: DataExecutor
    signal_timing: SignalTiming
    say: Callable[[str], None]
    memory: KernelMemory = field(init=False)
    looks: dict[object, Look] = field(default_factory=dict, init=False)
    sampled: dict[object, Cost] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.memory = KernelMemory(self.engine.memory, self.hosts)

    def home_of(self, base: int) -> Home | None:
        """Where memory is; None if it is the host's, which no GPU has mapped, or nothing is known of it.

        What kernels have reached by its address alone, from a table of the program, has no place among a SIP's addresses.
        """
        placed = self.engine.memory.find_host(base)
        if placed is not None:
            return Home(placed.space == "host", placed.sip)
        found = registry.find(base)
        block = None if found is None else self.streams.stored_of(found.flat(torch.uint8))
        return Home(block.mapped, block.memory.sip) if isinstance(block, Block) else None

    def activity(self) -> tuple[int, int]:
        """Changes whenever a rank has run or an operation has ended: memory may have been written since."""
        return self.engine.progress, self.scheduler.resumed


class TritonLaunch:
    """One launch of a Triton kernel by one rank."""

    def __init__(self, launcher: LaunchContext, op: Operation, launch: Launch, after: Sequence[Operation] = ()) -> None:
        self.launcher = launcher
        self.op = op
        self.after = after
        self.rank = op.rank
        self.launch = launch
        self.touches = frozenset(id(storage_of(each)) for each in tensors_of(launch.args))
        self.batch_key: Hashable = (
            id(launch.program),
            launch.grid,
            launch.cold,
            launch.in_graph,
            tuple(map(_key, launch.args)),
        )
        self.attempt = Condition(f"{launch.name} has been started", op.rank)

    def start_batch(self, batch: Sequence[Deferred]) -> Running:
        """Run the same kernel of several ranks as lanes of one execution."""
        launches = [launch for launch in batch if isinstance(launch, TritonLaunch)]
        running = RunningBatch(launches)
        try:
            running.run()
        finally:
            for launch in launches:
                launch.attempt.fulfil()
        return running


def _key(arg: object) -> Hashable:
    """What launches of one batch must agree in: numbers; tensors and what wraps them may differ by rank."""
    if isinstance(arg, torch.Tensor):
        return torch.Tensor
    if isinstance(arg, int | float | bool):
        return type(arg), repr(arg)
    return id(arg) if tensor_of(arg) is None else (type(arg), way_of_reading(arg))


def shape_key(arg: object) -> Hashable:
    """What launches that cost alike agree in: numbers, and shapes and strides of tensors."""
    tensor = tensor_of(arg)
    return _key(arg) if tensor is None else (_key(arg), tuple(tensor.shape), torch.Tensor.stride(tensor))


def cost_of(launch: TritonLaunch, counts: Counts, there: Launch | None = None) -> Cost:
    """What a launch of these counts occupies its stream for; ``there``: the launch, with memory for what has none."""
    device, known = launch.launcher.engine.topology.device, launch.launcher.looks
    key = (id(launch.launch.program), launch.launch.grid, tuple(map(shape_key, launch.launch.args)))
    if key not in known:
        known[key] = look_at(counts, there or launch.launch, device, launch.launcher.memory)
    known[key].complete(counts)
    found = estimate(counts, None, device, kernel=launch.launch.kernel, cold=launch.launch.cold)
    nbytes = counts.unique_bytes_read + counts.unique_bytes_written
    cost = Cost.on_stream(found, device, kind="kernel", nbytes=nbytes)
    return cost.in_graph(device) if launch.launch.in_graph else cost


def note_cost(launch: TritonLaunch, cost: Cost) -> None:
    """Tell a launch's operation what it costs, but not yet when it ends."""
    op = launch.op
    op.nbytes, op.spread = cost.nbytes, cost.spread
    op.detail = {**(op.detail or {}), "limit": cost.limit}


class RunningBatch:
    """An execution, and whose launches it is made of."""

    def __init__(self, launches: Sequence[TritonLaunch]) -> None:
        self._launches = launches
        self._execution: Execution | None = None
        self._party = Party(launch.op for launch in launches)
        self._yields = 0
        self._seen: Hashable = None
        self.errors: Sequence[BaseException | None] | None = None

    def run(self) -> bool:
        """Go on until the end, or until every lane waits for another writer."""
        launcher = self._launches[0].launcher
        activity = launcher.activity()
        if activity != self._seen:  # a rank, a collective or a copy may have written memory meanwhile
            self._seen = activity
            self._yields = 0
            write_epoch.bump()
        before = write_epoch.count
        try:
            if self._execution is None:
                self._execution = Execution(
                    [launch.launch for launch in self._launches], launcher.memory, profile=is_profiled()
                )
                self._execution.party = self._party
                self._execution.pick = launcher.executor.pick
            with launcher.hosts.current().as_one():
                status = self._execution.run()
        except BaseException as error:
            self.errors = self._blame(error)
            if not isinstance(error, Exception):  # Ctrl-C, or a limit of a test: not the kernel's
                raise
            return True
        if status == "done":
            self._finish()
            return True
        wrote = write_epoch.count != before
        self._yields = 0 if wrote else self._yields + 1
        return wrote or (status == "yielded" and self._yields < _MOST_YIELDS)

    def describe_wait(self) -> str:
        """Kernel, line, programs, ranks, address, values seen and wanted."""
        return "it has not started" if self._execution is None else self._execution.describe_wait()

    def _finish(self) -> None:
        assert self._execution is not None
        executed(self._execution, [launch.launch for launch in self._launches])
        if self._execution.checks is not None:
            self._execution.checks.ended()
        launcher = self._launches[0].launcher
        topology = launcher.engine.topology
        sips = [launch.op.sip for launch in self._launches]
        traffic = self._execution.traffic()
        remote, movers = traffic_of_launches(topology, launcher.home_of, traffic, sips)
        costs: list[tuple[Counts, Cost]] = []  # launches that did alike cost alike
        seconds = []
        for number, (launch, own) in enumerate(zip(self._launches, self._execution.counts_by_launch(), strict=True)):
            cost = next((cost for counts, cost in costs if counts == own), None)
            if cost is None:
                alike = replace(own)
                with launcher.hosts.current().as_one():
                    cost = cost_of(launch, own)
                costs.append((alike, cost))
            if number in movers:
                cost = over_links(cost, remote.seconds_at(peer_share(topology.device, own.programs)), remote.latency)
            launch.op.detail = {**(launch.op.detail or {}), **summary(own)}
            note_cost(launch, cost)
            seconds.append(cost.seconds)
        launcher.signal_timing.finished(self._party, seconds)
        self.errors = [None] * len(self._launches)
        with launcher.hosts.current().as_one():
            for launch in self._launches:
                for tensor in launch.launch.assumed:
                    if not is_finite(tensor):
                        keep_finite(tensor)

    def _blame(self, error: BaseException) -> Sequence[BaseException | None]:
        """The error for the ranks that it names, an incomplete result for the others of the batch."""
        culprits = set(getattr(error, "ranks", ())) or {launch.rank for launch in self._launches}
        errors: list[BaseException | None] = []
        for launch in self._launches:
            if launch.rank in culprits:
                errors.append(error)
            else:
                errors.append(
                    SiblingFailedError(f"{launch.launch.name} ran as one batch with a rank that failed: {error}")
                )
            launch.launcher.engine.set_duration(launch.op, 0.0)
        self._party.finished = True
        return errors


def summary(counts: Counts) -> dict[str, object]:
    """What the op log keeps of a launch's counts."""
    return {
        "programs": counts.programs,
        "flops": {f"{dtype} {unit}": number for (dtype, unit), number in sorted(counts.flops.items())},
        "bytes_read": counts.bytes_read,
        "bytes_written": counts.bytes_written,
        "transcendentals": counts.transcendentals,
        "atomics": counts.atomics,
    }
