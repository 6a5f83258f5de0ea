"""Events of Chrome trace files, as they are read: complete ones (``"ph": "X"``), and the names of processes and threads.

Other phases, and fields that are not named here, are left alone: such files are written by many programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import Required, TypedDict

from kernbench.errors import ConfigError
from kernbench.input_files import shortened
from kernbench.topology.problems import describe

_DEEPEST = 8
_LATEST = 1e16
"""Microseconds: profilers count from 1970."""

LONGEST = 4e12
"""Microseconds of a run, and of an event: 46 days."""

Moment = Annotated[float, Field(ge=-_LATEST, le=_LATEST, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0, le=LONGEST, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Id = Whole | str

Arguments = TypedDict(
    "Arguments",
    {
        "bytes": Annotated[int, Field(ge=0, lt=2**63)],
        "low us": Duration,
        "high us": Duration,
        "op": str | None,
        "group": Id | None,
        "sequence": Whole,
        "stack": list[str] | None,
        "collective": str,
        "links": list[Any],
        "Process Group Name": Id,
        "Collective name": str,
        "stream": Id,
    },
    total=False,
)
"""``args`` of an event as far as they are computed with; others are shown (:func:`shown_arguments`).

``bytes``: payload. ``low us``, ``high us``: of the duration. ``op``, ``group``, ``sequence``: a collective's members have the
same. ``stack``: lines of the program, the outermost first. ``collective``, ``links``: of a message. The rest as PyTorch's
profiler writes them.
"""
Arguments.__pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[attr-defined]


class Slice(TypedDict, total=False):
    """An event that took time. Microseconds; ``pid`` and ``tid`` say on which track."""

    ts: Required[Moment]
    dur: Duration
    name: str
    cat: str
    pid: Id
    tid: Id
    args: Arguments | None


class TrackNameArguments(TypedDict):
    """``args`` of a name."""

    name: str


class TrackName(TypedDict, total=False):
    """The name of a process or a thread."""

    name: Required[str]
    pid: Required[Id]
    tid: Id
    args: Required[TrackNameArguments]


_NAMES = ("process_name", "thread_name")
_SLICE, _NAME = TypeAdapter(Slice), TypeAdapter(TrackName)
_COMPUTED_WITH = frozenset({"bytes", "low us", "high us"})


def shown_arguments(event: Slice, file: str) -> dict[str, object]:
    """``args`` that nothing is computed with. Raises ConfigError for what has no place on a page: see :func:`_plain`."""
    try:
        return {
            key: value if type(value) is str else _plain(value)
            for key, value in (event.get("args") or {}).items()
            if key not in _COMPUTED_WITH
        }
    except ValueError as error:
        name = shortened(event.get("name", ""))
        raise ConfigError(f"{file}: args of an event {name!r}: a value is not {error}") from None


def _plain(value: Any, depth: int = 0) -> Any:
    """A value of JSON whose numbers are finite and of at most 64 bits, with few levels of lists and mappings."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError("a number of at most 64 bits")
    if isinstance(value, (list, dict)):
        if depth == _DEEPEST:
            raise ValueError(f"one of at most {_DEEPEST} levels of lists and mappings")
        for item in value.values() if isinstance(value, dict) else value:
            _plain(item, depth + 1)
    return value


def slices_of(events: Sequence[Any], file: str) -> Iterator[Slice]:
    """The events that took time, in the order of the file. Raises ConfigError naming file and place."""
    for place, event in enumerate(events):
        if _phase(event, place, file) == "X":
            yield _read(_SLICE, event, place, file)


def names_of(events: Sequence[Any], file: str) -> Iterator[TrackName]:
    """The names of processes and threads. Raises ConfigError naming file and place."""
    for place, event in enumerate(events):
        if _phase(event, place, file) == "M" and event.get("name") in _NAMES:
            yield _read(_NAME, event, place, file)


def _phase(event: Any, place: int, file: str) -> Any:
    if not isinstance(event, dict):
        raise ConfigError(
            f"{file}: traceEvents.{place}: found {describe(event)}; expected a mapping of an event's fields"
        )
    return event.get("ph")


def _read(adapter: TypeAdapter[Any], event: Any, place: int, file: str) -> Any:
    try:
        return adapter.validate_python(event)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(shortened(part) for part in ("traceEvents", place, *first["loc"]))
        expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        found = "nothing" if first["type"] == "missing" else describe(first["input"])
        wanted = "a value" if first["type"] == "missing" else shortened(expected, 200)
        raise ConfigError(f"{file}: {where}: found {found}; expected {wanted}") from None
