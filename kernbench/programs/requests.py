"""Requests for a serving engine: when they arrive, what they bring, and how much they want; from a file, or drawn.

A file has one JSON object a line: ``arrival`` (seconds from the start, 0 if it is left out), ``prompt_tokens`` (how many) or
``prompt`` (the tokens), ``output_tokens``, and ``name`` (the line's number, else).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FORMS = "FILE.jsonl, poisson:4/s,in=1024,out=256,n=200,seed=0, burst:in=1024,out=256,n=64 or none"
"""What ``--requests`` takes. A length may be a range, ``in=512-2048``, of which each length is as likely as any other."""

_GIVEN = {"in": "1024", "out": "256", "n": "200", "seed": "0"}


@dataclass(frozen=True)
class ServedRequest:
    """One request.

    Attributes:
        name: of it.
        arrival: seconds from the start.
        prompt: tokens that it brings.
        wanted: tokens that are to be generated, at least 1.
    """

    name: str
    arrival: float
    prompt: tuple[int, ...]
    wanted: int


def requests_of(text: str, vocabulary: int) -> list[ServedRequest]:
    """The requests that ``text`` names (:data:`FORMS`), by arrival; tokens are drawn below ``vocabulary``, from the seed.

    Raises:
        ValueError: it is none of these forms, or the file cannot be read.
    """
    if text == "none":
        return []
    kind, colon, rest = text.partition(":")
    if colon and kind in ("poisson", "burst"):
        return list(_drawn(text, kind, rest.split(","), vocabulary))
    if not text.endswith(".jsonl"):
        raise ValueError(f"--requests {text}: expected {FORMS}")
    return sorted(_read(Path(text), vocabulary), key=lambda request: request.arrival)


def limited(requests: Iterable[ServedRequest], longest: int) -> list[ServedRequest]:
    """The requests, cut to what a model can hold: ``longest`` tokens with what is generated."""
    cut = []
    for each in requests:
        prompt = each.prompt[: max(longest - each.wanted, 1)]
        cut.append(replace(each, prompt=prompt, wanted=min(each.wanted, longest - len(prompt))))
    return cut


def _drawn(text: str, kind: str, parts: list[str], vocabulary: int) -> Iterator[ServedRequest]:
    rate = 0.0
    if kind == "poisson":
        match = re.fullmatch(r"([\d.]+)/s", parts[0])
        if match is None or not float(match[1]) > 0:
            raise ValueError(f"--requests {text}: expected a rate first, such as poisson:4/s; forms are {FORMS}")
        rate, parts = float(match[1]), parts[1:]
    named = dict(part.partition("=")[::2] for part in parts if part)
    if unknown := [name for name in named if name not in _GIVEN]:
        raise ValueError(f"--requests {text}: {unknown[0]} is none of {', '.join(_GIVEN)}")
    given = {**_GIVEN, **named}
    drawn = random.Random(f"{given['seed']} arrivals and lengths")
    now = 0.0
    for number in range(_whole(text, given, "n")):
        now += drawn.expovariate(rate) if rate else 0.0
        begin, wanted = (drawn.randint(*_range(text, given, name)) for name in ("in", "out"))
        yield ServedRequest(str(number), now, _tokens(f"{given['seed']} {number}", begin, vocabulary), wanted)


def _whole(text: str, given: dict[str, str], name: str) -> int:
    if not given[name].isdigit() or not int(given[name]):
        raise ValueError(f"--requests {text}: {name}={given[name]}: expected a whole number above 0")
    return int(given[name])


def _range(text: str, given: dict[str, str], name: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", given[name])
    if match is None or not 0 < int(match[1]) <= int(match[2] or match[1]):
        raise ValueError(f"--requests {text}: {name}={given[name]}: expected a number of tokens, or a range, 512-2048")
    return int(match[1]), int(match[2] or match[1])


def _tokens(seed: str, count: int, vocabulary: int) -> tuple[int, ...]:
    drawn = random.Random(seed)
    return tuple(drawn.choices(range(vocabulary), k=count))


def _read(path: Path, vocabulary: int) -> Iterator[ServedRequest]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--requests {path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _request(f"{path}, line {number}", line, number, vocabulary)


def _request(where: str, line: str, number: int, vocabulary: int) -> ServedRequest:
    try:
        said: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"--requests {where}: {error}") from None
    if not isinstance(said, dict):
        raise ValueError(f"--requests {where}: expected an object with prompt_tokens (or prompt) and output_tokens")
    prompt, wanted, arrival = said.get("prompt"), said.get("output_tokens"), said.get("arrival", 0.0)
    count = said.get("prompt_tokens", 0) if prompt is None else 0
    if prompt is None and _is_count(count):
        prompt = _tokens(where.rpartition(" ")[2], count, vocabulary)
    valid = isinstance(prompt, list | tuple) and prompt and all(isinstance(token, int) for token in prompt)
    if not (valid and _is_count(wanted) and isinstance(arrival, int | float) and arrival >= 0):
        raise ValueError(
            f"--requests {where}: expected prompt_tokens (or prompt, a list of tokens) and output_tokens, whole numbers above "
            "0, and arrival, seconds of at least 0"
        )
    assert prompt is not None
    assert wanted is not None
    return ServedRequest(str(said.get("name", number)), float(arrival), tuple(prompt), wanted)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
