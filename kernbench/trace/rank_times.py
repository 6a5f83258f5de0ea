"""What a run took, in virtual time: per rank, and by collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kernbench.simulation.simulation import Simulation
from kernbench.trace.rank_tables import RankRow, table_lines
from kernbench.trace.unions import uncovered


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
    log = simulation.engine.op_log.operations.columns()
    communicates, ended = log.is_kind("collective"), log.ended
    lines = []
    for rank, state in sorted(simulation.hosts.of_rank.items()):
        mine = ended & (log.rank == rank)
        took = mine & (log.end > log.start)
        total = max(state.clock, float(log.end[took].max(initial=0.0)))
        computing, communicating = uncovered(
            (log.start[which], log.end[which]) for which in (mine & ~communicates, mine & communicates)
        )
        rest = max(total - computing - communicating, 0.0)
        host = min(rest, state.busy)
        lines.append(RankTime(rank, total, computing, communicating, host, rest - host))
    return lines


TIME_HEADS = ("rank", "time", "compute", "comm", "idle", "host")
"""Heads of a table of rank times."""


def time_rows(times: Sequence[RankTime]) -> list[RankRow]:
    """Their rows: milliseconds and shares."""
    rows = []
    for each in times:
        shares = (each.compute, each.communication, each.idle, each.host)
        cells = (f"{share / each.total if each.total else 0.0:9.1%}" for share in shares)
        rows.append(RankRow(each.rank, (f"{each.total * 1e3:9.4f} ms", *cells), (each.total,)))
    return rows


def time_lines(times: Sequence[RankTime]) -> Iterator[str]:
    """A table of them, line by line."""
    lines = [*table_lines(time_rows(times), "slowest", "quickest")]
    width = max(6, *(len(line.name) for line in lines))
    rank, time, *shares = TIME_HEADS
    yield " ".join((f"{rank:>{width}}", f"{time:>12}", *(f"{share:>9}" for share in shares)))
    for line in lines:
        yield f"{line.name:>{width}} {' '.join(line.cells)}{line.mark and f'  {line.mark}'}"


def traffic(simulation: Simulation) -> list[Traffic]:
    """Calls and bytes by collective, largest first."""
    log = simulation.engine.op_log.operations.columns()
    which = log.is_kind("collective")
    found = []
    for name in np.unique(log.name[which]).tolist():
        passed = log.nbytes[which & (log.name == name)]
        found.append(Traffic(log.names[name], len(passed), int(passed.sum())))
    return sorted(found, key=lambda t: (-t.nbytes, t.name))
