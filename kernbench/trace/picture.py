"""A picture of the timeline: a lane per rank and stream over virtual time, messages as lines from rank to rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernbench.topology import Topology
from kernbench.topology.svg import Canvas
from kernbench.topology.units import DURATION, SIZE
from kernbench.trace.spans import COMPUTE_KINDS, HOST, ChunkStep, Span, lane_of, pack

_STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1f2937 }
  .title { font-size: 17px; font-weight: 700 }
  .subtitle { font-size: 12px; fill: #4b5563 }
  .name { font-size: 12px; font-weight: 600 }
  .small { font-size: 10px; fill: #6b7280 }
  .label { font-size: 10px; fill: #ffffff }
  .band { fill: #f8fafc; stroke: none }
  .grid { stroke: #e2e8f0; stroke-width: 1; fill: none }
  .axis { stroke: #94a3b8; stroke-width: 1; fill: none }
  .launch { fill: #94a3b8 }
  .wait { fill: #e2e8f0 }
  .kernel { fill: #2563eb }
  .gemm { fill: #4f46e5 }
  .attention { fill: #0891b2 }
  .math { fill: #0ea5e9 }
  .dma { fill: #ca8a04 }
  .collective { fill: #16a34a }
  .other { fill: #9333ea }
  .message { stroke: #15803d; stroke-width: 0.8; stroke-opacity: 0.45; fill: none }
""".strip("\n")

_KINDS = {
    "launch": "host launches",
    "wait": "host waits",
    "kernel": "kernel",
    "gemm": "GEMM",
    "attention": "attention",
    "math": "elementwise",
    "dma": "copy",
    "collective": "collective",
    "other": "other",
}
_LEFT, _RIGHT, _TOP, _BOTTOM = 126.0, 24.0, 92.0, 22.0
_LANE, _GAP, _BAND_PAD = 15.0, 3.0, 7.0
_MOST_RANKS = 64
_MOST_MESSAGES = 4000
_THINNEST = 0.4  # pixels: spans shorter than this are drawn together


@dataclass(frozen=True)
class _Frame:
    """From virtual seconds to pixels."""

    begin: float
    end: float
    width: float

    def x(self, seconds: float) -> float:
        inside = min(max(seconds, self.begin), self.end)
        return _LEFT + (inside - self.begin) / (self.end - self.begin) * self.width


class Pictured(Protocol):
    """A timeline, as far as a picture is made of it."""

    @property
    def topology(self) -> Topology:
        """The system."""

    @property
    def title(self) -> str:
        """The simulation's name, possibly empty."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """What ran on streams and hosts."""

    @property
    def messages(self) -> tuple[ChunkStep, ...]:
        """Chunk steps of collectives."""

    @property
    def ranks(self) -> list[int]:
        """Every rank that did anything."""

    @property
    def end(self) -> float:
        """When the last thing ended, virtual seconds."""

    @property
    def note(self) -> str:
        """What is missing from it."""


def timeline_picture(
    timeline: Pictured, begin: float = 0.0, end: float | None = None, width: int = 1100, title: str = ""
) -> str:
    """The picture of a timeline as an SVG document.

    Args:
        timeline: what happened.
        begin, end: the part to draw, virtual seconds; default: all.
        width: pixels.
        title: default: the timeline's.
    """
    last = timeline.end if end is None else end
    frame = _Frame(begin, last if last > begin else begin + 1e-6, width - _LEFT - _RIGHT)
    spans = [span for span in timeline.spans if span.end >= frame.begin and span.begin <= frame.end]
    ranks = timeline.ranks[:_MOST_RANKS]
    lanes = _lanes(spans)
    tracks = _track_labels(lanes)
    band = len(tracks) * (_LANE + _GAP) - _GAP + 2 * _BAND_PAD
    top = {rank: _TOP + number * band for number, rank in enumerate(ranks)}
    bottom = _TOP + len(ranks) * band
    canvas = Canvas()
    _heading(canvas, timeline, frame, title, spans)
    _bands(canvas, frame, top, band, tracks)
    _axis(canvas, frame, bottom)
    drawn = _message_lines(canvas, timeline, frame, top, tracks)
    for rank in ranks:
        for number, (group, lane) in enumerate(tracks):
            y = top[rank] + _BAND_PAD + number * (_LANE + _GAP)
            _lane(canvas, frame, y, lanes.get((rank, group, lane), ()))
    note = _notes(timeline, len(timeline.ranks) - len(ranks), drawn)
    if note:
        canvas.text("small", _LEFT, bottom + 34, note, anchor="start")
    return canvas.render(width, bottom + _BOTTOM + (18 if note else 4), title="timeline", style=_STYLE)


def _lanes(spans: Sequence[Span]) -> dict[tuple[int | None, str, int], list[Span]]:
    """The spans of each lane: (rank, group of streams, number).

    Streams of one kind, and messages of one direction, share lanes, as few as do without overlaps.
    """
    groups: dict[tuple[int | None, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        groups.setdefault((span.rank, lane_of(span)), []).append(span)
    lanes: dict[tuple[int | None, str, int], list[Span]] = {}
    for (rank, group), members in groups.items():
        for span, lane in zip(members, pack([(span.begin, span.end) for span in members]), strict=True):
            lanes.setdefault((rank, group, lane), []).append(span)
    return lanes


def _track_labels(lanes: Iterable[tuple[int | None, str, int]]) -> list[tuple[str, int]]:
    """The lanes of a band, the same for every rank: host, then the streams that any rank uses."""
    order = (HOST, "compute", "comm", "send", "recv", "copy")
    used = {(group, lane) for rank, group, lane in lanes if rank is not None}
    return sorted(used, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), key))


def _kind(span: Span) -> str:
    return span.kind if span.kind in _KINDS else "kernel" if span.kind in COMPUTE_KINDS else "other"


def _heading(canvas: Canvas, timeline: Pictured, frame: _Frame, title: str, spans: Sequence[Span]) -> None:
    topology = timeline.topology
    canvas.text("title", 16, 28, title or timeline.title or "timeline", anchor="start")
    nodes = f"{topology.nodes} nodes x " if topology.nodes > 1 else ""
    canvas.text(
        "subtitle", 16, 47,
        f"{topology.system.name}, {nodes}{topology.sips_per_node} SIPs; {DURATION.format(frame.end - frame.begin)} of "
        "virtual time",
        anchor="start",
    )  # fmt: skip
    x = 16.0
    present = {_kind(span) for span in spans}
    for kind, label in _KINDS.items():
        if kind in present:
            canvas.box(kind, x, 60, 12, 12, radius=2)
            canvas.text("small", x + 17, 70, label, anchor="start")
            x += 30 + 5.6 * len(label)


def _bands(
    canvas: Canvas, frame: _Frame, top: dict[int, float], band: float, tracks: Sequence[tuple[str, int]]
) -> None:
    for number, (rank, y) in enumerate(top.items()):
        if number % 2 == 0:
            canvas.box("band", 0, y, _LEFT + frame.width + _RIGHT, band, radius=0)
        canvas.text("name", 16, y + band / 2 + 4, f"rank {rank}", anchor="start")
        for place, (group, lane) in enumerate(tracks):
            if lane == 0:
                canvas.text("small", _LEFT - 6, y + _BAND_PAD + place * (_LANE + _GAP) + 11, group, anchor="end")


def _axis(canvas: Canvas, frame: _Frame, bottom: float) -> None:
    step = _nice((frame.end - frame.begin) / 8)
    first = int(-(-frame.begin // step))
    for number in range(first, int(frame.end // step) + 1):
        x = frame.x(number * step)
        canvas.line("grid", [(x, _TOP), (x, bottom)])
        canvas.text("small", x, bottom + 15, DURATION.format(number * step) if number else "0")
    canvas.line("axis", [(_LEFT, bottom), (_LEFT + frame.width, bottom)])


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 1e-12
    while power * 10 <= step:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)


def _lane(canvas: Canvas, frame: _Frame, y: float, spans: Sequence[Span]) -> None:
    """The spans of one lane, in the order of time; neighbours of one kind that are too thin to tell apart become one."""
    pending: list[Span] = []

    def flush() -> None:
        if pending:
            _box(canvas, frame, y, pending)
            pending.clear()

    for span in spans:
        thin = frame.x(span.end) - frame.x(span.begin) < _THINNEST
        touches = pending and frame.x(span.begin) - frame.x(pending[-1].end) < _THINNEST
        if not (thin and touches and _kind(pending[-1]) == _kind(span)):
            flush()
        pending.append(span)
    flush()


def _box(canvas: Canvas, frame: _Frame, y: float, spans: Sequence[Span]) -> None:
    first, last = spans[0], spans[-1]
    x, width = frame.x(first.begin), frame.x(last.end) - frame.x(first.begin)
    name = first.name if len(spans) == 1 else f"{len(spans)} x {_KINDS[_kind(first)]}"
    size = f", {SIZE.format(first.nbytes)}" if first.nbytes and len(spans) == 1 else ""
    tip = f"{name}: {DURATION.format(last.end - first.begin)} from {DURATION.format(first.begin)}{size}"
    canvas.box(_kind(first), x, y, max(width, 0.5), _LANE, radius=min(2.0, width / 2), title=tip)
    if first.track != HOST and width > 6.2 * len(name) + 6:
        canvas.text("label", x + width / 2, y + 11, name)


def _message_lines(
    canvas: Canvas, timeline: Pictured, frame: _Frame, top: dict[int, float], tracks: Sequence[tuple[str, int]]
) -> bool:
    """A line per message, from the sender's comm lane to the receiver's; False if there are too many to see any."""
    visible = [
        message
        for message in timeline.messages
        if message.begin >= frame.begin and message.arrived <= frame.end and message.nbytes
        and message.src in top and message.dst in top
    ]  # fmt: skip
    if len(visible) > _MOST_MESSAGES:
        return False
    communicating = [number for number, (group, _) in enumerate(tracks) if group in ("comm", "send", "recv")]
    lane = _BAND_PAD + (communicating[0] if communicating else 0) * (_LANE + _GAP)
    for message in visible:
        down = message.dst > message.src
        canvas.line(
            "message",
            [
                (frame.x(message.begin), top[message.src] + lane + (_LANE if down else 0)),
                (frame.x(message.arrived), top[message.dst] + lane + (0 if down else _LANE)),
            ],
        )
    return True


def _notes(timeline: Pictured, hidden_ranks: int, messages_drawn: bool) -> str:
    notes = [timeline.note] if timeline.note else []
    if hidden_ranks:
        notes.append(f"{hidden_ranks} more ranks are not shown")
    if not messages_drawn:
        notes.append("messages are too many to draw: choose a shorter part (begin, end)")
    return "; ".join(notes)
