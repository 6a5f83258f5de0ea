"""Findings in files: what was found and what is excused, with lines that a code host can show."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.order import check_findings_path, write_findings
from tests.order.test_streams import races_of

HERE = Path(__file__)


def _program() -> None:
    x = torch.ones(8, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    x.sum()  # a race
    x.add_(1)  # kernbench: ordered: nobody reads it
    work.wait()
    torch.empty(4, device="cuda").tolist()  # a look


def _line(mark: str) -> int:
    lines = HERE.read_text().splitlines()
    (found,) = [number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return found


def _written(path: Path, name: str) -> Any:
    write_findings(str(path / name), races_of(_program))
    return json.loads((path / name).read_text())


def test_sarif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE.parent)
    (run,) = _written(tmp_path, "findings.sarif")["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert {result["ruleId"] for result in run["results"]} == set(rules)
    race, look = run["results"][:2]
    places = [each["physicalLocation"] for each in (*race["locations"], *look["locations"])]
    assert [place["region"]["startLine"] for place in places] == [_line("a race"), _line("a look")]
    assert {place["artifactLocation"]["uri"] for place in places} == {HERE.name}
    assert race["message"]["text"].startswith("race: read after write")
    assert [each["message"]["text"] for each in race["relatedLocations"]] == [
        "rank 0, comm: all_reduce writes it", "rank 0, compute: sum reads it"
    ]  # fmt: skip
    assert look["ruleId"] == "read-of-unwritten-memory"
    excused = [result["suppressions"] for result in run["results"][2:]]
    assert excused
    assert all(each == [{"kind": "inSource", "justification": "nobody reads it"}] for each in excused)
    assert "suppressions" not in race
    monkeypatch.chdir(tmp_path)
    (run,) = _written(tmp_path, "elsewhere.sarif")["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == HERE.as_uri()


def test_json(tmp_path: Path) -> None:
    found = _written(tmp_path, "findings.json")
    race, look = found["found"]
    assert (race["kind"], race["count"]) == ("read after write", 2)
    assert [access["operation"] for access in look["accesses"]] == ["empty", "tolist"]
    assert look["accesses"][1]["line"] == _line("a look")
    assert {each["excuse"] for each in found["excused"]} == {"nobody reads it"}


def test_a_name_that_says_nothing(tmp_path: Path) -> None:
    for wrong in ("findings.txt", os.path.join(tmp_path, "nowhere", "findings.sarif")):
        with pytest.raises(kernbench.ConfigError, match="--races-output"):
            check_findings_path(wrong)
