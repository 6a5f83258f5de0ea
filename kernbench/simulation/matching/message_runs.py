"""Running messages that have met: when both sides start together, and when one goes ahead into the other's buffer.

Gloo's start when both sides are there. NCCL's are kernels, each in its place on a stream: a receive runs until all has come,
and a send until all has gone into the receiver's buffer, which the receiver empties. What fits there goes without the
receiver; what does not keeps the sender's stream until it has come to the receive. The buffer has :data:`SLOTS` slots, and
a message takes one for each :func:`slot_bytes` of it, one at least. It counts as one channel's: two GPUs may be joined by
more of them (up to 32 on NVSwitch), but NCCL promises none of that, and a program that passes here passes with any number.

Sources: ``NCCL_STEPS`` (``src/include/device.h``), ``DEFAULT_BUFFSIZE`` and ``computeBuffSizes`` (``src/init.cc``), ``runSend``
and ``runRecv`` (``src/device/sendrecv.h``) of NCCL 2.27; ``NCCL_BUFFSIZE`` in its user guide.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kernbench.input_files import whole_number
from kernbench.sim_engine import GraphEngine, Operation
from kernbench.simulation.matching.collective_runs import CollectiveRuns
from kernbench.simulation.matching.groups import Arrival
from kernbench.simulation.matching.messages import Mailbox, MatchedPair, Message
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.topology import Topology

SLOTS = 8
"""Chunks that a channel's buffer holds (``NCCL_STEPS``)."""

NET_CHUNK = 128 << 10
"""Bytes of a chunk over a network (``NCCL_P2P_NET_CHUNKSIZE``); among a node's GPUs their link says it
(``NCCL_P2P_NVL_CHUNKSIZE``, ``NCCL_P2P_PCI_CHUNKSIZE``)."""


def slot_bytes(topology: Topology, sips: Iterable[int]) -> int:
    """Bytes of a message that a slot of the buffer between two members of a communicator holds.

    Args:
        sips: of all members: a communicator of several nodes cuts all its messages into smaller chunks.
    """
    one_node = len(set(map(topology.node_of, sips))) == 1
    link = topology.system.sips.link
    chunk = link.message_chunk if one_node and link is not None else NET_CHUNK
    given = whole_number(os.environ.get("NCCL_BUFFSIZE", "")) or 0
    return min(chunk, given // SLOTS) if given >= SLOTS else chunk


class MessageRuns:
    """Starts messages.

    Args:
        mailbox: has those that have met.
        ready: whether the values of what takes part are there.
        run: starts a message both of whose sides begin together.

    Attributes:
        in_flight: of NCCL's that have met, those that have not ended, each once per side.
    """

    def __init__(
        self,
        engine: GraphEngine,
        hosts: Hosts,
        runs: CollectiveRuns,
        mailbox: Mailbox,
        ready: Callable[[Iterable[Arrival]], bool],
        run: Callable[[MatchedPair], None],
    ) -> None:
        self._engine = engine
        self._hosts = hosts
        self._runs = runs
        self._mailbox = mailbox
        self._ready = ready
        self._run = run
        self._used: dict[tuple[object, ...], int] = {}
        self._boarded: dict[tuple[Any, ...], deque[MatchedPair]] = {}
        self._slot_bytes: dict[tuple[int, ...], int] = {}
        self.in_flight: dict[Operation, Message] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._used.clear()
        self._boarded.clear()
        self.in_flight.clear()

    def start(self) -> bool:
        """Start what can start; False if there is nothing."""
        mailbox = self._mailbox
        started = mailbox.match_any_source()
        if mailbox.unsent:
            for waiting in list(mailbox.unsent.values()):
                while waiting and self._go_ahead(waiting[0]):
                    started = True
        if mailbox.paired:
            paired, mailbox.paired = mailbox.paired, []
            for pair in paired:
                if pair.send.route.lane:
                    self._board(pair)
                elif self._ready(pair.arrivals):
                    self._run(pair)
                    pair.let_go()
                    started = True
                else:
                    mailbox.paired.append(pair)
        if self._boarded:
            for way, queue in list(self._boarded.items()):
                while queue and self._start_pair(queue[0]):
                    queue.popleft()
                    started = True
                if not queue:
                    del self._boarded[way]
        return started

    def _go_ahead(self, send: Message) -> bool:
        """Let a message go into the receiver's buffer before there is a receive, if it can."""
        if not (self._may_start(send) and self._fits(send) and self._ready((arrival := send.arrival(),))):
            return False
        self._mailbox.sent(send)
        self._send(send, arrival, alone=True)
        return True

    def _board(self, pair: MatchedPair) -> None:
        self._boarded.setdefault(pair.send.way, deque()).append(pair)
        for side in (pair.send, pair.receive):
            if side.op.end is None:
                self.in_flight[side.op] = side
                side.op.when_resolved(partial(self._ended, side.op))

    def _start_pair(self, pair: MatchedPair) -> bool:
        send = pair.send
        if not self._may_start(send):
            return False
        if send.arrived is None:
            if not self._ready(pair.arrivals):
                return False
            if self._slots(send) > SLOTS:
                self._run(pair)
                pair.let_go()
                return True
            if not self._fits(send):
                return False  # until the receiver has taken what came before
            self._send(send, pair.arrivals[0], alone=False)
        elif not self._ready(pair.arrivals[1:]):
            return False
        self._receive(pair)
        return True

    def _ended(self, op: Operation) -> None:
        self.in_flight.pop(op, None)

    def _may_start(self, message: Message) -> bool:
        """Whether the communicator that carries it has been made."""
        return message.route.lane == "pair" or message.route.made or message.group.made

    # -- the receiver's buffer ---------------------------------------------------------------------------------------

    def _slots(self, send: Message) -> int:
        pair = send.route.lane == "pair"
        members = (send.rank, send.peer) if pair else send.group.ranks
        sips = tuple(map(self._hosts.sip_of, [rank for rank in members if rank is not None]))
        size = self._slot_bytes.get(sips)
        if size is None:
            size = self._slot_bytes[sips] = slot_bytes(self._engine.topology, sips)
        nbytes = send.tensor.numel() * send.tensor.element_size()
        return max(1, -(-nbytes // size))

    def _fits(self, send: Message) -> bool:
        return self._used.get(send.way, 0) + self._slots(send) <= SLOTS

    def _send(self, send: Message, arrival: Arrival, *, alone: bool) -> None:
        """All of it goes into the receiver's buffer. ``alone``: the receive is to come, and the sender may go on meanwhile."""
        assert send.peer is not None
        slots, way = self._slots(send), send.way
        self._used[way] = self._used.get(way, 0) + slots
        collective = self._mailbox.collective_of(send, send.peer)
        if alone:
            send.tensor, send.brought = self._runs.taken(arrival)
        send.arrived = self._runs.send_ahead(collective, arrival, send.peer, send.tensor.numel())

    def _receive(self, pair: MatchedPair) -> None:
        """The receiver takes it out of the buffer."""
        send, receive = pair.send, pair.receive
        assert send.arrived is not None
        arrival = pair.arrivals[0]
        arrival.inputs, arrival.brought = (send.tensor,), send.brought
        way, slots = send.way, self._slots(send)

        def emptied() -> None:
            self._used[way] = max(self._used.get(way, 0) - slots, 0)

        nbytes = send.tensor.numel() * send.tensor.element_size()
        seconds = nbytes / self._engine.topology.device.hbm_copy_bandwidth
        self._runs.take(pair.collective, pair.arrivals, pair.count, send.arrived, seconds)
        receive.op.when_resolved(emptied)
        pair.let_go()
