"""Flows over shared links: each link's bandwidth is divided max-min fairly among the flows that cross it.

A flow is a message in flight. Real fabrics interleave packets of competing messages; the fluid limit of that is a rate
per flow, constant between two events, no larger than the flow's own cap. Rates are recomputed only for the connected
set of flows that an arrival or a departure touches, so disjoint traffic costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Schedule = Callable[[float, Callable[[], None]], None]


class Flow:
    """One message on its route.

    Attributes:
        links: indices of the links it crosses.
        remaining: bytes still to send at time ``updated``.
        cap: the most it can take, in bytes/s, whatever the links offer.
        rate: what it gets now, in bytes/s.
        version: counts its rates: an event that was scheduled for another rate is void.
    """

    __slots__ = ("cap", "links", "on_done", "rate", "remaining", "updated", "version")

    def __init__(
        self, links: Sequence[int], nbytes: float, cap: float, now: float, on_done: Callable[[float], None]
    ) -> None:
        self.links = links
        self.remaining = nbytes
        self.cap = cap
        self.rate = 0.0
        self.updated = now
        self.on_done = on_done
        self.version = 0


class Network:
    """All flows in flight.

    Args:
        bandwidth: bytes/s of each link, by link index.
        schedule: calls a function back at a virtual time.
        clock: tells the virtual time.
    """

    def __init__(self, bandwidth: Sequence[float], schedule: Schedule, clock: Callable[[], float]) -> None:
        self._bandwidth = bandwidth
        self._schedule = schedule
        self._clock = clock
        self._on_link: dict[int, dict[Flow, None]] = {}
        self.flows = 0
        """How many are in flight."""

    def start(self, links: Sequence[int], nbytes: float, on_done: Callable[[float], None], *, cap: float) -> Flow:
        """Start sending ``nbytes`` now; ``on_done(time)`` is called when the last byte has left the last link."""
        now = self._clock()
        flow = Flow(links, nbytes, cap, now, on_done)
        self.flows += 1
        alone = True
        for link in links:
            sharers = self._on_link.setdefault(link, {})
            alone = alone and not sharers
            sharers[flow] = None
        if alone:
            self._set_rate(flow, min([cap, *(self._bandwidth[link] for link in links)]), now)
        else:
            self._share(flow, now)
        return flow

    def busy(self, link: int) -> bool:
        """Whether any flow crosses ``link`` now."""
        return bool(self._on_link.get(link))

    def _finish(self, flow: Flow, version: int) -> None:
        if flow.version != version:
            return  # its rate changed since: a later event stands for it
        now = self._clock()
        flow.version += 1
        self.flows -= 1
        neighbours: dict[Flow, None] = {}
        for link in flow.links:
            sharers = self._on_link[link]
            del sharers[flow]
            neighbours.update(sharers)
        shared: set[Flow] = set()
        for neighbour in neighbours:
            if neighbour not in shared:
                shared.update(self._share(neighbour, now))
        flow.on_done(now)

    def _set_rate(self, flow: Flow, rate: float, now: float) -> None:
        if rate == flow.rate:
            return
        flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.updated))
        flow.updated = now
        flow.rate = rate
        flow.version += 1
        version = flow.version
        self._schedule(now + flow.remaining / rate, lambda: self._finish(flow, version))

    def _component(self, seed: Flow) -> list[Flow]:
        """Every flow that shares a link with ``seed``, directly or through others, in a fixed order."""
        seen: dict[Flow, None] = {seed: None}
        frontier = [seed]
        while frontier:
            flow = frontier.pop()
            for link in flow.links:
                for neighbour in self._on_link[link]:
                    if neighbour not in seen:
                        seen[neighbour] = None
                        frontier.append(neighbour)
        return list(seen)

    def _share(self, seed: Flow, now: float) -> list[Flow]:
        """Progressive filling: raise all rates together; freeze those that meet their cap or a full link.

        Returns the flows whose rates were set: all that are connected to ``seed``.
        """
        component = self._component(seed)
        unfrozen = dict.fromkeys(component)
        spare = {link: self._bandwidth[link] for flow in unfrozen for link in flow.links}
        while unfrozen:
            crossing: dict[int, int] = {}
            for flow in unfrozen:
                for link in flow.links:
                    crossing[link] = crossing.get(link, 0) + 1
            share = min(spare[link] / count for link, count in crossing.items())
            capped = [flow for flow in unfrozen if flow.cap <= share]
            if capped:
                frozen = [(flow, flow.cap) for flow in capped]
            else:
                tight = {link for link, count in crossing.items() if spare[link] / count <= share}
                frozen = [(flow, share) for flow in unfrozen if any(link in tight for link in flow.links)]
            for flow, rate in frozen:
                del unfrozen[flow]
                for link in flow.links:
                    spare[link] = max(0.0, spare[link] - rate)
                self._set_rate(flow, rate, now)
        return component
