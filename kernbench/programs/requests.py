"""Requests for a serving engine: when they arrive, what they bring, and how much they want; from a file, or drawn.

A file has one JSON object a line: ``arrival`` (seconds from the start, 0 if it is left out), ``prompt_tokens`` (how many) or
``prompt`` (the tokens), ``output_tokens``, and ``name`` (the line's number, else).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kernbench.errors import ConfigError
from kernbench.input_files import MOST_OF_A_TRACE, parse_json, read_text, shortened, shown_path, whole_number

FORMS = "FILE.jsonl, poisson:4/s,in=1024,out=256,n=200,seed=0, burst:in=1024,out=256,n=64 or none"
"""What ``--requests`` takes. A length may be a range, ``in=512-2048``, of which each length is as likely as any other."""

MOST_REQUESTS, MOST_TOKENS, MOST_PROMPTS = 10**6, 10**7, 2 * 10**7
"""Requests, tokens of one, and tokens of all prompts, that there may be."""

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
        ConfigError: it is none of these forms, or the file cannot be read.
    """
    if text == "none":
        return []
    kind, colon, rest = text.partition(":")
    if colon and kind in ("poisson", "burst"):
        return list(_drawn(shortened(text), kind, rest.split(","), vocabulary))
    if not text.endswith(".jsonl"):
        raise ConfigError(f"--requests {shown_path(text)}: expected {FORMS}")
    return sorted(_read(text, vocabulary), key=lambda request: request.arrival)


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
        expected = "a rate first, such as poisson:4/s, from 0.000001 to 1e9"
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)/s", parts[0], re.ASCII)
        rate = float(match[1]) if match is not None else 0.0
        if not 1e-6 <= rate <= 1e9:
            raise ConfigError(f"--requests {text}: expected {expected}; forms are {FORMS}")
        parts = parts[1:]
    named = dict(part.partition("=")[::2] for part in parts if part)
    if unknown := [name for name in named if name not in _GIVEN]:
        raise ConfigError(f"--requests {text}: {shortened(unknown[0])} is none of {', '.join(_GIVEN)}")
    given = {**_GIVEN, **named}
    if whole_number(given["seed"]) is None:
        raise ConfigError(f"--requests {text}: seed={shortened(given['seed'])}: expected a whole number")
    count, *_ = _range(text, given, "n", MOST_REQUESTS, "a whole number")
    lengths = [
        _range(text, given, name, MOST_TOKENS, "a number of tokens, or a range, 512-2048,") for name in ("in", "out")
    ]
    if count * lengths[0][1] > MOST_PROMPTS:
        raise ConfigError(f"--requests {text}: expected at most {MOST_PROMPTS:,} tokens of all prompts")
    drawn = random.Random(f"{given['seed']} arrivals and lengths")
    now = 0.0
    for number in range(count):
        now += drawn.expovariate(rate) if rate else 0.0
        begin, wanted = (drawn.randint(*length) for length in lengths)
        yield ServedRequest(str(number), now, _tokens(f"{given['seed']} {number}", begin, vocabulary), wanted)


def _range(text: str, given: dict[str, str], name: str, most: int, expected: str) -> tuple[int, int]:
    """The least and the most that ``name`` is given as: of one number both are that."""
    match = re.fullmatch(r"0*(\d{1,9})(?:-0*(\d{1,9}))?", given[name], re.ASCII)
    least, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
    if not 0 < least <= last <= most or (name == "n" and least != last):
        raise ConfigError(
            f"--requests {text}: {name}={shortened(given[name])}: expected {expected} above 0 and of at most {most:,}"
        )
    return least, last


def _tokens(seed: str, count: int, vocabulary: int) -> tuple[int, ...]:
    drawn = random.Random(seed)
    return tuple(drawn.choices(range(vocabulary), k=count))


def _read(path: str, vocabulary: int) -> Iterator[ServedRequest]:
    lines = read_text(path, MOST_OF_A_TRACE).split("\n")
    if len(lines) > MOST_REQUESTS:
        raise ConfigError(f"{shown_path(path)}: more than {MOST_REQUESTS:,} requests")
    tokens = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            request = _request(f"{shown_path(path)}, line {number}", line, number, vocabulary)
            tokens += len(request.prompt)
            if tokens > MOST_PROMPTS:
                raise ConfigError(
                    f"{shown_path(path)}, line {number}: expected at most {MOST_PROMPTS:,} tokens of all prompts"
                )
            yield request


def _request(where: str, line: str, number: int, vocabulary: int) -> ServedRequest:
    said: Any = parse_json(line.encode(), where)
    if not isinstance(said, dict):
        raise ConfigError(f"{where}: expected an object with prompt_tokens (or prompt) and output_tokens")
    prompt, wanted, arrival = said.get("prompt"), said.get("output_tokens"), said.get("arrival", 0.0)
    count = said.get("prompt_tokens", 0) if prompt is None else 0
    if prompt is None and _is_count(count):
        prompt = _tokens(where.rpartition(" ")[2], count, vocabulary)
    valid = isinstance(prompt, list | tuple) and prompt and all(_is_token(token, vocabulary) for token in prompt)
    if not (valid and _is_count(wanted) and _is_time(arrival)):
        raise ConfigError(
            f"{where}: expected prompt_tokens (or prompt, a list of tokens below {vocabulary:,}) and output_tokens, whole "
            f"numbers above 0 and of at most {MOST_TOKENS:,}, and arrival, seconds of at least 0"
        )
    assert prompt is not None
    assert wanted is not None
    return ServedRequest(shortened(said.get("name", number)), float(arrival), tuple(prompt), wanted)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_TOKENS


def _is_token(value: object, vocabulary: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocabulary


def _is_time(value: object) -> bool:
    """Within what virtual time has: a trace's limit is days, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 4e6
