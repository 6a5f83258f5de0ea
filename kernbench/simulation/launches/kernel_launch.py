"""Triton kernels inside a simulation: ``kernel[grid](...)`` and ``ctx.launch`` become launches of the rank.

While a simulation is active, :mod:`kernbench.triton_engine` hands every launch to it. The launch is enqueued on the rank's
stream and kept, so that the same kernel of several ranks runs as one batch. Its duration is known once it has been executed,
from what it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernbench.cost.peer_access import peer_share
from kernbench.cost.work import Cost, StatedWork, over_links
from kernbench.errors import DeadlockError, KernbenchError
from kernbench.scheduler import RankScheduler
from kernbench.sim_engine import Condition, DataExecutor, GraphEngine, Operation
from kernbench.sim_engine.data_executor import Deferred, Finished, Running
from kernbench.simulation.launches.kernel_memory import KernelMemory
from kernbench.simulation.launches.kernel_tensors import (
    given_tensor,
    maps_nothing,
    require_reach,
    tensor_of,
    tensors_of,
)
from kernbench.simulation.launches.remote_traffic import Home, RemoteTraffic, traffic_of_launches
from kernbench.simulation.launches.signal_timing import SignalTiming
from kernbench.simulation.launches.streams import Streams
from kernbench.simulation.memory.reserved import reserved_zeros
from kernbench.simulation.memory.storages import Block
from kernbench.simulation.memory.tensor_queries import plain, storage_of, tells_of_looks
from kernbench.simulation.order.shadow_memory import link
from kernbench.simulation.ranks.graph_capture import GraphCapture
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.time.wait_queue import Waits
from kernbench.simulation.values.assumptions import is_finite, keep_finite
from kernbench.simulation.values.capture_rollback import behind_pointers, keep
from kernbench.triton_engine.counts import Counts
from kernbench.triton_engine.duration import estimate
from kernbench.triton_engine.launching import executed, is_profiled, run_alone, scaled_counts
from kernbench.triton_engine.machine import Execution, Launch
from kernbench.triton_engine.memory import find_all, registry, write_epoch
from kernbench.triton_engine.reuse import Look, look_at
from kernbench.triton_engine.signals import Party
from kernbench.triton_engine.values import way_of_reading

_MOST_YIELDS = 1000
"""Turns in a row that a kernel may give way without anything changing, before it counts as waiting for another writer."""


_ADDRESS_BYTES = 8


class SiblingFailedError(KernbenchError):
    """The launch ran as one batch with another rank's, which failed: its values are incomplete."""


def is_kernel(kernel: object) -> bool:
    """Whether ``kernel`` is Triton's: a ``@triton.jit`` function, or one wrapped by autotune or heuristics."""
    return hasattr(kernel, "run") and hasattr(kernel, "fn") and hasattr(kernel, "__getitem__")


@dataclass(eq=False)
class KernelLauncher:
    """Launches Triton kernels in one simulation.

    Attributes:
        say: takes what is assumed of launches, for the summary.
        memory: what their pointers point to.
        last: the operation of the last launch.
        maps: whether a kernel on a GPU reaches a tensor of the host, as it does one in pinned memory.
        looks: what a look at launches found, by program and shapes.
        sampled: what launches cost that were only counted, by program and shapes.
    """

    engine: GraphEngine
    hosts: Hosts
    scheduler: RankScheduler
    streams: Streams
    executor: DataExecutor
    waits: Waits
    signal_timing: SignalTiming
    say: Callable[[str], None]
    memory: KernelMemory = field(init=False)
    last: Operation | None = field(default=None, init=False)
    maps: Callable[[torch.Tensor], bool] = field(default_factory=lambda: maps_nothing, init=False)
    looks: dict[object, Look] = field(default_factory=dict, init=False)
    sampled: dict[object, Cost] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.memory = KernelMemory(self.engine.memory, self.hosts)

    def launch(
        self, kernel: Any, grid: object, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
    ) -> Operation:
        """``kernel[grid](*args, **kwargs)``, whose operation is called ``name``."""
        self.last = None
        kernel[(grid,) if isinstance(grid, int) else grid](*args, **kwargs)
        op = self.last
        if op is None:
            raise KernbenchError(
                f"{kernel!r} was launched, but not through kernbench: another Triton driver is active in this process"
            )
        if name:
            op.name = name
        return op

    def _compute(self, launch: Launch, tensors: Sequence[torch.Tensor]) -> bool:
        """Without data: whether a launch is computed, as all that it touches has bytes.

        Otherwise, or if anything that it is given is assumed, what it may write is.
        """
        reach = launch.program.reach
        behind = {place: self._behind(launch, place) for place in reach.tables}
        touched = [*tensors, *(each for found in behind.values() for each in found)]
        notes = [stored for tensor in touched if (stored := self.streams.stored_of(tensor)) is not None]
        computed = bool(tensors) and not any(stored.hollow for stored in notes)
        launch.assumed = ()
        if not computed or any(stored.unknown for stored in notes):
            launch.assumed = tensors_of([launch.args[place] for place in sorted(reach.written)])
            with self.hosts.current().as_one():
                for tensor in launch.assumed:
                    self.streams.note_written(tensor, computed=computed)
                for tensor in (each for place in sorted(reach.written_tables) for each in behind[place]):
                    self.streams.note_written(tensor, computed=computed)
        return computed

    def _behind(self, launch: Launch, place: int) -> list[torch.Tensor]:
        """The bytes of all memory whose addresses are in the tensor at ``place`` among a launch's arguments."""
        table = tensor_of(launch.args[place])
        if table is None or table.dtype.itemsize != _ADDRESS_BYTES:
            return []
        stored = self.streams.stored_of(table)
        if stored is not None and (stored.hollow or stored.unknown):
            return []  # an access to what is in it is refused
        with self.hosts.current().as_one():
            addresses = dict.fromkeys(table.detach().flatten().view(torch.int64).tolist())
            return [each.flat(torch.uint8) for each in find_all(list(addresses), self.memory)]

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

    def submit(self, launch: Launch) -> None:
        """Enqueue a launch on the running rank's stream."""
        if self.hosts.inside_kernel:
            raise KernbenchError(
                f"kernel {launch.name} was launched from inside a kernel: launch it from the rank's program"
            )
        tensors = [tensor for arg in launch.args if (tensor := given_tensor(arg)) is not None]
        require_reach(launch, tensors, self.hosts.current(), self.streams.stored_of, self.maps)
        launch.args = [plain(arg) if isinstance(arg, torch.Tensor) else arg for arg in launch.args]
        host = self.hosts.current()
        launch.rank, launch.cold, launch.in_graph = host.rank, host.cold, host.in_graph
        launch.blind = not (self.engine.enable_data or self._compute(launch, tensors))
        if host.capture is not None:
            self._capture(host, host.capture, launch)
            return
        awaited = host.awaiting_values()
        detail = {"grid": list(launch.grid), "at": launch.where}
        op = self.streams.enqueue(host, launch.name, None, tensors=tensors, deferred=True, detail=detail)
        self.last = op
        try:
            self._hand_over(host, op, launch, tensors, awaited)
        except BaseException:
            if not op.executed and not self.executor.keeps(op):  # broken off before it was kept
                self.executor.computed(op)
                self.engine.break_off(op)
            raise

    def _hand_over(
        self, host: Host, op: Operation, launch: Launch, tensors: list[torch.Tensor], awaited: Sequence[Operation]
    ) -> None:
        """Have a launch computed, now or later."""
        if host.order is not None and host.rank is not None:
            launch.moment = host.order.kernel(op.moment)
            for tensor in tensors:
                link(host.order, tensor, self.streams.stored_of(tensor))
        if launch.blind and not len(self.executor):  # else what is to come may be what it is sampled with
            try:
                SampledLaunch(self, op, launch).price()
            finally:
                self.executor.computed(op)
            return
        deferred = (SampledLaunch if launch.blind else TritonLaunch)(self, op, launch, awaited)
        self.executor.submit(deferred)
        if not tensors or not all(map(tells_of_looks, tensors)):
            # no event says when the host reads a plain tensor: run it now, or at least until it waits for another writer
            if not awaited and op.stream not in host.unsettled:
                self._attempt(deferred)
            if not op.executed:
                host.unsettled.setdefault(op.stream, []).append(op)
            if op.error is not None:
                op.observed = True
                raise op.error

    def _attempt(self, launch: TritonLaunch) -> None:
        """Run a launch, or begin to. Where other ranks run, they go on until they launch something, too: the same kernel of
        several is one batch."""
        if self.scheduler.live_count == 1 and self.scheduler.current_rank() is not None:
            self.executor.flush(self.engine.now)
        if not launch.attempt.done:
            self.waits.block_on(launch.attempt)

    def _capture(self, host: Host, graph: GraphCapture, launch: Launch) -> None:
        """A launch that belongs to a graph: it runs now, as a warm-up, and whenever the graph is replayed."""
        graph.work(launch.name, host.stream)
        # the memory that they have now, also when the program gives a tensor other data later
        args = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in launch.args]
        graph.add_on_stream(host, lambda: self.submit(replace(launch, args=args)))
        if self.engine.enable_data:
            keep(host, tensors_of(launch.args))
            with host.as_one(), behind_pointers(self.memory) as memory, suppress(DeadlockError):
                run_alone(launch, memory)  # it may wait for another rank, which has to capture yet

    def activity(self) -> tuple[int, int]:
        """Changes whenever a rank has run or an operation has ended: memory may have been written since."""
        return self.engine.progress, self.scheduler.resumed


class TritonLaunch:
    """One launch of a Triton kernel by one rank."""

    def __init__(
        self, launcher: KernelLauncher, op: Operation, launch: Launch, after: Sequence[Operation] = ()
    ) -> None:
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


_SAMPLED_PROGRAMS = 2


class SampledLaunch(TritonLaunch):
    """A launch whose values are not needed: a few programs run without storing, and their counts are scaled up.

    Bytes that programs share count once: they are capped at the size of the tensors. A launch that cannot be sampled (it
    waits for another writer) takes the time of reading its tensors.
    """

    def start_batch(self, batch: Sequence[Deferred]) -> Finished:
        """Count what a few programs do, for each launch."""
        launches = [launch for launch in batch if isinstance(launch, SampledLaunch)]
        try:
            for launch in launches:
                launch.price()
        finally:
            for launch in launches:
                launch.attempt.fulfil()
        return Finished([None] * len(launches))

    def price(self) -> None:
        """Note in its operation what it costs."""
        try:
            with self.launcher.hosts.current().as_one():
                cost = self.cost()
            _note_cost(self, cost)
            self.launcher.engine.set_duration(self.op, cost.seconds)
        except BaseException:  # Ctrl-C, or a limit of a test: its stream goes on
            self.launcher.engine.break_off(self.op)
            raise

    def cost(self) -> Cost:
        """What it occupies its stream for, from the counts of a few programs."""
        launch, known = self.launch, self.launcher.sampled
        homes = tuple(map(self._is_mapped, launch.args))
        shapes = tuple(map(_shape_key, launch.args))
        key = (id(launch.program), launch.grid, launch.cold, launch.in_graph, shapes, homes)
        if key not in known:
            known[key] = self._sample()
        return known[key]

    def _is_mapped(self, arg: object) -> bool:
        """Whether it is a tensor in memory of the host."""
        tensor = tensor_of(arg)
        stored = None if tensor is None else self.launcher.streams.stored_of(tensor)
        return isinstance(stored, Block) and stored.mapped

    def _nobody_has(self, arg: object) -> bool:
        """Whether it is a tensor without bytes."""
        if not isinstance(arg, torch.Tensor):
            return False
        stored = self.launcher.streams.stored_of(arg)
        return arg.is_meta or (stored is not None and stored.hollow)

    def _with_stand_ins(self, args: Sequence[Any]) -> list[Any]:
        """Arguments, with memory for tensors that have none; the same for one that is given several times."""
        made: dict[Any, torch.Tensor] = {}
        values = []
        for arg in args:
            if self._nobody_has(arg):
                memory = self.launcher.streams.stored_of(arg)
                known = (id(memory or arg), arg.storage_offset(), arg.shape, torch.Tensor.stride(arg), arg.dtype)
                if known not in made:
                    made[known] = _stand_in(arg)
                arg = made[known]
            values.append(arg)
        return values

    def _sample(self) -> Cost:
        launch, device = self.launch, self.launcher.engine.topology.device
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(launch.args))
        programs = math.prod(launch.grid)
        if programs:
            values = self._with_stand_ins(launch.args)
            there = replace(launch, args=values)
            execution = Execution([there], self.launcher.memory, dry=True, only=_SAMPLED_PROGRAMS)
            if execution.run() == "done":
                counts = scaled_counts(execution)
                self._say_what_is_assumed(execution)
                scale = programs / max(execution.sampled or 1, 1)
                return self._over_host_link(_cost_of(self, counts, there), execution, scale)
        return StatedWork(nbytes).cost(device)

    def _say_what_is_assumed(self, execution: Execution) -> None:
        if any(counter is not None and counter.contention(1) is not None for counter in execution.updates):
            self.launcher.say(
                f"assumed: atomic updates of {self.launch.name} whose places are not known without data are spread evenly"
            )

    def _over_host_link(self, cost: Cost, execution: Execution, scale: float) -> Cost:
        """With what all programs move to and from memory of the host, at most all that a tensor has there, once each way."""
        engine = self.launcher.engine
        remote = RemoteTraffic(engine.topology)
        for base, traffic in execution.traffic()[0].items():
            home = engine.memory.find_host(base)
            if home is not None and home.space == "host":
                remote.read_host(self.op.sip, min(traffic.read * scale, home.nbytes))
                remote.write_host(self.op.sip, min(traffic.written * scale, home.nbytes))
        return over_links(cost, remote.seconds, remote.latency) if remote.nbytes else cost


def _stand_in(arg: torch.Tensor) -> torch.Tensor:
    """Memory for a tensor that has none: zeros, so that indices read from it are some; it is never written, so it costs address
    space only."""
    return reserved_zeros(arg.dtype, arg.shape, torch.Tensor.stride(arg))


def _shape_key(arg: object) -> Hashable:
    tensor = tensor_of(arg)
    return _key(arg) if tensor is None else (_key(arg), tuple(tensor.shape), torch.Tensor.stride(tensor))


def _cost_of(launch: TritonLaunch, counts: Counts, there: Launch | None = None) -> Cost:
    """What a launch of these counts occupies its stream for; ``there``: the launch, with memory for what has none."""
    device, known = launch.launcher.engine.topology.device, launch.launcher.looks
    key = (id(launch.launch.program), launch.launch.grid, tuple(map(_shape_key, launch.launch.args)))
    if key not in known:
        known[key] = look_at(counts, there or launch.launch, device, launch.launcher.memory)
    known[key].complete(counts)
    found = estimate(counts, None, device, kernel=launch.launch.kernel, cold=launch.launch.cold)
    nbytes = counts.unique_bytes_read + counts.unique_bytes_written
    cost = Cost.on_stream(found, device, kind="kernel", nbytes=nbytes)
    return cost.in_graph(device) if launch.launch.in_graph else cost


def _note_cost(launch: TritonLaunch, cost: Cost) -> None:
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
                    cost = _cost_of(launch, own)
                costs.append((alike, cost))
            if number in movers:
                cost = over_links(cost, remote.seconds_at(peer_share(topology.device, own.programs)), remote.latency)
            launch.op.detail = {**(launch.op.detail or {}), **summary(own)}
            _note_cost(launch, cost)
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
