"""Requests of a serving engine as what takes time on lanes: from arrival to the first token, and from there to the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernbench.simulation.ranks.serving_requests import RequestRecord
from kernbench.trace.spans import Span, pack

TRACK = "requests"
KIND = "request"


def request_spans(records: Iterable[RequestRecord]) -> Iterator[Span]:
    """Two spans of each request that has come so far, of no rank; the lanes that they lie on are in their tracks' names."""
    known = sorted((record for record in records if record.tokens), key=lambda record: (record.arrived, record.name))
    lanes = pack([(record.arrived, record.tokens[-1]) for record in known])
    for lane, record in zip(lanes, known, strict=True):
        track = f"{TRACK} ({lane + 1})" if lane else TRACK
        detail = {
            "prompt tokens": record.prompt,
            "generated tokens": len(record.tokens),
            "preempted": len(record.preempted),
        }
        first, last = record.tokens[0], record.tokens[-1]
        yield Span(None, 0, track, f"{record.name}: to the first token", KIND, record.arrived, first, 0, detail)
        if last > first:
            yield Span(None, 0, track, f"{record.name}: decoding", KIND, first, last, 0, detail)
