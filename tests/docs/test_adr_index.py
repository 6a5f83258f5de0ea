"""Every decision record has the form, and their index is current (docs/tools/adr_index.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.tools import load_tool

tool = load_tool("adr_index")

RECORD = """\
# 0001. Ships float

- Status: accepted
- Date: 2026-11-20

## Context
Water.

## Decision
Wood.

## Consequences
Worms.
"""


def test_records_have_the_form_and_the_index_is_current() -> None:
    assert (ROOT / "adr/README.md").read_text(encoding="utf-8") == tool.index(), "run python docs/tools/adr_index.py"
    assert len(tool.read_all()) == len(list((ROOT / "adr").iterdir())) - 1, (
        "adr/ holds records and their index, nothing else"
    )


def test_a_row_of_the_index(tmp_path: Path) -> None:
    (tmp_path / "0001-ships-float.md").write_text(RECORD.replace("accepted", "superseded by 0002"))
    (tmp_path / "0002-ships-fly.md").write_text(RECORD.replace("0001. Ships float", "0002. Ships fly"))
    rows = tool.index(tmp_path).splitlines()[-2:]
    assert rows == [
        "| 0001 | [Ships float](0001-ships-float.md) | superseded by 0002 | 2026-11-20 |",
        "| 0002 | [Ships fly](0002-ships-fly.md) | accepted | 2026-11-20 |",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("0001.", "0001:", r"expected '# NNNN\. Title'"),
        ("accepted", "proposed", r"expected '# NNNN\. Title'"),
        ("- Date: 2026-11-20\n", "", r"expected '# NNNN\. Title'"),
        ("0001.", "0002.", "its title has the number 0002"),
        ("2026-11-20", "2026-11-31", "day is out of range"),
        ("## Decision\nWood.\n", "", r"its sections are \['Context', 'Consequences'\]"),
        ("Wood.\n\n", "", "none empty"),
        ("accepted", "superseded by 0007", "superseded by 0007, which is not there"),
    ],
)
def test_a_record_without_the_form_is_named(tmp_path: Path, old: str, new: str, problem: str) -> None:
    (tmp_path / "0001-ships-float.md").write_text(RECORD.replace(old, new))
    with pytest.raises(ValueError, match=problem):
        tool.index(tmp_path)


def test_a_number_is_given_once(tmp_path: Path) -> None:
    for name in ("0001-ships-float.md", "0001-ships-sink.md"):
        (tmp_path / name).write_text(RECORD)
    with pytest.raises(ValueError, match="another record's too"):
        tool.read_all(tmp_path)
