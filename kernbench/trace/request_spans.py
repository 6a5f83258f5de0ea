"""Requests of a serving engine as what takes time on lanes: from arrival to the first token, and from there to the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernbench.simulation.ranks.serving_requests import RequestRecord
from kernbench.trace.spans import Span, pack

TRACK = "requests"
KIND = "request"
TO_FIRST, DECODING = "to the first token", "decoding"
"""Phases of a request: its time in the queue and for its prompt; the tokens after the first."""


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
        for phase, begin, end in ((TO_FIRST, record.arrived, first), (DECODING, first, last)):
            if phase == TO_FIRST or end > begin:
                name = f"{record.name}: {phase}"
                yield Span(None, 0, track, name, KIND, begin, end, 0, {"phase": phase, **detail})
