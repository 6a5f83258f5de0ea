"""Programs give the same values, times and memory under every pair of switches, or a pair is refused in words.

Rows of a covering array: each row sets all switches and names a program, and every pair of levels that may go together, also of
a program and a level, is in one of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests.pairs.program import PROGRAMS
from tests.pairs.switches import DEFAULTS, REFUSED, SWITCHES, TIMES, Row, is_refused, levels

pytestmark = pytest.mark.usefixtures("started_warm")

ROOT = Path(__file__).parents[2]
"""Where what the programs share with other tests is imported from."""
WORLD = 4
SLOW = ("compiled", "checkpoint", "data_loader", "graph", "pipeline", "sharded", "symmetric_memory", "triton_kernel")
"""Programs that take many seconds a run: all of their rows are for `make test-long`, as those of the others, but for
the one with the most switches of each."""

FOLDED_TIMES = 0.01
"""Share by which times of folded runs may differ: links that several groups share carry what the groups that run send."""


COLUMNS: Mapping[str, Sequence[str]] = {
    "program": tuple(PROGRAMS),
    **{name: tuple(each) for name, each in SWITCHES.items()},
}


def _pairs(row: Row) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Those of levels in a row, or of the part of one that is chosen."""
    return set(combinations([(name, row[name]) for name in COLUMNS if name in row], 2))


def _rows() -> list[dict[str, str]]:
    """A covering array, chosen greedily.

    Of our own, since public generators lose pairs where some are refused.
    """
    everything = [
        (first, second)
        for (one, some), (other, more) in combinations(COLUMNS.items(), 2)
        for first, second in product(((one, each) for each in some), ((other, each) for each in more))
        if not is_refused(dict((first, second)))
    ]
    missing, rows = dict.fromkeys(everything), []
    while missing:
        row = dict(next(iter(missing)))
        for name in (each for each in COLUMNS if each not in row):
            allowed = [row | {name: level} for level in COLUMNS[name] if not is_refused(row | {name: level})]
            row = max(allowed, key=lambda begun: sum(pair in missing for pair in _pairs(begun)))
        for pair in _pairs(row):
            missing.pop(pair, None)
        rows.append(row)
    return rows


def _said(row: Row) -> str:
    return "-".join([row["program"], *(f"{name}={row[name]}" for name in SWITCHES if row[name] != DEFAULTS[name])])


def _run(program: str, row: Row, folder: Path) -> subprocess.CompletedProcess[str]:
    """A run in ``folder``; names that the program uses there are equally long in all of them, as are its messages."""
    chosen, world = list(levels(row)), 1 if program == "one_gpu" else WORLD
    return subprocess.run(
        [sys.executable, "-m", "kernbench", "run", "--system", "dgx_h100", "--nproc-per-node", str(world), "--json", "run.json",
         *(word for level in chosen for word in level.options), str(Path(__file__).with_name("program.py")), program,
         *(word for level in chosen for word in level.arguments)],
        capture_output=True, text=True, cwd=folder, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def _outcome(folder: Path) -> dict[int, dict[str, Any]]:
    """By rank that ran, what its program wrote."""
    return {int(each.stem): json.loads(each.read_text()) for each in folder.glob("[0-9].json")}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a program gives on its own, with the switches alone that times depend on."""

    @cache
    def found(program: str, times: tuple[str, ...]) -> Mapping[int, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(program)
        ended = _run(program, DEFAULTS | dict(zip(TIMES, times, strict=True)), folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return _outcome(folder)

    return found


def _params() -> list[Any]:
    rows = _rows()

    def switched(row: Row) -> int:
        return sum(row[name] != DEFAULTS[name] for name in SWITCHES)

    quick = [
        max((row for row in rows if row["program"] == each), key=switched) for each in PROGRAMS if each not in SLOW
    ]
    return [pytest.param(row, id=_said(row), marks=() if row in quick else pytest.mark.long) for row in rows]


@pytest.mark.parametrize("row", _params())
def test_a_row_of_switches_changes_neither_values_nor_times(row, plain, tmp_path):
    switches = {name: row[name] for name in SWITCHES}
    ended = _run(row["program"], switches, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found, wanted = _outcome(tmp_path), plain(row["program"], tuple(row[name] for name in TIMES))
    if row["data"] == "folded":
        assert found.keys() <= wanted.keys()
    else:
        assert found.keys() == wanted.keys()
    tolerance = FOLDED_TIMES if row["data"] == "folded" else 0
    for rank, seen in found.items():
        if row["data"] == "yes":
            assert seen["values"] == wanted[rank]["values"], rank
        assert seen["peak"] == wanted[rank]["peak"], rank
        assert seen["milliseconds"] == pytest.approx(wanted[rank]["milliseconds"], rel=tolerance, abs=0), rank
    for level in levels(switches):
        for name in level.outputs:
            assert (tmp_path / name).exists(), name


@pytest.mark.parametrize(
    ("pair", "words"), [pytest.param(*each, id="-".join(f"{k}={v}" for k, v in each[0].items())) for each in REFUSED]
)
def test_a_pair_that_does_not_go_together_is_refused_in_words(pair, words, tmp_path):
    row = DEFAULTS | pair
    ended = _run(row.pop("program", "objects"), row, tmp_path)
    assert ended.returncode != 0
    assert re.search(words, ended.stderr), ended.stderr
    assert not _outcome(tmp_path)
