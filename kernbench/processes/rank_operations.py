"""A rank's operations, groups, collectives and messages as the simulation has them, from what its process says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.processes.channel import portable
from kernbench.processes.posted import PostedOperation
from kernbench.processes.shared_memory import SharedMemory, SharedRegion
from kernbench.sim_engine import Operation
from kernbench.simulation.matching.groups import USES, Arrival, Communicator, Signature
from kernbench.simulation.matching.messages import Message, MessageRoute, note_tail
from kernbench.simulation.ranks.locations import Location
from kernbench.simulation.ranks.training_steps import StepEnd
from kernbench.simulation.ranks.work_counts import Account
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.collective_values import Brought
from kernbench.triton_engine.signals import Party

_Regions = Sequence[SharedRegion]
_Fields = tuple[str, int, str, float, float, int, Sequence[Any]]
_Foreseen = tuple[Sequence[Operation], Callable[[], Any]]


class RankOperations:
    """The operations of one rank, by the numbers that its process gives them.

    Args:
        simulation: that it is a rank of.
        rank: its number.
        shared: memory shared with its process.
        fail_later: called with what a call failed with that the process does not wait for.

    Attributes:
        last: the name of the last operation; empty if there was none.
        happenings: what the process says without waiting for an answer, by name.
        waits: what it waits for, by name.
    """

    def __init__(
        self, simulation: Simulation, rank: int, shared: SharedMemory, fail_later: Callable[[Exception], None]
    ) -> None:
        self._simulation = simulation
        self._rank = rank
        me = self._me = simulation.hosts.of_rank[rank]
        self._shared = shared
        self._fail_later = fail_later
        self._operations: dict[int, Operation] = {}
        self._under_way: dict[int, Operation] = {}
        self._changed: set[int] = set()
        self._told: set[int] = set()
        self._brought: dict[int, Brought] = {}
        self._groups: list[Communicator] = []
        self.last = ""
        self.happenings: dict[str, Callable[..., None]] = {
            "submit": self._submit, "computed": self._computed, "let_wait": self._let_wait, "released": self._release,
            "step": self._step, "stopped": self._stopped,
            "group": self._group, "post": self._post, "message": self._message,
            "limit": self._limit, "limit_wait": self._limit_wait, "monitor": self._monitor,
        }  # fmt: skip
        self.waits: dict[str, Callable[..., Any]] = {
            "wait": self._wait, "await_values": self._await_values, "wait_for_first": self._wait_for_first,
            "block_on": self._block_on, "times": self._times, "synchronize": self._synchronize,
            "finish_stream": simulation.host_reads.finish_stream,
            "ask_for": self._ask_for, "drive": self._drive,
        }  # fmt: skip
        self._foreseen: dict[str, Callable[..., _Foreseen]] = {
            "wait": self._foresee_wait,
            "await_values": lambda number: ((), _nothing),
            "block_on": lambda number: ((), _nothing),
            "give_way": lambda: ((), _nothing),
            "finish_stream": lambda stream: (me.before(stream), _nothing),
            "synchronize": lambda sip: (() if simulation.executor.failed else self._all_on(sip), _nothing),
        }
        """Of calls that are not here the answer may depend on what other ranks do before the rank's turn comes."""

    def foresee(self, name: str, *args: object) -> _Foreseen | None:
        """Of a call that waits, and is about to be resumed: what it will then have waited for, and what it gives.

        The clock moves up to the ends of what it has waited for. None: that is not certain before the rank's turn.
        """
        found = self._foreseen.get(name)
        return None if found is None else found(*args)

    def _all_on(self, sip: int | None) -> Sequence[Operation]:
        return self._me.before_all(self._me.streams_of(sip))

    def _foresee_wait(self, number: int) -> _Foreseen:
        op = self._operations[number]
        return (op,), lambda: _times_of(op)

    def news(self) -> list[tuple[Any, ...]]:
        """What has become of the rank's collectives and messages since the last reply."""
        news: list[tuple[Any, ...]] = []
        changed, self._changed = sorted(self._changed), set()
        for number in changed:
            op = self._under_way.get(number)
            if op is None:
                continue
            ended = op.end is not None
            if not ended and (not op.executed or number in self._told):
                continue
            error = None if op.error is None else portable(op.error)
            source = op.detail if op.name == "recv" else None
            brought = self._brought.get(number)
            effect = None if brought is None else brought.effect
            news.append((number, op.executed, op.start, op.end, error, source, effect))
            self._told.add(number)
            if ended:
                self._brought.pop(number, None)
                del self._under_way[number]
                self._told.discard(number)
        return news

    # -- its own ---------------------------------------------------------------------------------------------------------

    def _submit(
        self, number: int, name: str, kind: str, sip: int, stream: str, enqueue: float, duration: float | None,
        spread: tuple[float, float], nbytes: int, host: float, executed: bool, detail: Any, operands: Any, pace: float,
        draw: float,
    ) -> None:  # fmt: skip
        me = self._me
        op = self._operations[number] = Operation(name, kind, self._rank, sip, stream, enqueue, duration, spread)
        op.nbytes, op.host, op.executed, op.detail, op.operands = nbytes, host, executed, detail, operands
        op.pace, op.draw = pace, draw
        me.stream, self.last = stream, name
        self._simulation.engine.submit(op, after=me.take_awaited() if me.awaited else ())
        me.tails[stream] = op

    def _computed(
        self, number: int, name: str, duration: float | None, spread: tuple[float, float], nbytes: int, detail: Any,
        failed: str | None, heard: tuple[Sequence[int], Sequence[int]] | None,
    ) -> None:  # fmt: skip
        op = self._operations[number]
        op.name, op.spread, op.nbytes, op.detail = name, spread, nbytes, detail
        if op.duration is None and duration is not None:
            if heard is None:
                self._simulation.engine.set_duration(op, duration)
            else:
                meets, listens_to = ([Party([self._operations[each]]) for each in others] for others in heard)
                self._simulation.signal_timing.end_when_known(Party([op]), [duration], meets, listens_to)
        op.executed = True
        if failed is not None:  # its rank raises it
            op.observed = True
            op.fail(KernbenchError(failed), self._simulation.engine.now if op.end is None else op.end)

    def _let_wait(self, name: str, numbers: Sequence[int], clock: float) -> None:
        self._me.clock = clock
        self._me.let_wait(name, [self._operations[number] for number in numbers])

    def _release(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._operations.pop(number, None)

    def _step(self, number: int, clock: float, tails: Sequence[int], account: Account) -> None:
        mine = self._simulation.steps.of_rank[self._rank]
        end = StepEnd(clock, tuple(self._operations[each] for each in tails), account)
        mine.ends.setdefault(number, []).append(end)

    def _stopped(self) -> None:
        self._simulation.steps.of_rank[self._rank].stopped = True

    # -- waiting -----------------------------------------------------------------------------------------------------------

    def _wait(self, number: int) -> tuple[float, float] | None:
        op = self._operations[number]
        self._simulation.waits.wait(op)
        return _times_of(op)

    def _await_values(self, number: int) -> None:
        simulation, op = self._simulation, self._operations[number]
        needed = not op.executed and op.error is None
        simulation.waits.wait_for_values(op, simulation.runs.values_of(op) if needed else None)

    def _wait_for_first(self, numbers: Sequence[int]) -> None:
        self._simulation.waits.wait_for_first([self._operations[number] for number in numbers])

    def _block_on(self, number: int) -> None:
        op = self._operations[number]
        if not op.done:
            self._simulation.waits.block_on(op)

    def _times(self, numbers: Sequence[int]) -> list[tuple[float, float] | None]:
        return [_times_of(self._operations[number]) for number in numbers]

    def _synchronize(self, sip: int | None) -> None:
        simulation = self._simulation
        simulation.host_reads.synchronize(simulation.executor.failed, sip)

    # -- meeting others ----------------------------------------------------------------------------------------------------

    def _group(self, name: str, members: tuple[int, ...], is_world: bool) -> None:
        self._groups.append(self._simulation.world.communicators.of(self._rank, name, members, is_world))

    def _ask_for(self, group: int, name: str, members: tuple[int, ...], location: Location) -> None:
        communicators = self._simulation.world.communicators
        communicators.ask_for(self._group_of(group), name, self._rank, members, location)

    def _drive(self, group: int, sip: int, location: Location) -> tuple[int, Location] | None:
        return self._simulation.world.communicators.drive(self._group_of(group), self._rank, sip, location)

    def _group_of(self, number: int) -> Communicator:
        """Each group has as many numbers as there are uses of its members."""
        at, use = divmod(number, len(USES))
        return self._groups[at].used_for(use)

    def _made(
        self, number: int, fields: _Fields, clock: float, stream: str, sip: int, brought: Brought | None
    ) -> Operation:
        """The rank's part of a call that it has posted."""
        name, on_sip, on_stream, enqueue, host, nbytes, operands = fields
        op = PostedOperation(name, self._rank, on_sip, on_stream, enqueue, partial(self._changed_now, number))
        op.host, op.nbytes, op.operands = host, nbytes, operands
        self._operations[number] = self._under_way[number] = op
        if brought is not None:
            self._brought[number] = brought
        me = self._me
        me.clock, me.stream, me.sip = clock, stream, sip
        return op

    def _changed_now(self, number: int) -> None:
        self._changed.add(number)

    def _admitted(self, op: Operation, admit: Callable[..., None], *args: object) -> None:
        """Let a call in."""
        try:
            admit(*args)
        except Exception as error:
            op.observed = True
            self._fail_later(error)

    def _post(
        self, number: int, group: int, signature: tuple[Any, ...], inputs: _Regions, outputs: _Regions,
        fields: _Fields, clock: float, stream: str, sip: int, place: tuple[str, int, str], splits: Any, shapes: object,
        environ: Any, brought: Brought | None,
    ) -> None:  # fmt: skip
        op = self._made(number, fields, clock, stream, sip, brought)
        communicator, me = self._group_of(group), self._me
        if communicator.environ is None:
            communicator.environ = environ
        tensor = self._shared.tensor
        shared = {region: tensor(region) for region in dict.fromkeys((*inputs, *outputs))}
        plan = communicator.plan(Signature(*signature))
        arrival = Arrival(
            self._rank, plan.signature, tuple(shared[each] for each in inputs),
            tuple(shared[each] for each in outputs), op, Location(*place), me.before(stream), splits, brought,
        )  # fmt: skip
        self._admitted(op, self._simulation.matcher.admit, me, plan, arrival, shapes)

    def _message(
        self, number: int, group: int, region: SharedRegion, peer: int | None, tag: int, sends: bool, fields: _Fields,
        clock: float, stream: str, sip: int, place: tuple[str, int, str], brought: Brought | None, route: Any, nth: int,
    ) -> None:  # fmt: skip
        op = self._made(number, fields, clock, stream, sip, brought)
        message = Message(
            self._group_of(group), self._rank, peer, tag, sends, self._shared.tensor(region), op, Location(*place),
            self._me.before(stream), brought, MessageRoute(*route), nth,
        )  # fmt: skip
        note_tail(self._me, op, peer, message.route)
        self._admitted(op, self._simulation.matcher.mailbox.admit, message)

    def _limit_wait(self, op: int, at: float, seconds: float, of_nccl: bool) -> None:
        self._simulation.limit_wait(self._operations[op], at, seconds, of_nccl)

    def _limit(self, op: int, seconds: float, number: int, group: int, asked_for: bool) -> None:
        self._simulation.limit(self._operations[op], seconds, number, self._group_of(group), asked_for)

    def _monitor(self, op: int, seconds: float, wait_all_ranks: bool, asked_for: bool) -> None:
        self._simulation.monitored.watch(self._operations[op], seconds, wait_all_ranks, asked_for)


def _times_of(op: Operation) -> tuple[float, float] | None:
    return None if op.start is None or op.end is None else (op.start, op.end)


def _nothing() -> None:
    """What most calls give."""
