"""What a serving engine achieved, of the requests and steps that it reported (:mod:`.serving_requests`).

TTFT, time to first token: from a request's arrival to when the engine has its first token. TPOT, time per output token: from
the first token to the last, over the tokens after the first. ITL, inter-token latency: each time between two tokens, of all
requests together. Latency: from arrival to the last token. As vLLM's ``bench serve`` has them; percentiles by nearest rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil

from pydantic import BaseModel, ConfigDict, Field

from kernbench.errors import ConfigError
from kernbench.input_files import shortened
from kernbench.simulation.ranks.serving_requests import EngineStep, RequestRecord, Requests

MEASURES = ("ttft", "tpot", "itl", "latency")
"""What limits may be stated of, and distributions are given of."""


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Distribution(_Figures):
    """Of some times, virtual seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Distribution | None:
        """Of some times; None if there are none."""
        if not seconds:
            return None
        found = sorted(seconds)
        p50, p90, p99 = (found[max(0, ceil(share * len(found)) - 1)] for share in (0.5, 0.9, 0.99))
        return cls(count=len(found), mean=sum(found) / len(found), p50=p50, p90=p90, p99=p99, most=found[-1])


class ResultOfRequest(_Figures):
    """One request. Virtual seconds; null: it has not come to that."""

    name: str
    prompt_tokens: int
    generated_tokens: int
    arrived: float
    first_token: float | None
    last_token: float | None
    ended: bool
    preemptions: int


class ResultOfEngineStep(_Figures):
    """One step of an engine, as it stood at its end, ``at`` virtual seconds."""

    at: float
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    blocks_used: int


class Goodput(_Figures):
    """Requests that stayed within all limits."""

    limits: dict[str, float] = Field(description="seconds, by measure")
    requests: int
    share: float
    requests_per_second: float


class ServingResult(_Figures):
    """What an engine achieved. Rates are over ``seconds``, from the first arrival to the last token."""

    requests: int
    ended: int
    seconds: float
    prompt_tokens: int
    generated_tokens: int
    preemptions: int
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    latency: Distribution | None
    requests_per_second: float
    generated_tokens_per_second: float
    tokens_per_second: float = Field(description="of prompts and generated ones")
    generated_tokens_per_second_per_gpu: float
    steps: int
    prefill_tokens_per_step: float
    decode_tokens_per_step: float
    blocks: int = Field(description="of the cache; 0: not reported")
    most_blocks_used: int
    goodput: Goodput | None
    of_requests: tuple[ResultOfRequest, ...]
    of_steps: tuple[ResultOfEngineStep, ...]


def limits_of(text: str) -> dict[str, float]:
    """The limits that ``text`` states, ``"ttft=0.5s,tpot=50ms"``, in seconds. Raises ConfigError if it is none."""
    limits = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        match = re.fullmatch(r"([\d.]+)(ms|s)", value.strip())
        if name.strip() not in MEASURES or match is None or not match[1].replace(".", "", 1).isdigit():
            raise ConfigError(
                f"--goodput {shortened(text)}: expected limits of {', '.join(MEASURES)}, such as ttft=0.5s,tpot=50ms"
            )
        limits[name.strip()] = float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)
    return limits


def times_of(record: RequestRecord) -> dict[str, float]:
    """What a request took, by measure, as far as it has come; its ITL is the longest."""
    tokens = record.tokens
    if not tokens:
        return {}
    found = {"ttft": tokens[0] - record.arrived, "latency": tokens[-1] - record.arrived}
    if len(tokens) > 1:
        found["tpot"] = (tokens[-1] - tokens[0]) / (len(tokens) - 1)
        found["itl"] = max(later - sooner for sooner, later in pairwise(tokens))
    return found


def serving_result(requests: Requests, gpus: int, limits: Mapping[str, float] | None = None) -> ServingResult | None:
    """What an engine achieved; None if none has reported requests.

    Args:
        requests: as ranks reported them.
        gpus: of the whole run.
        limits: of goodput, seconds by measure.
    """
    records, steps = requests.all()
    if not records:
        return None
    took = [times_of(record) for record in records]
    last = max((record.tokens[-1] for record in records if record.tokens), default=records[0].arrived)
    seconds = last - min(record.arrived for record in records)
    generated, given = sum(len(record.tokens) for record in records), sum(record.prompt for record in records)
    ended = [record.ended is not None for record in records]

    def rate(count: int) -> float:
        return count / seconds if seconds > 0 else 0.0

    def distribution(name: str) -> Distribution | None:
        return Distribution.of([each[name] for each in took if name in each])

    between = [later - sooner for record in records for sooner, later in pairwise(record.tokens)]
    return ServingResult(
        requests=len(records), ended=sum(ended), seconds=seconds, prompt_tokens=given, generated_tokens=generated,
        preemptions=sum(len(record.preempted) for record in records), ttft=distribution("ttft"), tpot=distribution("tpot"),
        itl=Distribution.of(between), latency=distribution("latency"), requests_per_second=rate(sum(ended)),
        generated_tokens_per_second=rate(generated), tokens_per_second=rate(generated + given),
        generated_tokens_per_second_per_gpu=rate(generated) / max(gpus, 1), steps=len(steps),
        prefill_tokens_per_step=sum(step.prefill for step in steps) / max(len(steps), 1),
        decode_tokens_per_step=sum(step.decode for step in steps) / max(len(steps), 1),
        blocks=max((step.blocks for step in steps), default=0),
        most_blocks_used=max((step.blocks_used for step in steps), default=0),
        goodput=_goodput(limits, took, ended, rate) if limits else None,
        of_requests=tuple(map(_of_request, records)), of_steps=tuple(map(_of_step, steps)),
    )  # fmt: skip


def _goodput(
    limits: Mapping[str, float], took: Sequence[Mapping[str, float]], ended: Sequence[bool], rate: object
) -> Goodput:
    assert callable(rate)
    good = sum(
        whole and all(each.get(name, 0.0) <= limit for name, limit in limits.items())
        for each, whole in zip(took, ended, strict=True)
    )
    return Goodput(limits=dict(limits), requests=good, share=good / len(took), requests_per_second=rate(good))


def _of_request(record: RequestRecord) -> ResultOfRequest:
    return ResultOfRequest(
        name=record.name, prompt_tokens=record.prompt, generated_tokens=len(record.tokens), arrived=record.arrived,
        first_token=record.tokens[0] if record.tokens else None, last_token=record.tokens[-1] if record.tokens else None,
        ended=record.ended is not None, preemptions=len(record.preempted),
    )  # fmt: skip


def _of_step(step: EngineStep) -> ResultOfEngineStep:
    return ResultOfEngineStep(
        at=step.at, prefill_tokens=step.prefill, decode_tokens=step.decode, running=step.running, waiting=step.waiting,
        blocks_used=step.blocks_used,
    )  # fmt: skip
