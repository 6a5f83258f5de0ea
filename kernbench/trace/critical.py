"""The critical path: the chain of operations that a simulation's length consists of.

It is read from the end backwards. What ran last is on it; before that, what it began after: the operation before it on its
stream or on another of its rank, the last member of its collective to arrive, or the host that launched it. Whatever lies
between two of them (a launch's latency, a host that waited for nothing) is a gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernbench.trace.spans import HOST, Span

_CLOSE = 2.1e-9
"""Times in files are whole nanoseconds: this close is the same moment."""

_NOTICED = 20e-6
"""Seconds that a measured call returns after what it waited for has ended, at most."""


@dataclass(frozen=True, slots=True)
class PathStep:
    """One part of the path.

    Attributes:
        span: what ran; None for a gap.
        begin, end: the part of it that is on the path, virtual seconds.
    """

    span: Span | None
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin

    @property
    def kind(self) -> str:
        """``compute``, ``communication``, ``copy``, ``host`` or ``gap``."""
        return "gap" if self.span is None else kind_of(self.span)


def kind_of(span: Span) -> str:
    """What a span's time counts as."""
    if span.track == HOST:
        return "host"
    return {"collective": "communication", "dma": "copy"}.get(span.kind, "compute")


def critical_path(spans: Iterable[Span]) -> list[PathStep]:
    """The path through spans, from the beginning to the end of it all."""
    known = [span for span in spans if span.rank is not None and span.end > span.begin]
    if not known:
        return []
    by_rank = {rank: _Rank(spans) for rank, spans in _group(known, lambda span: span.rank).items()}
    members = _group((span for span in known if span.kind == "collective"), collective_of)
    last = max(known, key=lambda span: (span.end, span.track != HOST, -(span.rank or 0)))
    steps: list[PathStep] = []
    span: Span | None = last
    moment = last.end
    while span is not None:
        if span.kind == "wait" and span.track == HOST:
            cause = by_rank[span.rank].awaited(span)
            if cause is not None:
                if cause.end < moment - _CLOSE:
                    steps.append(PathStep(None, cause.end, moment))
                    moment = cause.end
                span = cause
                continue
        if span.kind == "collective":
            span = max(
                (it for it in members[collective_of(span)] if it.begin < moment), key=lambda it: it.begin, default=span
            )
        steps.append(PathStep(span, min(span.begin, moment), moment))
        moment = min(span.begin, moment)
        before = by_rank[span.rank].before(span, moment)
        if before is not None and before.end < moment - _CLOSE:
            steps.append(PathStep(None, before.end, moment))
        if before is not None:
            moment = min(moment, before.end)
        span = before
    if moment > _CLOSE:
        steps.append(PathStep(None, 0.0, moment))
    return steps[::-1]


def collective_of(span: Span) -> Any:
    """What the members of one collective have in common."""
    detail = span.detail
    if "sequence" in detail:
        return detail.get("group"), detail["sequence"], span.name if detail.get("op") is None else detail["op"]
    return id(span)


class _Rank:
    """The spans of one rank, by end."""

    def __init__(self, spans: Sequence[Span]) -> None:
        order = sorted(spans, key=lambda span: (span.end, span.begin))
        self._device = [span for span in order if span.track != HOST]
        self._host = [span for span in order if span.track == HOST]
        self._device_ends = [span.end for span in self._device]
        self._host_ends = [span.end for span in self._host]

    def awaited(self, wait: Span) -> Span | None:
        """What a host waited for: what ended on its device then; measured hosts notice some time later."""
        last = bisect_right(self._device_ends, wait.end + _CLOSE) - 1
        if last < 0:
            return None
        late = _NOTICED if "Synchronize" in wait.name else _CLOSE
        found = self._device[last]
        return found if found.end >= wait.end - late and found.end > wait.begin else None

    def before(self, span: Span, at: float) -> Span | None:
        """What had to end for ``span`` to begin at a moment."""
        host = self._last(self._host, self._host_ends, at, span)
        if span.track == HOST:
            return host
        device = self._last(self._device, self._device_ends, at, span)
        if device is not None and device.end >= at - _CLOSE:
            return device
        if host is None or (device is not None and device.end > host.end):
            return device
        return host

    @staticmethod
    def _last(spans: list[Span], ends: list[float], at: float, but: Span) -> Span | None:
        place = bisect_right(ends, at + _CLOSE)
        while place:
            place -= 1
            if spans[place] is not but and spans[place].begin < at - _CLOSE / 2:
                return spans[place]
        return None


def _group(spans: Iterable[Span], key: Any) -> dict[Any, list[Span]]:
    groups: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        groups[key(span)].append(span)
    return dict(groups)
