"""Triton kernels inside a context: ``kernel[grid](...)`` and ``ctx.launch`` become launches of the rank.

While a context is active, :mod:`kernbench.triton_engine` hands every launch to the sink of this module. It is enqueued on
the rank's stream and kept, so that the same kernel of several ranks runs as one batch. Its duration is known once it has
been executed, from what it did.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from kernbench import triton_engine
from kernbench.cost.peer_access import peer_share
from kernbench.cost.work import Cost, Work, over_links
from kernbench.errors import KernbenchError
from kernbench.runtime_api.current import current_context
from kernbench.runtime_api.remote_traffic import traffic_of_launches
from kernbench.runtime_api.tensor import Tensor, plain, storage_of
from kernbench.sim_engine.data_executor import Deferred, Finished
from kernbench.sim_engine.memory_store import Allocation as Placed
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.sim_engine.operation import Operation
from kernbench.triton_engine.counts import Counts
from kernbench.triton_engine.duration import describe_device, estimate
from kernbench.triton_engine.launching import run_alone, set_launch_sink
from kernbench.triton_engine.machine import Execution, Launch
from kernbench.triton_engine.memory import HostAllocation, MulticastRanges, write_epoch
from kernbench.triton_engine.reuse import look_at_wave
from kernbench.triton_engine.signals import Party, Words

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

_MOST_YIELDS = 1000
"""Turns in a row that a kernel may give way without anything changing, before it counts as waiting for somebody."""


_MOST_SIGNAL_BYTES = 1 << 16
"""Allocations of at most this many bytes may be signals or progress counters that a program keeps in plain tensors."""


class SiblingFailedError(KernbenchError):
    """The launch ran as one batch with another rank's, which failed: its values are incomplete."""


class Sink:
    """Receives every launch of the process while a context is active."""

    def submit(self, launch: Launch) -> None:
        ctx = current_context()
        if ctx is None:
            run_alone(launch)
        else:
            submit(ctx, launch)


class KernelMemory:
    """Finds what a kernel's pointers point to: the context's tensors, by their address in this process.

    Attributes:
        multicast: the ranges of addresses that stand for several buffers.
        signals: whether the program may signal through memory, so that small allocations remember who wrote their words.
    """

    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory
        self.multicast = MulticastRanges()
        self.signals = False

    def find(self, address: int) -> HostAllocation | None:
        """The live allocation that contains ``address``, if any."""
        found = self._memory.find_host(address)
        if found is None or found.backing is None:
            return None
        allocation = HostAllocation(torch.from_numpy(found.backing), found.name, found.rank)
        allocation.words = self._words_of(found)
        return allocation

    def words(self, address: int) -> Words | None:
        """Who wrote what lies at ``address`` last, if ranks meet there."""
        found = self._memory.find_host(address)
        return None if found is None else self._words_of(found)

    def _words_of(self, found: Placed) -> Words | None:
        if found.words is None and self.signals and found.nbytes <= _MOST_SIGNAL_BYTES:
            found.words = Words(found.sip)
        words: Words | None = found.words
        return words

    def multicast_range(self, address: int) -> tuple[int, tuple[int, ...], int] | None:
        """Of a multicast address: where its range starts, the buffers it stands for, and their bytes."""
        return self.multicast.bases_of(address)


_installed = False


def follow_active_context() -> None:
    """Make Triton launch kernels here, for the device of the active context; undo that once there is none.

    Without Triton nothing happens: a program that uses no kernels needs none.
    """
    global _installed
    ctx = current_context()
    if ctx is None and not _installed:
        return
    try:
        from triton.backends.compiler import GPUTarget
    except ImportError:
        return
    if not _installed:
        triton_engine.activate()
        set_launch_sink(Sink())
        _installed = True
    if ctx is not None:
        target = ctx.topology.device.target
        triton_engine.set_target(GPUTarget(target.backend, target.arch, target.warp_size))
        describe_device(ctx.topology.device)
    else:
        set_launch_sink(None)
        describe_device(None)
        triton_engine.set_target(None)
        triton_engine.deactivate()
        _installed = False


def is_kernel(kernel: Any) -> bool:
    """Whether ``kernel`` is Triton's: a ``@triton.jit`` function, or one wrapped by autotune or heuristics."""
    return hasattr(kernel, "run") and hasattr(kernel, "fn") and hasattr(kernel, "__getitem__")


def launch(
    ctx: RuntimeContext, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
) -> Operation:
    """``kernel[grid](*args, **kwargs)`` for ``ctx.launch``."""
    ctx.last_launch = None
    kernel[(grid,) if isinstance(grid, int) else grid](*args, **kwargs)
    op = ctx.last_launch
    if op is None:
        raise KernbenchError(
            f"{kernel!r} was launched, but not through kernbench: another Triton driver is active in this process"
        )
    if name:
        op.name = name
    return op


def submit(ctx: RuntimeContext, launch: Launch) -> Operation:
    """Enqueue a launch on the stream of whoever runs."""
    if ctx._inside_kernel:
        raise KernbenchError(
            f"kernel {launch.name} was launched from inside a kernel: launch it from the rank's program"
        )
    tensors = [arg for arg in launch.args if isinstance(arg, torch.Tensor)]
    launch.args = [plain(arg) if isinstance(arg, torch.Tensor) else arg for arg in launch.args]
    me = ctx._me()
    launch.rank = me.rank
    awaited = me.awaiting_values()
    op = ctx._enqueue(launch.name, "kernel", None, tensors)
    op.detail = {"grid": list(launch.grid), "at": launch.where}
    ctx.last_launch = op
    deferred = (TritonLaunch if ctx.enable_data else SampledLaunch)(ctx, op, launch, awaited)
    ctx.executor.submit(deferred)
    if ctx.hooks is not None:
        ctx.hooks.launched(op)
    if not tensors or any(type(tensor) is not Tensor for tensor in tensors):
        # nobody tells us when the host looks at a plain tensor: run it now, or at least until it waits for somebody
        if not awaited and op.stream not in me.unsettled:
            ctx._block_on(deferred.attempt)
        if not op.executed:
            me.unsettled.setdefault(op.stream, []).append(op)
        if op.error is not None:
            op.observed = True
            raise op.error
    return op


class TritonLaunch:
    """One launch of a Triton kernel by one rank."""

    def __init__(self, ctx: RuntimeContext, op: Operation, launch: Launch, after: Sequence[Operation] = ()) -> None:
        self.ctx = ctx
        self.op = op
        self.after = after
        self.rank = op.rank
        self.launch = launch
        self.touches = frozenset(id(storage_of(arg)) for arg in launch.args if isinstance(arg, torch.Tensor))
        self.batch_key: Hashable = (id(launch.program), launch.grid, tuple(map(_key, launch.args)))
        self.attempt = Operation("attempt", "timer", rank=op.rank, sip=op.sip, stream="host", enqueue=op.enqueue)
        self.attempt.resolve(op.enqueue, op.enqueue)
        self.attempt.executed = False

    def start_batch(self, batch: Sequence[Deferred]) -> RunningBatch:
        """Run the same kernel of several ranks as lanes of one execution."""
        launches = [launch for launch in batch if isinstance(launch, TritonLaunch)]
        running = RunningBatch(launches)
        running.run()
        for launch in launches:
            launch.attempt.executed = True
        return running


def _key(arg: Any) -> Hashable:
    """What launches of one batch must agree in: numbers; tensors and what wraps them may differ by rank."""
    if isinstance(arg, torch.Tensor):
        return torch.Tensor
    if isinstance(arg, int | float | bool):
        return type(arg), repr(arg)
    return id(arg)


_SAMPLED_PROGRAMS = 2


class SampledLaunch(TritonLaunch):
    """A launch whose values nobody wants: a few programs run without storing, and their counts are scaled up.

    Bytes that programs share count once: they are capped at the size of the tensors. A launch that cannot be sampled (it
    waits for somebody) takes the time of reading its tensors.
    """

    def start_batch(self, batch: Sequence[Deferred]) -> Finished:  # type: ignore[override]
        launches = [launch for launch in batch if isinstance(launch, SampledLaunch)]
        for launch in launches:
            cost = launch._cost()
            _note_cost(launch, cost)
            launch.ctx.engine.set_duration(launch.op, cost.seconds)
            launch.attempt.executed = True
        return Finished([None] * len(launches))

    def _cost(self) -> Cost:
        launch, known = self.launch, self.ctx.sampled_costs
        key = (id(launch.program), launch.grid, tuple(map(_shape_key, launch.args)))
        if key not in known:
            known[key] = self._sample()
        return known[key]

    def _sample(self) -> Cost:
        launch, device = self.launch, self.ctx.topology.device
        tensors = [arg for arg in launch.args if isinstance(arg, torch.Tensor)]
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        programs = math.prod(launch.grid)
        if programs:
            values = [_stand_in(arg) for arg in launch.args]
            execution = Execution([replace(launch, args=values)], dry=True, only=_SAMPLED_PROGRAMS)
            if execution.run() == "done":
                sample = execution.counts()
                counts = sample.scaled(programs / max(sample.programs, 1))
                counts.unique_bytes_read = min(counts.unique_bytes_read, nbytes)
                counts.unique_bytes_written = min(counts.unique_bytes_written, nbytes)
                return _cost_of(self, counts)
        return Work(nbytes).cost(device)


def _stand_in(arg: Any) -> Any:
    """Memory for a tensor that has none; nobody writes it, so it costs address space only."""
    if isinstance(arg, torch.Tensor) and arg.is_meta:
        return torch.empty_strided(arg.size(), arg.stride(), dtype=arg.dtype)
    return arg


def _shape_key(arg: Any) -> Hashable:
    return (tuple(arg.shape), arg.stride()) if isinstance(arg, torch.Tensor) else _key(arg)


def _cost_of(launch: TritonLaunch, counts: Counts) -> Cost:
    """What a launch of these counts occupies its stream for."""
    ctx, device = launch.ctx, launch.ctx.topology.device
    key = (id(launch.launch.program), launch.launch.grid, tuple(map(_shape_key, launch.launch.args)))
    if key not in ctx.wave_reads:
        look_at_wave(counts, launch.launch, device)
        ctx.wave_reads[key] = counts.wave_read
    counts.wave_read = ctx.wave_reads[key]
    found = estimate(counts, None, device, kernel=launch.launch.kernel)
    nbytes = counts.unique_bytes_read + counts.unique_bytes_written
    return Cost.on_stream(found, device, kind="kernel", nbytes=nbytes)


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
        """Go on until the end, or until every lane waits for somebody else."""
        ctx = self._launches[0].ctx
        activity = ctx._activity()
        if activity != self._seen:  # a rank, a collective or a copy may have written memory meanwhile
            self._seen = activity
            self._yields = 0
            write_epoch.bump()
        before = write_epoch.count
        try:
            if self._execution is None:
                self._execution = Execution([launch.launch for launch in self._launches], ctx.kernel_memory)
                self._execution.party = self._party
            status = self._execution.run()
        except Exception as error:
            self.errors = self._blame(error)
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
        counts = self._execution.counts()
        own = counts.scaled(1 / len(self._launches)) if len(self._launches) > 1 else counts
        ctx = self._launches[0].ctx
        cost = _cost_of(self._launches[0], own)
        sips = [launch.op.sip for launch in self._launches]
        remote = traffic_of_launches(ctx, self._execution.traffic.items(), sips)
        if remote.nbytes:
            share = peer_share(ctx.topology.device, own.programs)
            cost = over_links(cost, remote.seconds / share, remote.latency)
        for launch in self._launches:
            launch.op.detail = {**(launch.op.detail or {}), **summary(own)}
            _note_cost(launch, cost)
        ctx.couplings.finished(self._party, cost.seconds)
        self.errors = [None] * len(self._launches)

    def _blame(self, error: Exception) -> Sequence[BaseException | None]:
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
            launch.ctx.engine.set_duration(launch.op, 0.0)
        self._party.finished = True
        return errors


def summary(counts: Counts) -> dict[str, Any]:
    """What the op log keeps of a launch's counts."""
    return {
        "programs": counts.programs,
        "flops": {f"{dtype} {unit}": number for (dtype, unit), number in sorted(counts.flops.items())},
        "bytes_read": counts.bytes_read,
        "bytes_written": counts.bytes_written,
        "transcendentals": counts.transcendentals,
        "atomics": counts.atomics,
    }
