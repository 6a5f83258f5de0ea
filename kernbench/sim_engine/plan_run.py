"""A collective in flight: a :class:`TransferPlan` on the engine's clock.

A plan that has its links to itself is evaluated at once with array arithmetic. If other traffic reaches one of its
links before it has ended, it is *demoted*: what has happened by then stands, and the rest goes on as flows that share
the links. No later time has been read by then, because a member's end is published only when the clock reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from kernbench.sim_engine.plan import PlanTimes, TransferPlan, evaluate, member_ends


class SharedLinks(Protocol):
    """The clock and the links that runs share: the engine."""

    now: float

    def at(self, time: float, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when the clock reaches ``time`` (s)."""

    def start_flow(
        self,
        links: Sequence[int],
        nbytes: float,
        on_done: Callable[[float], None],
        *,
        cap: float,
        on_behalf_of: PlanRun,
    ) -> object:
        """Send ``nbytes`` over ``links`` now, at ``cap`` bytes/s at most; ``on_done`` is called when the last has left."""

    def plan_finished(self, run: PlanRun) -> None:
        """The last member of ``run`` has ended."""


class PlanRun:
    """One execution of a plan.

    Args:
        engine: whose clock and network to use.
        plan: the transfers.
        on_members_end: called as ``on_members_end(members, time)`` when the clock reaches the end of some members.

    Attributes:
        member_start: ``[members]`` seconds at which each member is ready.
    """

    __slots__ = (
        "_ended", "_engine", "_member_left", "_needed", "_on_members_end", "_released", "_running", "_times", "_version",
        "last_end", "last_start", "member_start", "plan",
    )  # fmt: skip
    _needed: list[int]  # once it shares links
    _released: list[bool]

    def __init__(
        self,
        engine: SharedLinks,
        plan: TransferPlan,
        on_members_end: Callable[[Sequence[int], float], None],
    ) -> None:
        self.plan = plan
        self.member_start = [0.0] * plan.members
        self.last_start = 0.0
        """When the last member joined."""
        self.last_end = 0.0
        """When the last member ended, of those that have."""
        self._times: PlanTimes | None = None
        self._engine = engine
        self._on_members_end = on_members_end
        self._version = 0
        self._ended = [False] * plan.members
        self._running = plan.members
        self._member_left: list[int] | None = None

    @property
    def alone(self) -> bool:
        """Whether it still has its links to itself."""
        return self._member_left is None

    @property
    def times(self) -> PlanTimes:
        """When each transfer happened. Of a plan that ran alone they are computed on request."""
        if self._times is None:
            times = evaluate(self.plan, self.member_start)
            if self.alone and self.finished:
                return times  # cheap to compute again, expensive to keep: a log holds many runs
            self._times = times
        return self._times

    @property
    def finished(self) -> bool:
        """Whether all members have ended."""
        return self._running == 0

    def start_alone(self) -> None:
        """Evaluate the whole plan at once."""
        ends = member_ends(self.plan, self.member_start)
        version = self._version
        # one event per distinct end, in time order: members that end together are notified in member order
        ending: dict[float, list[int]] = {}
        for member, end in enumerate(ends):
            found = ending.get(end)
            if found is None:
                ending[end] = [member]
            else:
                found.append(member)
        for end in sorted(ending):
            self._engine.at(end, partial(self._publish, ending[end], end, version))

    def start_shared(self) -> None:
        """Run transfer by transfer, sharing links with whatever else is in flight."""
        self._times = PlanTimes(*(np.full(len(self.plan), np.nan) for _ in range(3)))
        self._to_flows(now=-np.inf)

    def demote(self, now: float) -> None:
        """Other traffic is about to use one of its links: keep the past, run the rest transfer by transfer."""
        self._version += 1  # the published ends are void
        self._to_flows(now)

    def _publish(self, members: list[int], at: float, version: int) -> None:
        if version == self._version:
            self._end_members(members, at)

    def _end_members(self, members: Sequence[int], at: float) -> None:
        for member in members:
            self._ended[member] = True
        self._running -= len(members)
        self.last_end = at
        self._on_members_end(members, at)
        if self._running == 0:
            self._engine.plan_finished(self)
            del self._on_members_end, self._ended  # a log holds many runs

    # -- transfer by transfer ----------------------------------------------------------------------------------------

    def _to_flows(self, now: float) -> None:
        plan, times = self.plan, self.times
        after_arrival, needed, after_sent = plan.dependents
        self._needed = list(needed)
        self._member_left = np.bincount(plan.src, minlength=plan.members).tolist()
        for member in plan.dst.tolist():
            self._member_left[member] += 1
        self._released = [False] * len(plan)
        for member, left in enumerate(self._member_left):
            if left == 0 and not self._ended[member]:
                self._schedule_end(member, max(float(self.member_start[member]), now))
        began = times.start <= now  # NaN (nothing known yet) compares false
        for i in np.flatnonzero(began).tolist():
            self._released[i] = True
            self._resume(i, now, after_sent[i], after_arrival[i])
        for i in range(len(plan)):
            if self._needed[i] == 0 and not self._released[i]:
                self._release(i, now)

    def _resume(self, i: int, now: float, after_sent: list[int], after_arrival: list[int]) -> None:
        """Put a transfer that had begun by ``now`` where it stood then."""
        times = self.times
        if times.arrived[i] <= now:
            self._count_down(after_sent)
            self._count_down(after_arrival)
            self._leave_member(int(self.plan.src[i]), float(times.sent[i]), now)
            self._leave_member(int(self.plan.dst[i]), float(times.arrived[i]), now)
        elif times.sent[i] <= now:
            self._count_down(after_sent)
            self._leave_member(int(self.plan.src[i]), float(times.sent[i]), now)
            arrived = float(times.arrived[i])
            self._engine.at(arrived, lambda: self._arrived(i, arrived))
        else:
            left = (times.sent[i] - now) / (times.sent[i] - times.start[i])
            self._send(i, fraction=float(left))

    def _count_down(self, transfers: list[int]) -> None:
        for j in transfers:
            self._needed[j] -= 1

    def _leave_member(self, member: int, at: float, now: float) -> None:
        """One transfer less for ``member``; the last one ends it."""
        assert self._member_left is not None
        self._member_left[member] -= 1
        if self._member_left[member] == 0 and not self._ended[member]:
            self._schedule_end(member, max(at, now))

    def _schedule_end(self, member: int, at: float) -> None:
        self._engine.at(at, partial(self._end_members, (member,), at))

    def _release(self, i: int, now: float) -> None:
        """All conditions of transfer i hold: it starts, at its members' own start at the earliest."""
        self._released[i] = True
        plan = self.plan
        begin = max(now, float(self.member_start[plan.src[i]]), float(self.member_start[plan.dst[i]]))
        self._engine.at(begin, lambda: self._begin(i, begin))

    def _begin(self, i: int, at: float) -> None:
        self.times.start[i] = at
        self._send(i, fraction=1.0)

    def _send(self, i: int, fraction: float) -> None:
        plan = self.plan
        serial = float(plan.serial[i])
        links = plan.queue_links[plan.queue[i]]
        nbytes = float(plan.wire[i] if len(plan.wire) else plan.nbytes[i])
        if not links or nbytes <= 0.0 or serial <= 0.0:
            at = self._engine.now + serial * fraction
            self._engine.at(at, lambda: self._sent(i, at))
            return
        self._engine.start_flow(
            links, nbytes * fraction, lambda at: self._sent(i, at), cap=nbytes / serial, on_behalf_of=self
        )

    def _sent(self, i: int, at: float) -> None:
        self.times.sent[i] = at
        arrived = at + float(self.plan.latency[i])
        self._leave_member(int(self.plan.src[i]), at, at)
        self._advance(self.plan.dependents[2][i], at)
        self._engine.at(arrived, lambda: self._arrived(i, arrived))

    def _arrived(self, i: int, at: float) -> None:
        self.times.arrived[i] = at
        self._leave_member(int(self.plan.dst[i]), at, at)
        self._advance(self.plan.dependents[0][i], at)

    def _advance(self, transfers: list[int], now: float) -> None:
        for j in transfers:
            self._needed[j] -= 1
            if self._needed[j] == 0:
                self._release(j, now)
