"""How long the steps of a training program took, and what they achieved.

Step ``k`` of a run ends when the slowest rank's device has done what that rank had enqueued when it ended the step
(:mod:`.training_steps`), and begins where the one before it ended; the first begins with the program. So steps add
up to the run, a step includes what the program does between it and the step before, and the first one building the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import ceil

import numpy as np
from numpy.typing import NDArray

from kernbench.sim_engine.log_rows import LogColumns
from kernbench.simulation.ranks.training_steps import StepEnd
from kernbench.simulation.ranks.work_counts import Account, Flops
from kernbench.simulation.simulation import Simulation
from kernbench.topology.device import DeviceSpec
from kernbench.trace.unions import merged

TOLERANCE = 1e-3
"""Steps are called equal if the longest of them is at most this share longer than the shortest."""


@dataclass(frozen=True)
class StepTime:
    """One step of all ranks. Virtual seconds; shares are means over ranks, None where the log has not kept the operations.

    Attributes:
        number: from 1.
        begin, end: of the step.
        compute: share of its time in which an operation ran on a rank's device.
        communication: in which none did, and a collective or message was under way.
        idle: the rest: the device waits for its host, or for other ranks.
        flops: by format, over all ranks.
        recomputed: the same of forward work that was repeated.
        tokens, samples: of the whole job, as the program reported; 0 if it did not.
    """

    number: int
    begin: float
    end: float
    compute: float | None
    communication: float | None
    idle: float | None
    flops: Flops = field(default_factory=dict)
    recomputed: Flops = field(default_factory=dict)
    tokens: int = 0
    samples: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


@dataclass(frozen=True)
class StepTimes:
    """The steps of a run.

    Attributes:
        steps: in order.
        ranks: that made steps, those that others stand in for (``--ranks``) counted.
        stopped: steps after which the program was stopped; None if it ended by itself.
        notes: what is to be said of them besides, in sentences.
    """

    steps: tuple[StepTime, ...]
    ranks: int
    stopped: int | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, simulation: Simulation) -> StepTimes:
        """The steps of a simulation's last spawn, which has ended."""
        ends = {rank: mine.steps() for rank, mine in simulation.steps.of_rank.items() if mine.count}
        stopped = simulation.steps.limit if simulation.steps.stopping else None
        count = min(map(len, ends.values()), default=0)
        notes = [*_on_ranks(simulation, ends, count)]
        boundaries = _boundaries(simulation, ends, count)
        weights = _weights(simulation, sorted(ends))
        shares = _shares(simulation, weights, boundaries)
        steps, disagree = [], False
        for index in range(count):
            done = [_during(ends[rank], index) for rank in weights]
            disagree |= len({(each.tokens, each.samples) for each in done if each.tokens or each.samples}) > 1
            steps.append(
                StepTime(
                    index + 1, boundaries[index], boundaries[index + 1], *shares[index],
                    flops=_added((each.flops for each in done), weights.values()),
                    recomputed=_added((each.recomputed for each in done), weights.values()),
                    tokens=max(each.tokens for each in done), samples=max(each.samples for each in done),
                )
            )  # fmt: skip
        if disagree:
            notes.append(
                "ranks report different batches for the same step: the largest counts (report_batch takes the whole job's)"
            )
        if steps:
            notes += _not_counted(simulation)
        return cls(tuple(steps), sum(weights.values()), stopped, tuple(notes))

    def equal(self) -> list[tuple[StepTime, ...]]:
        """The steps in order, consecutive ones that are equal together."""
        groups: list[list[StepTime]] = []
        for step in self.steps:
            group = groups[-1] if groups else []
            times = [*(each.seconds for each in group), step.seconds]
            if group and max(times) <= min(times) * (1 + TOLERANCE):
                group.append(step)
            else:
                groups.append([step])
        return [tuple(group) for group in groups]

    @property
    def steady(self) -> tuple[StepTime, ...]:
        """The longest row of equal steps, the last one of such; empty if no two in a row are equal."""
        rows = [group for group in self.equal() if len(group) > 1]
        return max(reversed(rows), key=len, default=())

    @property
    def typical(self) -> tuple[StepTime, ...]:
        """The steps that figures are taken of: the steady ones, else all but the first, else the only one."""
        return self.steady or self.steps[1:] or self.steps

    def extrapolate(self, count: int) -> float | None:
        """Virtual seconds of ``count`` steps from the program's start, if all to come are typical; None without two steps."""
        if count <= len(self.steps):
            return self.steps[count - 1].end - self.steps[0].begin
        if len(self.steps) < 2:
            return None
        seen = self.steps[-1].end - self.steps[0].begin
        return seen + (count - len(self.steps)) * mean_seconds(self.typical)


def percentile(steps: Sequence[StepTime], share: float) -> float:
    """The shortest time within which this share of some steps is done: one of theirs, by the nearest-rank method."""
    times = sorted(step.seconds for step in steps)
    return times[max(0, ceil(share * len(times)) - 1)]


def mean_seconds(steps: Sequence[StepTime]) -> float:
    """How long each of some steps takes, on average."""
    return sum(step.seconds for step in steps) / len(steps)


def _during(ends: Sequence[StepEnd], index: int) -> Account:
    return ends[index].account.since(ends[index - 1].account if index else Account())


def _added(parts: Iterable[Flops], times: Iterable[int] | None = None) -> Flops:
    """The sum of some counts, each as often as ``times`` says."""
    total: Flops = {}
    for part, often in zip(parts, repeat(1) if times is None else times, strict=False):
        for fmt, flops in part.items():
            total[fmt] = total.get(fmt, 0) + flops * often
    return total


def _weights(simulation: Simulation, ranks: Sequence[int]) -> dict[int, int]:
    """How many ranks each of some stands for: itself, and those that it is run in the place of."""
    folding = simulation.hosts.folding
    if folding is None:
        return dict.fromkeys(ranks, 1)
    stands_for = Counter(map(folding.representative, range(folding.world)))
    return {rank: stands_for[rank] for rank in ranks}


def _boundaries(simulation: Simulation, ends: Mapping[int, Sequence[StepEnd]], count: int) -> list[float]:
    """Where steps begin and end: one moment more than there are steps."""
    found = [min((mine.begin for mine in simulation.steps.of_rank.values()), default=0.0)]
    for index in range(count):
        found.append(max(found[-1], *(mine[index].time for mine in ends.values())))
    return found


def _on_ranks(simulation: Simulation, ends: Mapping[int, Sequence[StepEnd]], count: int) -> list[str]:
    """What differs between ranks."""
    notes: list[str] = []
    of_rank = simulation.steps.of_rank
    if not ends:
        return notes
    if without := sorted(set(of_rank) - set(ends)):
        notes.append(f"{_names(without)} made no optimizer step")
    if max(map(len, ends.values())) > count:
        counts = {len(mine) for mine in ends.values()}
        notes.append(f"ranks made {min(counts)} to {max(counts)} steps: those that all made are shown")
    if released := sorted(rank for rank, mine in of_rank.items() if mine.released):
        notes.append(
            f"{_names(released)} had not ended the last step, and was stopped where it waited for ranks that had"
        )
    return notes


def _not_counted(simulation: Simulation) -> list[str]:
    """What multiplies matrices, maybe, and is in no count of FLOPs."""
    notes = []
    kernels = int(simulation.engine.op_log.operations.columns().is_kind("kernel").sum())
    if kernels:
        notes.append(
            f"{kernels} launches of Triton kernels are not in the FLOPs, unless an operator with a formula made them"
        )
    if names := sorted(simulation.op_costs.uncounted):
        notes.append(f"not in the FLOPs: {', '.join(names)}, which has no formula")
    return notes


def _names(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{' ...' if len(ranks) > 8 else ''}"


Shares = tuple[float | None, float | None, float | None]


def _shares(simulation: Simulation, weights: Mapping[int, int], boundaries: Sequence[float]) -> list[Shares]:
    """Compute, communication and idle of each step, averaged over ranks."""
    log = simulation.engine.op_log
    known = log.operations.columns()
    ran, communicates = known.end > known.start, known.is_kind("collective")
    moments = np.asarray(boundaries)
    length = np.diff(moments)
    compute, covered = np.zeros(len(length)), np.zeros(len(length))
    for rank, often in weights.items():
        mine = ran & (known.rank == rank)
        compute += often * np.diff(_covered_before(known, mine & ~communicates, moments))
        covered += often * np.diff(_covered_before(known, mine, moments))
    shares: list[Shares] = []
    for index, seconds in enumerate(length.tolist()):
        if boundaries[index] < log.begin or seconds <= 0:
            shares.append((None, None, None))
            continue
        whole = seconds * sum(weights.values())
        idle = max(0.0, 1 - covered[index] / whole)  # sums of floats may be a last digit more than the whole
        shares.append((compute[index] / whole, (covered[index] - compute[index]) / whole, idle))
    return shares


def _covered_before(log: LogColumns, which: NDArray[np.bool_], moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds before each of some moments in which at least one of some operations is under way."""
    if not which.any():
        return np.zeros(len(moments))
    starts, stops = merged(log.start[which], log.end[which])
    before = np.concatenate([[0.0], np.cumsum(stops - starts)])
    at = np.searchsorted(starts, moments, side="right")
    inside = np.where(at > 0, np.minimum(moments, stops[np.maximum(at - 1, 0)]) - starts[np.maximum(at - 1, 0)], 0.0)
    return np.asarray(before[np.maximum(at - 1, 0)] + inside)


@dataclass(frozen=True)
class Achieved:
    """What typical steps achieve.

    Attributes:
        seconds: per step.
        gpus: that made them.
        tokens, samples: per step, of the whole job; 0 if not reported.
        flops, recomputed: per step over all ranks, by format.
        peaks: of one device's matrix engines by format, FLOP/s.
    """

    seconds: float
    gpus: int
    tokens: float
    samples: float
    flops: Mapping[str, float]
    recomputed: Mapping[str, float]
    peaks: Mapping[str, float]

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: share of the time that the engines at their peak would need for the model's FLOPs."""
        return self._utilization(self.flops)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: the same, with what was recomputed."""
        return self._utilization(self.flops) + self._utilization(self.recomputed)

    @property
    def flops_per_gpu(self) -> float:
        """Model FLOP/s of one device."""
        return sum(self.flops.values()) / (self.seconds * self.gpus) if self.seconds else 0.0

    def _utilization(self, flops: Mapping[str, float]) -> float:
        if not self.seconds:
            return 0.0
        return sum(count / self.peaks[fmt] for fmt, count in flops.items()) / (self.seconds * self.gpus)


def achieved(
    times: StepTimes, device: DeviceSpec, *, tokens: int | None = None, samples: int | None = None
) -> Achieved | None:
    """What the typical steps of a run achieve; None if there are none.

    Args:
        times: of the run.
        device: that each rank drives.
        tokens, samples: per step, of the whole job; by default what the program reported.
    """
    steps = times.typical
    if not steps:
        return None
    flops, recomputed = ({fmt: total / len(steps) for fmt, total in _added(parts).items()}
                         for parts in ([step.flops for step in steps], [step.recomputed for step in steps]))  # fmt: skip
    return Achieved(
        mean_seconds(steps),
        times.ranks,
        sum(step.tokens for step in steps) / len(steps) if tokens is None else tokens,
        sum(step.samples for step in steps) / len(steps) if samples is None else samples,
        flops,
        recomputed,
        {fmt: device.matrix_rate(fmt) for fmt in sorted({*flops, *recomputed})},
    )
