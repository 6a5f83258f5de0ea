"""What a trace says: time by kernel and by collective, overlap, what is exposed, and the critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from kernbench.cost.estimate import total
from kernbench.trace.critical import PathStep, collective_of, critical_path, kind_of
from kernbench.trace.spans import HOST, Span
from kernbench.trace.step_parts import path_total
from kernbench.trace.summary import RankSummary, rank_summaries


@dataclass(frozen=True, slots=True)
class NameTime:
    """Operations of one name. Seconds, over all ranks.

    Attributes:
        name: of the operation.
        kind: ``compute``, ``communication`` or ``copy``.
        calls: how many ran; a collective counts once for all its members.
        seconds: of all calls; of a collective, from its last member's arrival to its last member's end.
        low, high: the interval of ``seconds``.
        nbytes: bytes that they read, wrote or passed.
        waited: of collectives: seconds from the first member's arrival to the last one's, over calls.
    """

    name: str
    kind: str
    calls: int
    seconds: float
    low: float
    high: float
    nbytes: int
    waited: float = 0.0


class Length(NamedTuple):
    """How long it all took. Seconds.

    Attributes:
        seconds: from the beginning to the end of it all.
        low, high: its interval, by the operations of the critical path.
        path: the critical path.
    """

    seconds: float
    low: float
    high: float
    path: tuple[PathStep, ...]

    @property
    def shares(self) -> dict[str, float]:
        """Seconds of the critical path by what they were spent on."""
        return _shares_of(self.path)


def _shares_of(path: Iterable[PathStep]) -> dict[str, float]:
    shares: dict[str, float] = dict.fromkeys(("compute", "communication", "copy", "host", "gap"), 0.0)
    for step in path:
        shares[step.kind] += step.seconds
    return shares


def length_of(spans: Sequence[Span]) -> Length:
    """How long spans took."""
    end = max((span.end for span in spans), default=0.0)
    path = tuple(critical_path(spans))
    if not any(span.interval is not None for span in spans):  # measured, not modelled
        return Length(end, end, end, path)
    seconds, low, high = path_total(path)
    return Length(end, end - (seconds - low), end + (high - seconds), path)


@dataclass(frozen=True)
class TraceReport:
    """The figures of one trace. Seconds.

    Attributes:
        length: from the beginning to the end of it all.
        low, high: its interval, by the operations of the critical path.
        ranks: where the time of each rank went.
        kernels: computation and copies by name, the most time first.
        collectives: communication by name, the most time first.
        path: the critical path.
    """

    length: float
    low: float
    high: float
    ranks: tuple[RankSummary, ...]
    kernels: tuple[NameTime, ...]
    collectives: tuple[NameTime, ...]
    path: tuple[PathStep, ...]

    @property
    def path_shares(self) -> dict[str, float]:
        """Seconds of the critical path by what they were spent on."""
        return _shares_of(self.path)

    def as_data(self) -> dict[str, object]:
        """The same for JSON."""
        steps = [
            {
                "name": step.span.name if step.span else "",
                "kind": step.kind,
                "rank": step.span.rank if step.span else None,
                "track": step.span.track if step.span else "",
                "begin": step.begin,
                "end": step.end,
            }
            for step in self.path
        ]
        return {
            "seconds": self.length,
            "low": self.low,
            "high": self.high,
            "ranks": [asdict(rank) for rank in self.ranks],
            "kernels": [asdict(line) for line in self.kernels],
            "collectives": [asdict(line) for line in self.collectives],
            "critical_path": {"shares": self.path_shares, "steps": steps},
        }


def report_of(spans: Sequence[Span]) -> TraceReport:
    """Sum up spans."""
    length = length_of(spans)
    ran = [span for span in spans if span.track != HOST and kind_of(span) != "communication"]
    calls: Mapping[Any, list[Span]] = _grouped(spans, "collective")
    return TraceReport(
        length=length.seconds,
        low=length.low,
        high=length.high,
        ranks=tuple(rank_summaries(spans, (0.0, length.seconds))),
        kernels=_by_name((span.name, kind_of(span), span.seconds, span.interval, span.nbytes, 0.0) for span in ran),
        collectives=_by_name(_call(members) for members in calls.values()),
        path=length.path,
    )


Row = tuple[str, str, float, tuple[float, float] | None, int, float]


def _grouped(spans: Sequence[Span], kind: str) -> dict[object, list[Span]]:
    groups: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        if span.kind == kind:
            groups[collective_of(span)].append(span)
    return groups


def _call(members: Sequence[Span]) -> Row:
    """One collective: it takes time from the moment at which its last member has come."""
    last = max(members, key=lambda span: span.begin)
    seconds = max(span.end for span in members) - last.begin
    interval = None
    if last.interval is not None:
        interval = (seconds + last.interval[0] - last.seconds, seconds + last.interval[1] - last.seconds)
    waited = last.begin - min(span.begin for span in members)
    name = str(last.detail.get("op") or last.name)
    return name, "communication", seconds, interval, max(span.nbytes for span in members), waited


def _by_name(rows: Iterable[Row]) -> tuple[NameTime, ...]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[0], row[1]].append(row)
    lines = []
    for (name, kind), members in groups.items():
        parts = ((name, took, *(interval or (took, took))) for _, _, took, interval, _, _ in members)
        lines.append(
            NameTime(
                name, kind, len(members), *total(parts), sum(row[4] for row in members), sum(row[5] for row in members)
            )
        )
    return tuple(sorted(lines, key=lambda line: (-line.seconds, line.name)))
