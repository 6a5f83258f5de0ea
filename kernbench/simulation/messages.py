"""Messages: point-to-point transfers, where the two sides' calls meet.

They are matched by group, sender, receiver and tag, in the order in which each side posted them; a receive from any source
takes, of the messages that are there when nobody can run on, the one that was sent first in virtual time. A pair goes its
way as a collective of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from kernbench.errors import CollectiveMismatchError
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.simulation.collective_values import Brought
from kernbench.simulation.groups import Arrival, Collective, Communicator, Signature
from kernbench.simulation.history import History
from kernbench.simulation.hooks import RunHooks
from kernbench.simulation.hosts import Host, Hosts
from kernbench.simulation.locations import Location, user_location
from kernbench.simulation.streams import Streams


@dataclass(eq=False, slots=True)
class Message:
    """One side of a point-to-point transfer that has been posted and has not met the other side.

    Attributes:
        group: where it was posted.
        rank: who posted it (a rank of the world).
        peer: the other side, None for a receive from any source.
        sends: whether this is the sending side.
        brought: as an :class:`Arrival` has it.
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

    @property
    def signature(self) -> Signature:
        """What the other side must agree in."""
        return Signature(
            "send" if self.sends else "recv", tuple(self.tensor.shape), self.tensor.dtype, None, None, "direct_send"
        )

    def __str__(self) -> str:
        other = "any source" if self.peer is None else f"rank {self.peer}"
        return f"{'send to' if self.sends else 'recv from'} {other} (tag {self.tag}) on {self.group.name}"


class Mailbox:
    """The messages of one simulation that wait for their other side.

    Attributes:
        paired: those that have met it and are to be run: the pair, its sides, and the number of elements.
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
        self._sends: dict[tuple[int, int, int, int], deque[Message]] = {}
        self._receives: dict[tuple[int, int, int, int], deque[Message]] = {}
        self._any_source: list[Message] = []
        self.paired: list[tuple[Collective, list[Arrival], int]] = []
        self._pairs: dict[tuple[Communicator, int, int], Communicator] = {}
        self.pick: Callable[[str, Sequence[Hashable]], int] | None = None

    def clear(self) -> None:
        """Forget everything."""
        self._sends.clear()
        self._receives.clear()
        self._any_source.clear()
        self.paired.clear()
        self._pairs.clear()

    @property
    def waiting(self) -> list[Message]:
        """The messages that wait for their other side, in the order in which they were posted."""
        found = [m for queue in (*self._sends.values(), *self._receives.values()) for m in queue] + self._any_source
        return sorted(found, key=lambda message: (message.op.enqueue, message.rank))

    def post(self, group: Communicator, tensor: torch.Tensor, *, peer: int | None, tag: int, sends: bool) -> Operation:
        """Post one side of a message between this rank and ``peer`` (a rank of the world; None: any source).

        Raises :class:`CollectiveMismatchError` if the other side has another dtype or number of elements.
        """
        rank = self._hosts.current_rank()
        self._hosts.need(group.ranks if peer is None else (peer,), "a message")
        me = self._hosts.of_rank[rank]
        op = self.enqueue(me, tensor, peer=peer, sends=sends)
        tensor = self._streams.take(me, tensor)
        message = Message(group, rank, peer, tag, sends, tensor, op, user_location(), me.before(me.stream))
        self._streams.touch(me, op, (tensor,) if sends else (), () if sends else (tensor,))
        self.admit(message)
        return op

    def enqueue(self, me: Host, tensor: torch.Tensor, *, peer: int | None, sends: bool) -> Operation:
        """Put one side of a message on its stream."""
        other = "any" if peer is None else peer
        stream = f"send {me.rank}->{other}" if sends else f"recv {other}->{me.rank}"
        return self._streams.post(me, "send" if sends else "recv", stream, (tensor,))

    def admit(self, message: Message) -> None:
        """One side of a message has come, whose operation has been made. Raises as :meth:`post` does."""
        group, rank, peer, tag, sends = message.group, message.rank, message.peer, message.tag, message.sends
        op, tensor = message.op, message.tensor
        self._history.add(rank, group, -1, message.signature, op, message.location, peer, (tuple(tensor.shape),))
        if self._hooks is not None:
            self._hooks.collective_enqueued(group.name, -1, message.signature, op, message.location, peer)
        self._engine.progress += 1
        if peer is None:
            self._any_source.append(message)
            return
        key = (id(group), rank, peer, tag) if sends else (id(group), peer, rank, tag)
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

    def match_any_source(self) -> bool:
        """Pair receives from any source with the sends that are there; False if there is none."""
        if not self._any_source:
            return False
        matched = False
        for receive in list(self._any_source):
            sends = [
                queue[0]
                for (group, _, receiver, tag), queue in self._sends.items()
                if group == id(receive.group) and receiver == receive.rank and tag == receive.tag
            ]
            if not sends:
                continue
            sends.sort(key=lambda message: (message.op.enqueue, message.rank))
            at = 0 if self.pick is None else self.pick(f"m{receive.rank}", [message.rank for message in sends])
            send = sends[at]
            self._any_source.remove(receive)
            queue = self._sends[id(send.group), send.rank, receive.rank, send.tag]
            queue.popleft()
            if not queue:
                del self._sends[id(send.group), send.rank, receive.rank, send.tag]
            receive.op.detail = {**(receive.op.detail or {}), "source": send.rank}
            self._pair(send, receive)
            matched = True
        return matched

    def _pair(self, send: Message, receive: Message) -> None:
        """Both sides of a message are there: check them, and let it go its way as a collective of two."""
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
        pair = self._pair_of(send.group, send.rank, receive.rank)
        signature = send.signature
        collective = Collective(pair, 0, signature, started=True)
        arrivals = [
            Arrival(
                side.rank, signature, (side.tensor,) if side.sends else (), () if side.sends else (side.tensor,), side.op,
                side.location, side.after, brought=side.brought,
            )
            for side in (send, receive)
        ]  # fmt: skip
        collective.arrivals = dict(enumerate(arrivals))
        self.paired.append((collective, arrivals, send.tensor.numel()))

    def _pair_of(self, group: Communicator, sender: int, receiver: int) -> Communicator:
        key = (group, sender, receiver)
        pair = self._pairs.get(key)
        if pair is None:
            pair = Communicator(f"{sender} -> {receiver} of {group.name}", (sender, receiver))
            self._pairs[key] = pair
        return pair

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
