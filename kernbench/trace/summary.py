"""Where the time of each rank went, and what the collectives moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kernbench.notebook_html import block, paragraph, table
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import CollectiveTrace
from kernbench.trace.rank_tables import RankRow, table_lines
from kernbench.trace.spans import COMPUTE_KINDS, HOST, Span
from kernbench.trace.timeline import HasEngine, Timeline, engine_of
from kernbench.trace.unions import Intervals, uncovered

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RankSummary:
    """Virtual seconds of one rank. compute + communication + copy + host + idle = the simulation's length.

    Attributes:
        rank: the rank.
        compute: a kernel or torch operation ran on its SIP.
        communication: a collective was under way, and nothing was computed meanwhile.
        overlapped: a collective was under way while something was computed; part of ``compute``.
        copy: data went between host and SIP, and none of the above.
        host: the host was launching, and none of the above.
        idle: none of the above.
    """

    rank: int
    compute: float
    communication: float
    overlapped: float
    copy: float
    host: float
    idle: float


@dataclass(frozen=True, slots=True)
class CollectiveSummary:
    """All collectives of one name.

    Attributes:
        name: ``"all_reduce"``, ...
        calls: how many were run, each counted once for all its members.
        payload: bytes that the member with the largest buffer passed, added up over calls.
        moved: bytes that members sent to each other.
        seconds: from a call's first member ready to its last member done, added up over calls.
    """

    name: str
    calls: int
    payload: int
    moved: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """The figures of one simulation; ``str()`` of it is a table. Times are virtual seconds.

    ``unmodelled``: operators that were counted by their bytes because no model knows them, each in a sentence.
    """

    length: float
    ranks: tuple[RankSummary, ...]
    collectives: tuple[CollectiveSummary, ...]
    unmodelled: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_table(self))

    def _repr_html_(self) -> str:
        """What a notebook shows of it: a table of ranks and one of collectives."""
        rows = [
            RankRow(row.rank, tuple(_cell(getattr(row, share), self.length) for share in _SHARES), (-row.idle,))
            for row in self.ranks
        ]
        calls = (
            (call.name, str(call.calls), str(call.payload), str(call.moved), f"{call.seconds * 1e6:.3f}")
            for call in self.collectives
        )
        return block(
            paragraph(f"length {self.length * 1e6:.3f} us of virtual time", bold=True),
            table(
                ("rank", *(f"{share} (us)" for share in _SHARES), ""),
                ((line.name, *line.cells, line.mark) for line in table_lines(rows, "least idle", "most idle")),
            ),
            table(("collective", "calls", "payload (B)", "moved (B)", "time (us)"), calls) if self.collectives else "",
            *map(paragraph, self.unmodelled),
        )


def summary(source: HasEngine | GraphEngine, window: Interval | None = None) -> Summary:
    """Sum up a context or an engine.

    Args:
        source: the simulation.
        window: virtual seconds from and to which the ranks' times are counted; default: all of it. Collectives are always
            counted over the whole simulation.
    """
    engine = engine_of(source)
    timeline = Timeline.of(source, max_steps=0)
    first, last = window or (0.0, timeline.end)
    ranks = tuple(rank_summaries(timeline.spans, (first, last)))
    return Summary(last - first, ranks, _collectives(engine.op_log.collectives), timeline.unmodelled)


def rank_summaries(spans: Iterable[Span], window: Interval) -> Iterator[RankSummary]:
    """Where the time of each rank went between two moments."""
    first, last = window
    by_rank: dict[int, dict[str, list[Interval]]] = {}
    for span in spans:
        if span.rank is None:
            continue
        mine = by_rank.setdefault(span.rank, {})
        share = _share_of(span.kind, span.track)
        begin, end = max(span.begin, first), min(span.end, last)
        if share is not None and begin < end:
            mine.setdefault(share, []).append((begin, end))
    for rank, shares in sorted(by_rank.items()):
        yield _rank_summary(rank, shares, last - first)


def _share_of(kind: str, track: str) -> str | None:
    if track == HOST:
        return "host" if kind == "launch" else None
    if kind in COMPUTE_KINDS:
        return "compute"
    return "copy" if kind == "dma" else "communication"


def _rank_summary(rank: int, spans: dict[str, list[Interval]], length: float) -> RankSummary:
    layers = ("compute", "communication", "copy", "host")
    shares = dict(zip(layers, uncovered(_as_arrays(spans.get(share, ())) for share in layers), strict=True))
    communication = sum(uncovered([_as_arrays(spans.get("communication", ()))]))
    return RankSummary(
        rank,
        **shares,
        overlapped=max(0.0, communication - shares["communication"]),
        idle=max(0.0, length - sum(shares.values())),
    )


def _as_arrays(intervals: Sequence[Interval]) -> Intervals:
    begins, ends = np.array(intervals, np.float64).reshape(-1, 2).T
    return begins, ends


def _collectives(traces: Iterable[CollectiveTrace]) -> tuple[CollectiveSummary, ...]:
    found: dict[str, CollectiveSummary] = {}
    for trace in traces:
        name = str(trace.detail["op"])
        old = found.get(name, CollectiveSummary(name, 0, 0, 0, 0.0))
        run = trace.run
        begin = min(run.member_start)
        end = max([begin, *(float(at) for at in run.times.arrived if at == at)])
        found[name] = CollectiveSummary(
            name,
            old.calls + 1,
            old.payload + int(trace.detail["payload"]),
            old.moved + int(run.plan.nbytes.sum()),
            old.seconds + end - begin,
        )
    return tuple(found.values())


_MOST_ROWS = 32
_SHARES = ("compute", "communication", "overlapped", "copy", "host", "idle")


def _table(figures: Summary) -> list[str]:
    lines = [f"length {figures.length * 1e6:.3f} us of virtual time", ""]
    lines.append(f"{'rank':>6}" + "".join(f"{share + ' (us)':>20}" for share in _SHARES))
    for row in figures.ranks[:_MOST_ROWS]:
        lines.append(f"{row.rank:>6}" + "".join(_cell(getattr(row, share), figures.length) for share in _SHARES))
    if len(figures.ranks) > _MOST_ROWS:
        lines.append(f"   ... and {len(figures.ranks) - _MOST_ROWS} more ranks")
    if figures.collectives:
        lines += ["", f"{'collective':<20}{'calls':>8}{'payload (B)':>16}{'moved (B)':>16}{'time (us)':>14}"]
        for call in figures.collectives:
            lines.append(f"{call.name:<20}{call.calls:>8}{call.payload:>16}{call.moved:>16}{call.seconds * 1e6:>14.3f}")
    if figures.unmodelled:
        lines += ["", *figures.unmodelled]
    return lines


def _cell(seconds: float, length: float) -> str:
    percent = 100 * seconds / length if length > 0 else 0.0
    return f"{seconds * 1e6:>13.3f} {percent:>5.1f}%"
