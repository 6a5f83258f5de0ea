"""Requests of a serving engine, and its steps, as the engine reports them (``kernbench.report_request``); plain data.

Of ranks that run one engine together each may report, and one is enough: of a request, the lowest rank that reports it counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

EVENTS = ("arrived", "token", "preempted", "ended")
"""What happens to a request."""


@dataclass(slots=True)
class RequestRecord:
    """One request. Moments are virtual seconds.

    Attributes:
        name: of it.
        prompt: tokens that it brought.
        arrived: when.
        tokens: of each token that was generated, when the engine had it.
        preempted: when it lost its place, to be computed again later.
        ended: when; None: it has not.
    """

    name: str
    prompt: int
    arrived: float
    tokens: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    ended: float | None = None


class EngineStep(NamedTuple):
    """One step of an engine, as it stood when the step had ended.

    Attributes:
        at: virtual seconds.
        prefill, decode: tokens of prompts, and of sequences that generate, that were computed.
        running, waiting: requests in the engine's batch, and beside it.
        blocks_used, blocks: of the cache; 0: not reported.
    """

    at: float
    prefill: int
    decode: int
    running: int
    waiting: int
    blocks_used: int
    blocks: int


@dataclass
class RankRequests:
    """What one rank reports."""

    requests: dict[str, RequestRecord] = field(default_factory=dict)
    steps: list[EngineStep] = field(default_factory=list)


class Requests:
    """What all ranks report. ``of_rank``: by rank."""

    def __init__(self) -> None:
        self.of_rank: dict[int, RankRequests] = {}

    def event(self, rank: int, name: str, event: str, tokens: int, at: float) -> None:
        """A request has come to ``event`` (:data:`EVENTS`) at ``at`` s. One that was not said to arrive arrives then."""
        requests = self.of_rank.setdefault(rank, RankRequests()).requests
        if event == "arrived":
            requests[name] = RequestRecord(name, tokens, at)
            return
        record = requests.setdefault(name, RequestRecord(name, 0, at))
        if event == "token":
            record.tokens += [at] * (tokens or 1)
        elif event == "preempted":
            record.preempted.append(at)
        else:
            record.ended = at

    def step(self, rank: int, at: float, *figures: int) -> None:
        """An engine has made a step: the fields of :class:`EngineStep`."""
        self.of_rank.setdefault(rank, RankRequests()).steps.append(EngineStep(at, *figures))

    def all(self) -> tuple[list[RequestRecord], list[EngineStep]]:
        """The requests, by arrival, and the steps of the engines that had them, by moment."""
        requests: dict[str, RequestRecord] = {}
        steps: list[EngineStep] = []
        for _, mine in sorted(self.of_rank.items()):
            if not mine.requests.keys() <= requests.keys() or not requests:
                steps += mine.steps
            requests = {**mine.requests, **requests}
        return sorted(requests.values(), key=lambda each: (each.arrived, each.name)), sorted(steps)
