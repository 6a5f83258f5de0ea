"""Spans as rows and columns: which rank and stream each is on, of which type, from when to when.

What spans have in common (name, kind, bytes, arguments) is a **type**, and stands in a table once. Times are whole nanoseconds:
of each span the gap behind the one before it on its row, and its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernbench.html_report.columns import Columns, folded
from kernbench.trace.critical import PathStep, collective_of
from kernbench.trace.spans import HOST, Span, lane_of, pack

_ORDER = (HOST, "compute", "stream", "comm", "send", "recv", "copy")
_NOT_SHARED = frozenset({"sequence"})
"""Details that every collective has a value of its own of: the call says it."""


@dataclass(frozen=True)
class Row:
    """One row of the picture: what a rank does on a stream, without overlaps.

    Attributes:
        rank: None for main.
        name: of the stream.
        spans: in the order of time.
    """

    rank: int | None
    name: str
    spans: Sequence[Span]


@dataclass
class TypeTable:
    """What spans have in common, each once.

    Attributes:
        rows: name, kind, bytes, and place in ``details``.
        details: arguments, by name.
        calls: of collectives: group, sequence number and operation; members of one have the same place.
    """

    rows: list[tuple[str, str, int, int]] = field(default_factory=list)
    details: list[dict[str, object]] = field(default_factory=list)
    calls: list[tuple[str, int, str]] = field(default_factory=list)
    _rows: dict[object, int] = field(default_factory=dict)
    _details: dict[object, int] = field(default_factory=dict)
    _calls: dict[object, int] = field(default_factory=dict)

    def type_of(self, span: Span) -> int:
        """The place of a span's type."""
        key = span.name, span.kind, span.nbytes, self._detail_of(span.detail)
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = len(self.rows)
            self.rows.append(key)
        return found

    def call_of(self, span: Span) -> int:
        """The place of the collective that a span is a member's part of, from 1; 0: of none."""
        if span.kind != "collective" or "sequence" not in span.detail:
            return 0
        group, sequence, operation = key = collective_of(span)
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = len(self.calls) + 1
            self.calls.append((str(group), int(sequence), str(operation)))
        return found

    def _detail_of(self, detail: dict[str, Any]) -> int:
        if not detail:
            items = []
        else:
            items = [(key, value) for key, value in detail.items() if key not in _NOT_SHARED and value is not None]
        key: Any = tuple(items)
        try:
            found = self._details.get(key)
        except TypeError:  # a list among them
            key = repr(items)
            found = self._details.get(key)
        if found is None:
            found = self._details[key] = len(self.details)
            self.details.append(dict(items))
        return found


def rows_of(spans: Iterable[Span]) -> list[Row]:
    """The rows of spans, by rank and stream. Streams whose names begin with the same word share rows, as few as do."""
    groups: dict[tuple[int | None, str], list[Span]] = {}
    for span in spans:
        groups.setdefault((span.rank, lane_of(span)), []).append(span)
    rows = []
    for (rank, word), members in sorted(groups.items(), key=lambda item: _place(*item[0])):
        members.sort(key=lambda span: (span.begin, span.end))
        lanes: dict[int, list[Span]] = {}
        for span, lane in zip(members, pack([(span.begin, span.end) for span in members]), strict=True):
            lanes.setdefault(lane, []).append(span)
        for lane, mine in sorted(lanes.items()):
            tracks = {span.track for span in mine}
            name = tracks.pop() if len(tracks) == 1 else word
            rows.append(Row(rank, f"{name} ({lane + 1})" if lane and name == word else name, mine))
    return rows


def _place(rank: int | None, word: str) -> tuple[object, ...]:
    number = _ORDER.index(word) if word in _ORDER else len(_ORDER)
    return rank is None, rank or 0, number, word


def add_spans(columns: Columns, rows: Sequence[Row], types: TypeTable) -> None:
    """Add the columns of all rows' spans, one row behind the other: ``type``, ``gap`` and ``length`` (ns), ``call``, and
    ``below`` and ``above``, shares of the length (1/1000) that it may be shorter or longer by."""
    count = sum(len(row.spans) for row in rows)
    spans = [span for row in rows for span in row.spans]
    begin, end = nanoseconds(span.begin for span in spans), nanoseconds(span.end for span in spans)
    before = np.zeros(count, np.int64)
    before[1:] = end[:-1]
    first = 0
    for row in rows:
        if row.spans:
            before[first] = 0
        first += len(row.spans)
    columns.add("type", (types.type_of(span) for span in spans))
    columns.add("gap", begin - before)
    columns.add("length", end - begin)
    columns.add("call", folded(np.fromiter((types.call_of(span) for span in spans), np.int64, count)))
    shares = np.fromiter((share for span in spans for share in _shares(span)), np.int64, 2 * count)
    columns.add("below", shares[::2])
    columns.add("above", shares[1::2])


def _shares(span: Span) -> tuple[int, int]:
    seconds, interval = span.end - span.begin, span.interval
    if interval is None or seconds <= 0:
        return 0, 0
    below, above = (seconds - interval[0]) / seconds, (interval[1] - seconds) / seconds
    return min(max(round(1000 * below), 0), 65535), min(max(round(1000 * above), 0), 65535)


def add_path(columns: Columns, path: Iterable[PathStep], rows: Sequence[Row]) -> None:
    """Add the critical path: of each of its steps ``path_row``, ``path_begin`` and ``path_length`` (ns); gaps are left out."""
    row_of = {id(span): number for number, row in enumerate(rows) for span in row.spans}
    steps = [step for step in path if step.span is not None]
    begin, end = nanoseconds(step.begin for step in steps), nanoseconds(step.end for step in steps)
    columns.add("path_row", (row_of[id(step.span)] for step in steps))
    columns.add("path_begin", folded(begin))
    columns.add("path_length", end - begin)


def nanoseconds(seconds: Iterable[float]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Virtual seconds as whole nanoseconds."""
    return np.rint(np.fromiter(seconds, np.float64) * 1e9).astype(np.int64)


@dataclass(frozen=True)
class Group:
    """Ranks whose devices do the same operations in the same order, be it at other times.

    Attributes:
        ranks: in order.
        shown: the one that stands for them: that with most of the critical path, else the first.
    """

    ranks: tuple[int, ...]
    shown: int


def groups_of(rows: Sequence[Row], path: Iterable[PathStep]) -> list[Group]:
    """The ranks in groups, by the first rank of each."""
    signatures: dict[int, list[object]] = {}
    known: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.rank is not None:
            does = signatures.setdefault(row.rank, [])
            if row.name != HOST:  # whether and how often a host waits is a matter of time
                names = (known.setdefault((span.name, span.kind), len(known)) for span in row.spans)
                does.append((row.name.partition(" ")[0], np.fromiter(names, np.int32).tobytes()))
    on_path: dict[int, float] = {}
    for step in path:
        if step.span is not None and step.span.rank is not None:
            on_path[step.span.rank] = on_path.get(step.span.rank, 0.0) + step.seconds
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank, does in sorted(signatures.items()):
        alike.setdefault(tuple(does), []).append(rank)
    return [
        Group(tuple(ranks), max(ranks, key=lambda rank: (on_path.get(rank, 0.0), -rank))) for ranks in alike.values()
    ]
