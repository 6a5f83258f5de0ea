"""What the program of a sweep returns, or how else it ends: in the tables and the plot, or refused with a line."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.sweep import sweep

pytest.importorskip("matplotlib")


def returns(ctx: kernbench.RuntimeContext, kind: str) -> Any:
    if kind == "exits":
        sys.exit("enough")
    if kind == "raises":
        raise ValueError("no text: \udcff")
    return {
        "odd": {"te\ud800xt": "a\udcffb", "math": r"$\frac"},
        "edges": {"n": 2**63 - 1, "zero": 0, "nan": float("nan")},
        "big": {"n": 2**63},
        "key": {3: 1},
        "list": [1],
        "none": None,
    }[kind]


def test_other_things_than_numbers_and_text_are_refused(tmp_path: Path) -> None:
    kinds = ["odd", "edges", "big", "key", "list", "none", "exits", "raises"]
    result = sweep({"program": returns, "axes": {"kind": kinds}}, output=tmp_path, jobs=0)
    said = {row["kind"]: row["error"] for row in result.rows}
    assert said["odd"] == said["edges"] == said["none"] == ""
    assert said["big"] == "ConfigError: the program returned 'n', a number of 64 bits; expected 63 at most"
    assert said["key"] == "ConfigError: the program returned a metric whose name is int; expected text"
    assert said["list"] == "ConfigError: the program returned list; expected a mapping from names to metrics"
    assert said["exits"].startswith("SystemExit: enough (")
    assert said["raises"].startswith(r"ValueError: no text: \udcff (")
    with (tmp_path / "table.csv").open() as file:
        odd, edges, *_ = csv.DictReader(file)
    assert (odd[r"te\ud800xt"], odd["math"]) == (r"a\udcffb", r"$\frac")
    assert (edges["n"], edges["nan"]) == (str(2**63 - 1), "nan")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("y", ["math", "zero", "n", "nan"])
def test_a_plot_has_logarithmic_axes_where_all_values_are_above_zero(tmp_path: Path, y: str) -> None:
    plot = {"x": "kind", "y": y, "log": True}
    drawn = sweep({"program": returns, "axes": {"kind": ["odd", "edges"]}, "plot": plot}, output=tmp_path, jobs=0)
    assert "</svg>" in drawn.files[-1].read_text()
