"""The simulation in a rank's own process: a fork of the one that spawned, in which one rank runs.

A rank's own business is done here by the owners that do it everywhere: its host's clock, what an operation costs, its memory
and its allocator, values of kernels, graphs that it captures. What needs others (:data:`CROSSES`) goes to the simulation: calls
that give nothing back are kept and sent together; one that waits sends them, and returns with the reply. Operations have
numbers there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from greenlet import getcurrent

from kernbench.errors import DeadlockError, KernbenchError
from kernbench.processes.channel import Wire
from kernbench.processes.payload import Posted
from kernbench.processes.shared_devices import DeviceShare
from kernbench.processes.shared_memory import SharedMemory
from kernbench.processes.thread_side import ThreadSide
from kernbench.processes.uplink import Uplink
from kernbench.scheduler.crew import acts_for_a_rank
from kernbench.sim_engine import Condition, Operation
from kernbench.simulation.matching.groups import USES, CallPlan, Communicator
from kernbench.simulation.matching.matcher import shapes_given
from kernbench.simulation.matching.messages import CONNECTION, Message, MessageRoute, note_tail
from kernbench.simulation.memory.process_memory import OtherProcess, ProcessMemory
from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.locations import Location, user_location
from kernbench.simulation.ranks.training_steps import StepEnd
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.wait_queue import Awaited
from kernbench.simulation.values.collective_values import that_matter
from kernbench.triton_engine.signals import Party

CROSSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("engine", ("submit", "set_duration")),
    ("signal_timing", ("end_when_known",)),
    ("waits", ("wait", "wait_for_values", "wait_for_first", "block_on", "sleep", "refresh")),
    ("host_reads", ("finish_stream", "synchronize")),
    ("polls", ("look",)),
    ("disks", ("move",)),
    ("matcher", ("post", "give_up")),
    ("monitored", ("watch",)),
    ("matcher.mailbox", ("post",)),
    ("world.communicators", ("of", "ask_for", "drive")),
    ("hosts", ("current", "current_rank")),
    ("memories", ("open", "device", "others")),
    ("scheduler", ("current_rank", "pause")),
    ("drain", ("pending", "until")),
    ("assumptions", ("add", "left_out", "used")),
    ("requests", ("event", "step")),
    ("", ("wait_on_stream", "limit", "limit_wait")),
)  # fmt: skip
"""Owners of a simulation (attributes of it), and which of their methods a rank's process has of its own: here, those of
:class:`RankSide` that are called ``owner_method``."""


_GIVE_NOTHING = frozenset({"set", "append", "multi_set", "queue_push"})
"""Methods of stores that neither wait nor answer."""


class RankSide(Uplink):
    """What of a simulation is replaced in a rank's process."""

    def __init__(self, simulation: Simulation, rank: int, wire: Wire, shared: SharedMemory) -> None:
        super().__init__(simulation, rank, wire, shared)
        self._deferred: list[Operation] = []
        self._signals: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
        self._groups: list[Communicator] = []
        self._numbers: dict[int, int] = {}  # of groups, by identity: the world's communicators keep them
        self._sequences: Counter[int] = Counter()
        self._flushing = False
        self._told_stopped = False
        self._device_shares: dict[int, DeviceShare] = {}
        self.shares = self._shares

    def install(self) -> None:
        """From here on this process's copy of the simulation is the rank's."""
        simulation, rank = self.simulation, self.rank
        simulation.hosts.of_rank[rank] = self.host
        simulation.scheduler.rank_by_greenlet.clear()
        simulation.scheduler.rank_by_greenlet[getcurrent()] = rank
        simulation.steps.noted = self._step_ended
        simulation.memories.refresh = self._waits_refresh
        ThreadSide(self).install()
        self.signals.install()
        self._stock_memories = simulation.memories.open
        self._stock_device = simulation.memories.device
        self._stock_communicators = simulation.world.communicators.of
        for path, names in CROSSES:
            owner: Any = simulation
            for part in path.split(".") if path else ():
                owner = getattr(owner, part)
            for name in names:
                setattr(owner, name, getattr(self, f"_{path.rpartition('.')[2]}_{name}" if path else f"_{name}"))

    # -- a rank's own operations -------------------------------------------------------------------------------------

    def _engine_submit(self, op: Operation, *, after: Sequence[Operation] = ()) -> Operation:
        """What the operation waits for is known there: the host's copy there was notified."""
        number = self.enter(op)
        self.cast(
            "submit", number, op.name, op.kind, op.sip, op.stream, op.enqueue, op.duration, op.spread, op.nbytes, op.host,
            op.executed, op.detail, op.operands, op.pace, op.draw,
        )  # fmt: skip
        if op.duration is None or not op.executed:
            self._deferred.append(op)
        return op

    def _engine_set_duration(self, op: Operation, seconds: float) -> None:
        """Sent there by :meth:`compute`."""
        op.duration = seconds

    def _signal_timing_end_when_known(
        self, party: Party, seconds: Sequence[float], meets: Sequence[Party], listens_to: Sequence[Party]
    ) -> None:
        """There, where it is known when operations start; whom they meet and listen to is the rank's own."""
        heard = tuple([self.number(op) for each in others for op in each.operations] for others in (meets, listens_to))
        for op, own in zip(party.operations, seconds, strict=True):
            op.duration = own
            self._signals[self.number(op)] = heard[0], heard[1]

    def compute(self, wanted: Operation | None = None) -> None:
        """Compute the values of this rank's launches, those of ``wanted`` in any case, and tell what they took."""
        executor = self.simulation.executor
        if self.simulation.steps.limit is not None and not self._told_stopped:
            self._told_stopped = self.simulation.steps.of_rank[self.rank].stopped
            if self._told_stopped:
                self.cast("stopped")
        while self._deferred and not self._flushing:
            self._flush()
            if wanted is None or wanted.executed or wanted.error is not None:
                return
            self._await_one(executor.awaited())

    def _flush(self) -> None:
        self._flushing = True
        try:
            with self.host.as_one():  # a kernel that reads a number is not the program that looks at one
                self.simulation.executor.flush(self.simulation.engine.now)
        finally:
            self._flushing = False
        self._tell_computed()

    def _await_one(self, operations: Sequence[Operation]) -> None:
        """Wait until the first of ``operations`` that are to come has its values."""
        op = next((each for each in operations if self.number(each) in self.posted), None)
        if op is None:
            raise self.deadlock()
        self.call("await_values", self.number(op))

    def deadlock(self) -> DeadlockError:
        """The report of kernels that wait for memory which nothing of this rank is going to write."""
        waiting = "\n".join(words for _, words in self.simulation.executor.suspended())
        return DeadlockError(
            f"deadlock: kernels of rank {self.rank} wait, and nothing else of it can run.\n{waiting}\nIf another rank is to "
            "write that: ranks that are processes have no memory in common: run this program with isolation='carrier'"
        )

    def _tell_computed(self) -> None:
        still = []
        for op in self._deferred:
            if op.executed:
                failed, number = None if op.error is None else str(op.error), self.number(op)
                heard = self._signals.pop(number, None)
                self.cast("computed", number, op.name, op.duration, op.spread, op.nbytes, op.detail, failed, heard)
            else:
                still.append(op)
        self._deferred = still

    def _memories_open(self, host: Host, sip: int, index: int) -> ProcessMemory:
        """Here; there, an empty one keeps its place in the log until the rank leaves what reports need of it. Of a SIP that is
        another rank's by default it has to be known at once whether others use it."""
        made, device = self._stock_memories(host, sip, index), self._memories_device(sip)
        self.cast("memory", sip, index)
        device.told = True
        if sip != self.simulation.hosts.sips[self.rank] and self.has_turn:
            self.call("unreserved", sip)
        return made

    def _memories_device(self, sip: int) -> DeviceShare:
        found = self._device_shares.get(sip)
        if found is None:
            found = self._device_shares[sip] = DeviceShare(self, sip, self._stock_device(sip))
        return found

    def _memories_others(self, memory: ProcessMemory) -> list[OtherProcess]:
        """There, where what all have is known."""
        return self._memories_device(memory.ledger.sip).others()

    def _shares(self, sip: int) -> None:
        self._device_shares[sip].shared = True

    def _hosts_current(self) -> Host:
        """The rank's, in whatever thread."""
        if self.crew is not None:
            acts_for_a_rank()
        return self.host

    def _hosts_current_rank(self) -> int:
        return self.rank

    def _scheduler_current_rank(self) -> int | None:
        """None in a thread that takes no turns, or has begun before the process became a rank."""
        return self.rank if self.has_turn or (self.apart and self.crew is None) else None

    def _scheduler_pause(self) -> None:
        """Let the others go first."""
        self.call("pause")

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _waits_wait(self, handle: Awaited) -> None:
        handle.observed = True
        if handle.done and handle.error is None and (handle.end is None or handle.end <= self.host.clock):
            return
        if isinstance(handle, Condition) or handle.ticket is None:
            self._waits_block_on(handle)
            if handle.error is not None:
                raise handle.error
            return
        self._computed_or_posted(handle)
        self._times(handle, self.call("wait", self.number(handle)))

    def _computed_or_posted(self, op: Operation) -> None:
        """Before the simulation is asked to wait for an operation of which it does not know how long it takes."""
        if not op.executed and self.number(op) not in self.posted:
            self.compute(op)

    @staticmethod
    def _times(op: Operation, times: Any) -> None:
        if op.end is None and times is not None:
            op.resolve(*times)

    def _waits_wait_for_values(self, handle: Operation, values: Awaited | None = None) -> None:
        handle.observed = True
        if not handle.executed and handle.error is None:
            if self.number(handle) in self.posted:
                self.call("await_values", self.number(handle))
            else:
                self.compute(handle)
                self.call("give_way")
        if handle.error is not None:
            raise handle.error

    def _waits_wait_for_first(self, operations: Sequence[Operation]) -> None:
        self.call("wait_for_first", self.numbers(operations))

    def _waits_block_on(self, awaited: Awaited) -> None:
        if isinstance(awaited, Operation):
            self._computed_or_posted(awaited)
            self.call("block_on", self.number(awaited))
            return
        while not awaited.done:  # it is fulfilled here
            self._flush()
            if not awaited.done:
                self._await_one(self.simulation.executor.awaited())
        self.call("give_way")

    def _waits_sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"sleep length must be non-negative, got {seconds}")
        self.call("sleep", seconds)

    def _waits_refresh(self, operations: Sequence[Operation]) -> None:
        """Ask for the times of those whose are not known."""
        unknown = [op for op in operations if op.end is None and op.ticket is not None]
        if unknown:
            for op, times in zip(unknown, self.call("times", self.numbers(unknown)), strict=True):
                self._times(op, times)

    def _host_reads_finish_stream(self, name: str) -> None:
        host = self.host
        if host.capture is not None:
            host.capture.forbid()
        with host.waiting_for((name,)) as operations:
            for op in operations:
                self._computed_or_posted(op)
            self.call("finish_stream", name)

    def _host_reads_synchronize(self, failed: Sequence[Operation], sip: int | None = None) -> None:
        host = self.host
        if host.capture is not None:
            host.capture.forbid()
        with host.waiting_for(host.streams_of(sip)) as operations:
            for op in operations:
                self._computed_or_posted(op)
            self.call("synchronize", sip)
        for op in self.simulation.values.unobserved_failures(host) if failed else ():
            op.observed = True
            assert op.error is not None
            raise op.error

    def _disks_move(self, nbytes: int, writes: bool) -> None:
        self.call("move", nbytes, writes)

    def _polls_look(self, at: Awaited | str) -> None:
        self.call("look", at if isinstance(at, str) else at.name)

    def _wait_on_stream(self, op: Operation) -> None:
        if not op.executed or op.error is not None:
            self.call("await_values", self.number(op))
        self.host.let_wait(self.host.stream_on(op.sip), (op,))

    # -- meeting others ----------------------------------------------------------------------------------------------

    def _communicators_of(self, rank: int, name: str, members: tuple[int, ...], is_world: bool) -> Communicator:
        made = self._stock_communicators(rank, name, members, is_world)
        self._numbers[id(made)] = len(self._groups) * len(USES)
        self._groups.append(made)
        self.cast("group", name, members, is_world)
        return made

    def _communicators_ask_for(
        self, parent: Communicator, name: str, rank: int, members: tuple[int, ...], location: Location
    ) -> None:
        """There, where all ranks' are known."""
        self.call("ask_for", self._number_of(parent), name, members, location)

    def _communicators_drive(
        self, group: Communicator, rank: int, sip: int, location: Location
    ) -> tuple[int, Location] | None:
        """There, where all members' are known."""
        first: tuple[int, Location] | None = self.call("drive", self._number_of(group), sip, location)
        return first

    def _number_of(self, group: Communicator) -> int:
        """Each group has as many numbers as there are uses of its members."""
        found = self._numbers.get(id(group))
        if found is None:
            at = next(at for at, each in enumerate(self._groups) if each.used_for(group.use) is group)
            found = self._numbers[id(group)] = at * len(USES) + group.use
        return found

    def _bring(
        self,
        op: Operation,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        matter: Sequence[torch.Tensor] | None = None,
    ) -> tuple[int, Posted]:
        """Number the rank's part of a call, and copy what it brings."""
        number = self.enter(op)
        executor, storages = self.simulation.executor, [id(storage_of(tensor)) for tensor in (*inputs, *outputs)]
        if len(executor):
            self.compute()
            while executor.touches_any(storages):
                self._await_one(executor.awaited())
                self.compute()
        while self.writers and (first := self._to_come_first(inputs, storages)) is not None:
            self.call("await_values", self.number(first.op))
        with self.simulation.torch_recorder.paused(), self.host.as_one():
            posted = self.posted[number] = self.payloads.bring(op, inputs, outputs, self._to_come(storages), matter)
            for storage in posted.writes:
                self.writers.setdefault(storage, {})[number] = posted
        return number, posted

    def _to_come_first(self, inputs: Sequence[torch.Tensor], storages: Sequence[int]) -> Posted | None:
        with self.simulation.torch_recorder.paused():
            return self.payloads.before(inputs, self._to_come(storages))

    def _to_come(self, storages: Sequence[int]) -> list[Posted]:
        """Calls whose values are to come, and write to one of some storages, in the order in which they were made."""
        found = {number: each for storage in storages for number, each in self.writers.get(storage, {}).items()}
        return [each for _, each in sorted(found.items()) if not each.copied and each.op.error is None]

    def _matcher_post(
        self,
        me: Host,
        plan: CallPlan,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        splits: tuple[int, ...] | None = None,
        given: Sequence[torch.Tensor] | None = None,
    ) -> Operation:
        simulation = self.simulation
        matcher, streams = simulation.matcher, simulation.streams
        group, signature = plan.group, plan.signature
        op = matcher.enqueue(me, plan, inputs or outputs)
        location, shapes = user_location(), shapes_given(signature, inputs if given is None else given)
        streams.touch(me, op, inputs, outputs)
        matter = that_matter(signature.op, signature.root, self.rank, inputs)
        number, posted = self._bring(op, inputs, outputs, matter)
        me.tails[op.stream] = op
        self.cast(
            "post", number, self._number_of(group), tuple(signature), posted.inputs, posted.outputs,
            (op.name, op.sip, op.stream, op.enqueue, op.host, op.nbytes, op.operands), me.clock, me.stream, me.sip,
            tuple(location), splits, shapes, group.environ, posted.brought,
        )  # fmt: skip
        matcher.history.add(self.rank, group, self._sequences[id(group)], signature, op, location, None, shapes)
        self._sequences[id(group)] += 1
        return op

    def _mailbox_post(
        self,
        group: Communicator,
        tensor: torch.Tensor,
        *,
        peer: int | None,
        tag: int,
        sends: bool,
        route: MessageRoute = CONNECTION,
    ) -> Operation:
        simulation, me, rank = self.simulation, self.host, self.rank
        mailbox = simulation.matcher.mailbox
        op = mailbox.enqueue(me, group, tensor, peer=peer, sends=sends, route=route)
        inputs, outputs = ((tensor,), ()) if sends else ((), (tensor,))
        location = user_location()
        simulation.streams.touch(me, op, inputs, outputs)
        number, posted = self._bring(op, inputs, outputs)
        nth = mailbox.number(group, rank, peer, sends, route)
        note_tail(me, op, peer, route)
        self.cast(
            "message", number, self._number_of(group), (posted.inputs or posted.outputs)[0], peer, tag, sends,
            (op.name, op.sip, op.stream, op.enqueue, op.host, op.nbytes, op.operands), me.clock, me.stream, me.sip,
            tuple(location), posted.brought, tuple(route), nth,
        )  # fmt: skip
        signature = Message(group, rank, peer, tag, sends, tensor, op, location, ()).signature
        simulation.matcher.history.add(rank, group, -1, signature, op, location, peer, (tuple(tensor.shape),), nth)
        return op

    def _assumptions_add(self, *look: object) -> None:
        """There, where the first look at a line is that of all ranks."""
        self.cast("assumed", *look)

    def _assumptions_used(self, *use: object) -> None:
        self.cast("used", *use)

    def _assumptions_left_out(self, nbytes: int) -> None:
        self.cast("left_out", nbytes)

    def _drain_pending(self) -> NoReturn:
        raise KernbenchError("only main drains: call this from the main greenlet, not from a rank or a kernel")

    def _drain_until(self, awaited: Awaited) -> NoReturn:
        self._drain_pending()

    def _monitored_watch(self, op: Operation, seconds: float, wait_all_ranks: bool, asked_for: bool) -> None:
        self.cast("monitor", self.number(op), seconds, wait_all_ranks, asked_for)

    def _matcher_give_up(self, op: Operation, error: BaseException, at: float) -> NoReturn:
        raise KernbenchError("deadlines of ranks that are processes expire where the simulation is")

    def _limit_wait(self, op: Operation, at: float, seconds: float, of_nccl: bool) -> None:
        self.cast("limit_wait", self.number(op), at, seconds, of_nccl)

    def _limit(self, op: Operation, seconds: float, number: int, group: Communicator, asked_for: bool) -> None:
        self.cast("limit", self.number(op), seconds, number, self._number_of(group), asked_for)

    def store(self, key: tuple[object, ...], timeout: object, name: str, args: object, kwargs: object) -> Any:
        """A method of a ``torch.distributed`` store."""
        if name in _GIVE_NOTHING:
            self.cast("store", key, timeout, name, args, kwargs, self.host.clock)
            return None
        return self.call("store", key, timeout, name, args, kwargs)

    def _requests_event(self, rank: int, name: str, event: str, tokens: int, at: float) -> None:
        self.cast("request", rank, name, event, tokens, at)

    def _requests_step(self, rank: int, at: float, *figures: int) -> None:
        self.cast("engine_step", rank, at, *figures)

    def _step_ended(self, number: int, end: StepEnd) -> None:
        self.cast("step", number, end.clock, self.numbers(end.tails), end.account.copy())
