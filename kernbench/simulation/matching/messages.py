"""Messages: point-to-point transfers, where the two sides' calls meet.

They are matched by group, sender, receiver and tag, in the order in which each side posted them; a receive from any source
takes, of the messages that are there when no rank can run on, the one that was sent first in virtual time. A pair goes its
way as a collective of two (:mod:`kernbench.simulation.matching.message_runs`).

Those of NCCL have a :class:`MessageRoute`: what is posted one by one goes over a communicator of the pair, and a batch over the
group's. Sides that took different ones never meet, tags mean nothing, and each communicator has one stream on each rank,
whatever is sent or received there (ADR 0165).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from kernbench.errors import CollectiveMismatchError
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.simulation.launches.streams import Streams
from kernbench.simulation.matching.first_messages import FirstMessages
from kernbench.simulation.matching.groups import Arrival, Collective, Communicator, Signature
from kernbench.simulation.matching.history import History
from kernbench.simulation.matching.hooks import RunHooks
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.ranks.locations import Location, user_location
from kernbench.simulation.values.collective_values import Brought


class MessageRoute(NamedTuple):
    """How a library carries a message.

    Attributes:
        lane: over the communicator of the ``pair`` or of the ``group``; empty: over a connection for each direction, as gloo's.
        batch: number of the batch that it is a part of, among those of its rank; None: it is posted by itself.
        made: whether the communicator has been made before anything is called (``device_id``).
    """

    lane: Literal["", "pair", "group"] = ""
    batch: int | None = None
    made: bool = True


CONNECTION = MessageRoute()
"""A connection for each direction."""

_GONE = torch.empty(0)


@dataclass(eq=False, slots=True)
class Message:
    """One side of a point-to-point transfer that has been posted.

    Attributes:
        group: where it was posted.
        rank: who posted it (a rank of the world).
        peer: the other side, None for a receive from any source.
        sends: whether this is the sending side.
        number: how many its rank had sent to its peer before, or received from it, on the same way.
        brought: as an :class:`Arrival` has it.
        other: the other side, once it is there.
        arrived: of one that is sent into the receiver's buffer, resolved when all of it is there; None: it is not.
    """

    group: Communicator
    rank: int
    peer: int | None
    tag: int
    sends: bool
    tensor: torch.Tensor
    op: Operation
    location: Location
    after: Sequence[Operation]
    brought: Brought | None = None
    route: MessageRoute = CONNECTION
    number: int = 0
    other: Message | None = None
    arrived: Operation | None = None

    @property
    def signature(self) -> Signature:
        """What the other side must agree in."""
        return Signature(
            "send" if self.sends else "recv", tuple(self.tensor.shape), self.tensor.dtype, None, None, "direct_send"
        )

    @property
    def way(self) -> tuple[int, int, int, Hashable]:
        """What both sides have in common: group, sender, receiver, and tag or communicator."""
        assert self.peer is not None
        ends = (self.rank, self.peer) if self.sends else (self.peer, self.rank)
        return (id(self.group), *ends, self.route.lane or self.tag)

    def arrival(self) -> Arrival:
        """Its part of a collective of two."""
        given = (self.tensor,)
        return Arrival(
            self.rank, self.signature, given if self.sends else (), () if self.sends else given, self.op, self.location,
            self.after, brought=self.brought,
        )  # fmt: skip

    def __str__(self) -> str:
        other = "any source" if self.peer is None else f"rank {self.peer}"
        which = "in a batch" if self.route.batch is not None else f"tag {self.tag}"
        name, way = ("send", "to") if self.sends else ("recv", "from")
        return f"{name} {way} {other} #{self.number} ({which}) on {self.group.name}"


@dataclass(eq=False, slots=True)
class MatchedPair:
    """A message both of whose sides are there.

    Attributes:
        collective: as which it goes its way.
        arrivals: of the sender, then of the receiver.
        count: elements.
    """

    send: Message
    receive: Message
    collective: Collective
    arrivals: list[Arrival]
    count: int

    def let_go(self) -> None:
        """It has been started: what the two sides gave is theirs again."""
        self.send.tensor = self.receive.tensor = _GONE


class Mailbox:
    """The messages of one simulation that wait for their other side.

    Attributes:
        unsent: of NCCL's, by the way that they take, sends that may go into the receiver's buffer without it, and have not.
        paired: those that have met the other side and are to be run.
        first: the first messages of pairs.
        pick: says whose message a receive from any source gets (:mod:`kernbench.order.choices`); None: the first one's.
    """

    def __init__(
        self, engine: GraphEngine, hosts: Hosts, streams: Streams, history: History, hooks: RunHooks | None
    ) -> None:
        self._engine = engine
        self._hosts = hosts
        self._streams = streams
        self._history = history
        self._hooks = hooks
        self._sends: dict[tuple[int, int, int, Hashable], deque[Message]] = {}
        self._receives: dict[tuple[int, int, int, Hashable], deque[Message]] = {}
        self._any_source: list[Message] = []
        self._numbers: dict[tuple[Hashable, ...], int] = {}
        self.unsent: dict[tuple[int, int, int, Hashable], deque[Message]] = {}
        self.paired: list[MatchedPair] = []
        self._pairs: dict[tuple[Communicator, int, int], Communicator] = {}
        self.pick: Callable[[str, Sequence[Hashable]], int] | None = None
        self.first = FirstMessages()

    def clear(self) -> None:
        """Forget everything."""
        self._sends.clear()
        self._receives.clear()
        self._any_source.clear()
        self._numbers.clear()
        self.unsent.clear()
        self.first.clear()
        self.paired.clear()
        self._pairs.clear()

    @property
    def unmet(self) -> list[Message]:
        """The messages whose other side has not been called, in the order in which they were posted."""
        found = [m for queue in (*self._sends.values(), *self._receives.values()) for m in queue] + self._any_source
        return sorted(found, key=lambda message: (message.op.enqueue, message.rank))

    @property
    def waiting(self) -> list[Message]:
        """Those of them that are not in their receiver's buffer."""
        return [message for message in self.unmet if message.arrived is None]

    def remark_on_unmet(self) -> None:
        """All ranks have returned, and none waits for a message: say which have one side only."""
        unmet = self.unmet
        if not unmet:
            return
        first, more = unmet[0], len(unmet) - 1
        others = f", and {more} more" if more else ""
        self.first.remark(
            f"messages of which only one side was called: {first} by rank {first.rank} at {first.location}{others}. Where a "
            "library joins two ranks in their first message, as NCCL does, or ends a group, a rank may wait for the other "
            "side for ever"
        )

    def post(
        self,
        group: Communicator,
        tensor: torch.Tensor,
        *,
        peer: int | None,
        tag: int,
        sends: bool,
        route: MessageRoute = CONNECTION,
    ) -> Operation:
        """Post one side of a message between this rank and ``peer`` (a rank of the world; None: any source).

        Raises :class:`CollectiveMismatchError` if the other side has another dtype or number of elements.
        """
        rank = self._hosts.current_rank()
        self._hosts.need(group.ranks if peer is None else (peer,), "a message")
        me = self._hosts.of_rank[rank]
        op = self.enqueue(me, group, tensor, peer=peer, sends=sends, route=route)
        tensor = self._streams.take(me, tensor)
        number = self.number(group, rank, peer, sends, route)
        message = Message(
            group, rank, peer, tag, sends, tensor, op, user_location(), me.before(me.stream), route=route, number=number
        )
        self._streams.touch(me, op, (tensor,) if sends else (), () if sends else (tensor,))
        note_tail(me, op, peer, route)
        self.admit(message)
        return op

    def enqueue(
        self, me: Host, group: Communicator, tensor: torch.Tensor, *, peer: int | None, sends: bool, route: MessageRoute
    ) -> Operation:
        """Put one side of a message on its stream."""
        match route.lane:
            case "group":
                stream = group.stream
            case "pair":
                assert me.rank is not None
                assert peer is not None
                stream = "{} {}:{}".format(group.stream, *sorted((me.rank, peer)))
            case _:
                other = "any" if peer is None else peer
                stream = f"send {me.rank}->{other}" if sends else f"recv {other}->{me.rank}"
        return self._streams.post(me, "send" if sends else "recv", stream, (tensor,))

    def number(self, group: Communicator, rank: int, peer: int | None, sends: bool, route: MessageRoute) -> int:
        """The number of a message that is posted now."""
        key = (id(group), rank, peer, sends, route.lane)
        found = self._numbers.get(key, 0)
        self._numbers[key] = found + 1
        return found

    def admit(self, message: Message) -> None:
        """One side of a message has come, whose operation has been made. Raises as :meth:`post` does."""
        group, rank, peer, sends = message.group, message.rank, message.peer, message.sends
        op, route = message.op, message.route
        shapes = (tuple(message.tensor.shape),)
        self._history.add(rank, group, -1, message.signature, op, message.location, peer, shapes, message.number)
        if self._hooks is not None:
            self._hooks.collective_enqueued(group.name, -1, message.signature, op, message.location, peer)
        self._engine.progress += 1
        if route.lane:
            self._engine.reserve(op, route.batch)
            if route.lane == "group" and not route.made:
                group.join(rank)
                self.first.called_by_all(group, rank, group.ranks, message.location)
            if route.lane == "pair" and peer is not None:
                self.first.called(group, rank, peer, message.location)
        if peer is None:
            self._any_source.append(message)
            return
        key = message.way
        mine, theirs = (self._sends, self._receives) if sends else (self._receives, self._sends)
        waiting = theirs.get(key)
        if waiting:
            found = waiting.popleft()
            if not waiting:
                del theirs[key]
            self._pair(*((message, found) if sends else (found, message)))
            if op.error is not None:
                op.observed = True
                raise op.error
        else:
            mine.setdefault(key, deque()).append(message)
            if sends and route.lane:
                self.unsent.setdefault(key, deque()).append(message)

    def match_any_source(self) -> bool:
        """MatchedPair receives from any source with the sends that are there; False if there is none."""
        if not self._any_source:
            return False
        matched = False
        for receive in list(self._any_source):
            sends = [
                queue[0]
                for (group, _, receiver, _), queue in self._sends.items()
                if group == id(receive.group) and receiver == receive.rank and queue[0].tag == receive.tag
            ]
            if not sends:
                continue
            sends.sort(key=lambda message: (message.op.enqueue, message.rank))
            at = 0 if self.pick is None else self.pick(f"m{receive.rank}", [message.rank for message in sends])
            send = sends[at]
            self._any_source.remove(receive)
            queue = self._sends[send.way]
            queue.popleft()
            if not queue:
                del self._sends[send.way]
            receive.op.detail = {**(receive.op.detail or {}), "source": send.rank}
            self._pair(send, receive)
            matched = True
        return matched

    def _pair(self, send: Message, receive: Message) -> None:
        """Both sides of a message are there: check them, and let it go its way as a collective of two."""
        send.other, receive.other = receive, send
        if send.tensor.numel() != receive.tensor.numel() or send.tensor.dtype != receive.tensor.dtype:
            text = (
                f"a message from rank {send.rank} to rank {receive.rank} (tag {send.tag}, {send.group.name}) does not "
                f"match:\n  rank {send.rank}: {send.signature} at {send.location}\n"
                f"  rank {receive.rank}: {receive.signature} at {receive.location}\n"
                "No data has moved. Both sides must have the same dtype and number of elements."
            )
            where = f"messages from rank {send.rank} to rank {receive.rank} (tag {send.tag}), {send.group.name}"
            sides = {each.rank: each.signature.as_words(each.location) for each in (send, receive)}
            for side in (send, receive):
                error = CollectiveMismatchError.between(text, where, -1, sides)
                side.op.fail(error, self._hosts.current().clock)
            return
        if send.arrived is None and send.way in self.unsent:
            self.sent(send)
        arrivals = [send.arrival(), receive.arrival()]
        for arrival in arrivals:
            arrival.signature = send.signature
        collective = self.collective_of(send, receive.rank)
        collective.arrivals = dict(enumerate(arrivals))
        self.paired.append(MatchedPair(send, receive, collective, arrivals, send.tensor.numel()))

    def sent(self, send: Message) -> None:
        """The first of what :attr:`unsent` has on its way has met its receive, or has gone ahead."""
        waiting = self.unsent[send.way]
        if waiting and waiting[0] is send:
            waiting.popleft()
        if not waiting:
            del self.unsent[send.way]

    def collective_of(self, send: Message, receiver: int) -> Collective:
        """As which a message goes its way."""
        key = (send.group, send.rank, receiver)
        pair = self._pairs.get(key)
        if pair is None:
            pair = Communicator(f"{send.rank} -> {receiver} of {send.group.name}", (send.rank, receiver))
            self._pairs[key] = pair
        return Collective(pair, send.number, send.signature, started=True)

    def give_up(self, op: Operation) -> None:
        """Drop the message of an operation that has waited too long."""
        for table in (self._sends, self._receives):
            for key, queue in list(table.items()):
                kept = deque(message for message in queue if message.op is not op)
                if not kept:
                    del table[key]
                elif len(kept) < len(queue):
                    table[key] = kept
        self._any_source = [message for message in self._any_source if message.op is not op]
        for queue in self.unsent.values():
            for message in [each for each in queue if each.op is op]:
                queue.remove(message)


def note_tail(host: Host, op: Operation, peer: int | None, route: MessageRoute) -> None:
    """A message of NCCL is what its host waits for when it waits for all that its GPU does; of those that take one place on a
    stream, side by side, the last for each peer and direction."""
    if route.lane:
        name = op.stream if route.batch is None else f"{op.stream} {op.name} {peer}"
        host.tails[name] = op
