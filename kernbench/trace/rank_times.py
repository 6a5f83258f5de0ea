"""What a run took, in virtual time: per rank, and by collective."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from kernbench.simulation.simulation import Simulation
from kernbench.trace.summary import Interval, uncovered


@dataclass(frozen=True)
class RankTime:
    """Where a rank's time went. Seconds; the four shares add up to ``total``.

    Attributes:
        compute: an operation was running on its SIP.
        communication: none was, and a collective or message was under way.
        host: neither, and its program was enqueueing operations.
        idle: the rest.
    """

    rank: int
    total: float
    compute: float
    communication: float
    host: float
    idle: float


@dataclass(frozen=True)
class Traffic:
    """What was sent by one kind of collective: calls and payload bytes, over all ranks."""

    name: str
    calls: int
    nbytes: int


def rank_times(simulation: Simulation) -> list[RankTime]:
    """One line per rank of the last spawn."""
    compute: dict[int, list[Interval]] = defaultdict(list)
    communication: dict[int, list[Interval]] = defaultdict(list)
    latest: dict[int, float] = defaultdict(float)
    for op in simulation.engine.op_log.operations:
        if op.rank is None or op.start is None or op.end is None:
            continue
        (communication if op.kind == "collective" else compute)[op.rank].append((op.start, op.end))
        if op.end > op.start:
            latest[op.rank] = max(latest[op.rank], op.end)
    lines = []
    for rank, state in sorted(simulation.hosts.of_rank.items()):
        total = max(state.clock, latest[rank])
        computing, communicating = uncovered((compute[rank], communication[rank]))
        rest = max(total - computing - communicating, 0.0)
        host = min(rest, state.busy)
        lines.append(RankTime(rank, total, computing, communicating, host, rest - host))
    return lines


def traffic(simulation: Simulation) -> list[Traffic]:
    """Calls and bytes by collective, largest first."""
    calls: dict[str, int] = defaultdict(int)
    nbytes: dict[str, int] = defaultdict(int)
    for op in simulation.engine.op_log.operations:
        if op.kind == "collective":
            calls[op.name] += 1
            nbytes[op.name] += op.nbytes
    return sorted((Traffic(name, calls[name], nbytes[name]) for name in calls), key=lambda t: (-t.nbytes, t.name))
