"""What links carried over time: the transfers of collectives and messages, in bins of virtual time.

A transfer sends its bytes evenly while it holds its route. What goes over several links at once (the NICs of a node, the links
from a SIP to its neighbours), of which a plan's route shows one, is divided evenly among all of them. Copies between hosts and
SIPs, and what kernels read of other SIPs, are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.plan import PlanTimes, TransferPlan, evaluate
from kernbench.sim_engine.plan_run import PlanRun
from kernbench.topology import Topology
from kernbench.topology.node import LocalLink, Vertex

BINS = 240
_EXACT = 1 << 24
"""Transfers on links whose times are computed one by one; members of later collectives are taken to have come together, when
the last one did."""
_LEAST = 1 << 11
"""Transfers that looking at a collective costs as much as."""

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class LinkTraffic:
    """Attributes:
    width: seconds of a bin.
    links: ``[links]`` those that carried anything, by index.
    nbytes: ``[links, bins]`` bytes that they carried.
    coarse: collectives whose members are taken to have come together, when the last one did.
    """

    width: float
    links: Numbers
    nbytes: Floats
    coarse: int


def link_traffic(engine: GraphEngine, seconds: float, *, bins: int = BINS) -> LinkTraffic:
    """The traffic of a run of so many virtual ``seconds``."""
    topology = engine.topology
    if not seconds or not engine.op_log.collectives:
        return LinkTraffic(seconds / bins, np.zeros(0, np.int64), np.zeros((0, bins)), 0)
    known: dict[int, _Loads] = {}
    for trace in engine.op_log.collectives:
        plan = trace.run.plan
        if id(plan) not in known:
            known[id(plan)] = _Loads(plan, topology)
    used = np.unique(np.concatenate([loads.link for loads in known.values()]))
    binned = _Binned(len(used), seconds / bins, bins)
    work = coarse = 0
    for trace in engine.op_log.collectives:
        loads = known[id(trace.run.plan)]
        work += max(len(loads.link), _LEAST)
        rows = np.searchsorted(used, loads.link)
        if work > _EXACT:
            coarse += 1
            start, sent = loads.together
            binned.add(rows, loads.nbytes, start + trace.run.last_start, sent + trace.run.last_start)
        else:
            times = loads.times_of(trace.run)
            binned.add(rows, loads.nbytes, times.start[loads.transfer], times.sent[loads.transfer])
    nbytes = binned.nbytes
    carried = nbytes.sum(axis=1) > 0
    return LinkTraffic(seconds / bins, used[carried], nbytes[carried], coarse)


class _Loads:
    """What a plan puts on links: transfer, link and bytes of each."""

    def __init__(self, plan: TransferPlan, topology: Topology) -> None:
        wire = plan.wire if len(plan.wire) else plan.nbytes.astype(np.float64)
        per_queue = np.asarray([len(links) for links in plan.queue_links], np.int64)
        first = np.cumsum(per_queue) - per_queue
        counts = per_queue[plan.queue]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        links = np.asarray([link for queue in plan.queue_links for link in queue], np.int64)
        self.plan = plan
        self.transfer = np.repeat(np.arange(len(plan)), counts)
        self.link = links[np.repeat(first[plan.queue], counts) + within]
        self.nbytes = wire[self.transfer]
        self._divide(np.flatnonzero((plan.nbytes - wire)[self.transfer] > 0.5), topology)
        self._relative: PlanTimes | None = None

    def _divide(self, at: Numbers, topology: Topology) -> None:
        """What goes over many links at once loads all of them alike."""
        stride = len(topology.node_links)
        for ways in _bundles(topology.node_links):
            local = self.link[at] % stride
            mine = np.isin(local, ways)
            if len(ways) > 1 and mine.any():
                split, at = at[mine], at[~mine]
                first = self.link[split] - local[mine]
                self.link[split] = first + ways[0]
                self.nbytes[split] = self.plan.nbytes[self.transfer[split]] / len(ways)
                more = len(ways) - 1
                self.transfer = np.concatenate([self.transfer, np.repeat(self.transfer[split], more)])
                self.link = np.concatenate([self.link, (first[:, None] + np.asarray(ways[1:])).reshape(-1)])
                self.nbytes = np.concatenate([self.nbytes, np.repeat(self.nbytes[split], more)])

    @property
    def relative(self) -> PlanTimes:
        """When its transfers happen if all members start at 0."""
        if self._relative is None:
            self._relative = evaluate(self.plan, [0.0] * self.plan.members)
        return self._relative

    @property
    def together(self) -> tuple[Floats, Floats]:
        """Begin and end of each load then."""
        times = self.relative
        return times.start[self.transfer], times.sent[self.transfer]

    def times_of(self, run: PlanRun) -> PlanTimes:
        """When they happened in a run."""
        starts = run.member_start
        if run.alone and starts.count(starts[0]) == len(starts):
            times = self.relative
            return PlanTimes(times.start + starts[0], times.sent + starts[0], times.arrived + starts[0])
        return run.times


def _bundles(links: Sequence[LocalLink]) -> list[list[int]]:
    """The links of a node that a library uses at once: NICs, one way each, and what leads from one SIP to others."""
    bundles: dict[tuple[str, Vertex | None], list[int]] = {}
    for number, link in enumerate(links):
        if link.kind == "nic":
            bundles.setdefault((link.src.role, None), []).append(number)
        elif link.kind == "sip" and "switch" not in link.src.role + link.dst.role:
            bundles.setdefault(("sip", link.src), []).append(number)
    return list(bundles.values())


class _Binned:
    """Bytes by row and bin. Kept are the slopes of what rows have carried by then, and where slopes begin and end."""

    def __init__(self, rows: int, width: float, bins: int) -> None:
        self._width = width
        self._bins = bins
        self._slope = np.zeros((rows, bins + 2))
        self._offset = np.zeros((rows, bins + 2))

    def add(self, rows: Numbers, nbytes: Floats, start: Floats, end: Floats) -> None:
        """Rows carry bytes from ``start`` to ``end`` (s); what has not begun or ended is left out."""
        known = np.isfinite(start) & np.isfinite(end) & (start < self._width * self._bins)
        rows, nbytes, start, end = rows[known], nbytes[known], start[known], end[known]
        long = end - start > 1e-6 * self._width
        slope = nbytes[long] / (end - start)[long]
        for at, sign in ((start, 1.0), (end, -1.0)):
            place = self._edge(at[long])
            np.add.at(self._slope, (rows[long], place), sign * slope)
            np.add.at(self._offset, (rows[long], place), -sign * slope * at[long])
        np.add.at(self._offset, (rows[~long], self._edge(end[~long])), nbytes[~long])

    def _edge(self, at: Floats) -> Numbers:
        """The first edge of a bin at or after a moment; what is behind the last one counts nowhere."""
        edge = np.ceil(at / self._width)
        return np.clip(edge, 0, self._bins + 1).astype(np.int64)

    @property
    def nbytes(self) -> Floats:
        """``[rows, bins]``."""
        edges = np.arange(self._bins + 2) * self._width
        carried = (np.cumsum(self._slope, axis=1) * edges + np.cumsum(self._offset, axis=1))[:, :-1]
        found: Floats = np.maximum(np.diff(carried, axis=1), 0.0)
        return found
