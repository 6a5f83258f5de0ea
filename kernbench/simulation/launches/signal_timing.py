"""When launches end that wait for each other's signals.

A launch's duration is that of its own work. One that waits for signals occupies its stream longer, and for how long depends
on when the launches that it hears from run (:mod:`kernbench.triton_engine.signals`), which is known once their streams have
come to them. Until then its end stays open.

The rules (ADR 0080), with the latency of the way between the SIPs added to each moment:

- Two that hear each other meet: neither gets to work before both have started.
- From one that does not hear back, signals come in the course of its work, the last at its end. The listener does its own
  work between the signals in equal parts: it ends at the earliest one such part after the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.sim_engine import GraphEngine, Operation
from kernbench.triton_engine.signals import Party


@dataclass(frozen=True, slots=True)
class _Open:
    """A party whose end is not known yet: whom it meets, whom it listens to, and how long each one's own work takes (s)."""

    party: Party
    seconds: Sequence[float]
    meets: Sequence[Party]
    listens_to: Sequence[Party]


class SignalTiming:
    """The parties of one simulation whose ends are open."""

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._open: list[_Open] = []

    def clear(self) -> None:
        """Forget them: their world is gone."""
        self._open.clear()

    def finished(self, party: Party, seconds: Sequence[float]) -> None:
        """The values of ``party`` are final; the own work of its operations takes ``seconds``."""
        party.finished = True
        if not party.heard and not (party.met and len(party.operations) > 1):
            for op, own in zip(party.operations, seconds, strict=True):
                self._engine.set_duration(op, own)
            return
        meets = [other for other in party.heard if not other.finished or other.has_heard(party)]
        listens_to = [other for other in party.heard if other not in meets]
        if party.met:
            meets.append(party)
        self.end_when_known(party, seconds, meets, listens_to)

    def end_when_known(
        self, party: Party, seconds: Sequence[float], meets: Sequence[Party], listens_to: Sequence[Party]
    ) -> None:
        """End its operations once that is known: whom they meet and listen to is."""
        self._open.append(_Open(party, seconds, meets, listens_to))
        self.settle()

    def settle(self) -> bool:
        """End those of which everything is known now; False if there is none."""
        settled = False
        waiting, self._open = self._open, []
        try:
            while waiting:
                if self._known(waiting[0]):
                    self._end(waiting[0])
                    settled = True
                else:
                    self._open.append(waiting[0])
                del waiting[0]
        finally:
            self._open += waiting  # what was broken off, and those after it
        return settled

    def _known(self, item: _Open) -> bool:
        return (
            all(op.start is not None for party in (item.party, *item.meets) for op in party.operations)
            and all(op.end is not None for party in item.listens_to for op in party.operations)
        )  # fmt: skip

    def _end(self, item: _Open) -> None:
        for op, seconds in zip(item.party.operations, item.seconds, strict=True):
            assert op.start is not None
            begin = op.start
            for other in self._heard_by(op, item.party, item.meets):
                begin = max([begin, *(self._arrival(each, each.start, op) for each in other.operations)])
            clock = begin
            signals = sorted(
                max(self._arrival(each, each.end, op) for each in other.operations)
                for other in self._heard_by(op, item.party, item.listens_to)
            )
            for signal in signals:
                clock = max(clock, signal) + seconds / len(signals)
            waited = clock - seconds - op.start if signals else begin - op.start
            self._engine.end_after_waiting(op, seconds, max(waited, 0.0))

    @staticmethod
    def _heard_by(op: Operation, party: Party, others: Sequence[Party]) -> list[Party]:
        """Of those that a batch has heard, whom ``op``'s part of it has: by words in its own SIP's memory, or in the memory
        of none of them."""
        if len(party.operations) == 1:
            return list(others)
        sips = {each.sip for each in party.operations}
        heard = [(other, party.heard.get(other)) for other in others]
        return [other for other, homes in heard if homes is None or op.sip in homes or not homes <= sips]

    def _arrival(self, sender: Operation, moment: float | None, receiver: Operation) -> float:
        assert moment is not None
        if sender.sip == receiver.sip:
            return moment
        return moment + self._engine.topology.route(sender.sip, receiver.sip).latency
