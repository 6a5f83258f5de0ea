"""What a run can be passed, and which of it does not go together.

A level of a switch is the words of the command line that choose it; those of the program stand behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Level(NamedTuple):
    """One way to set a switch.

    Attributes:
        options: of ``kernbench run``.
        arguments: of the program.
        outputs: files that are there after the run.
    """

    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


OFF = Level()

SWITCHES: Mapping[str, Mapping[str, Level]] = {
    "isolation": {"carrier": OFF, "process": Level(("--isolation", "process"))},
    "data": {"yes": OFF, "no": Level(("--no-data",)), "folded": Level(("--no-data", "--ranks", "auto"))},
    "races": {"off": OFF, "error": Level(("--races",)),
              "written": Level(("--races-output", "races.json"), (), ("races.json",))},
    "memory": {"strong": OFF, "weak": Level(("--memory", "weak"))},
    "checks": {"off": OFF, "on": Level((), ("--checks",))},
    "profiler": {"off": OFF, "on": Level((), ("--profiler",))},
    "jitter": {"none": OFF, "some": Level(("--jitter", "0.05", "--straggler", "0:1.5"))},
    "schedule": {"none": OFF, "random": Level(("--schedule", "random:3"))},
    "limit": {"device": OFF, "given": Level(("--memory-limit", "8GB")), "off": Level(("--memory-limit", "off"))},
    "fill": {"off": OFF, "nan": Level(("--fill-uninitialized", "nan"))},
    "trace": {"off": OFF, "json": Level(("--trace", "trace.json"), (), ("trace.json",))},
    "report": {"off": OFF, "page": Level(("--report", "report.html"), (), ("report.html",))},
    "recorder": {"off": OFF, "on": Level(("--flight-recorder", "flights"), (), ("flights",))},
    "plugin": {"none": OFF, "hooks": Level(("--plugin", str(Path(__file__).with_name("listening.py"))))},
    "steps": {"all": OFF, "more": Level(("--steps", "100"))},
    "exact": {"off": OFF, "on": Level(("--exact-dtype",))},
}  # fmt: skip
"""By switch, its levels by name; the first is the default."""

Row = Mapping[str, str]
"""By switch, the level."""

DEFAULTS: Row = {name: next(iter(levels)) for name, levels in SWITCHES.items()}

TIMES = ("jitter", "schedule")
"""Switches that a run's times depend on. No other one changes a time."""

REFUSED: tuple[tuple[Row, str], ...] = (
    ({"data": "no", "memory": "weak"}, r"memory='weak' is about values: it needs data"),
    ({"data": "folded", "memory": "weak"}, r"memory='weak' is about values: it needs data"),
    (
        {"program": "symmetric_memory", "isolation": "process"},
        r"symmetric memory: the signal pad of rank \d is out of reach: ranks that are processes",
    ),
    ({"isolation": "process", "memory": "weak"}, r"isolation='process': what nothing orders .* with memory='weak'"),
    ({"isolation": "process", "data": "folded"}, r"ranks='auto' needs isolation='carrier'"),
    ({"isolation": "process", "schedule": "random"}, r"isolation='process': ranks that are processes have no schedule"),
    ({"isolation": "process", "plugin": "hooks"}, r"isolation='process': a plugin .*: use isolation='carrier'"),
    ({"isolation": "process", "races": "error"}, r"isolation='process': what nothing orders is .* with races"),
    ({"isolation": "process", "races": "written"}, r"isolation='process': what nothing orders is .* with races"),
)
"""Pairs that do not go together, of a program and a level, too, and the words that refuse them."""


def is_refused(row: Row) -> bool:
    """Whether one of the pairs is in ``row``, which may be the beginning of one."""
    return any(all(row.get(name) == level for name, level in pair.items()) for pair, _ in REFUSED)


def levels(row: Row) -> Iterator[Level]:
    """Of a row."""
    return (SWITCHES[name][level] for name, level in row.items())
