"""ccl_sweep: every collective and algorithm, who is quickest, and what cannot serve."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kernbench.benches import ccl_sweep
from kernbench.cli import app
from kernbench.cost import collective_time


def sweep(*arguments: str):
    return CliRunner().invoke(ccl_sweep.command, list(arguments), catch_exceptions=False)


def test_a_table_json_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    numbers, picture = tmp_path / "sweep.json", tmp_path / "sweep.svg"
    result = sweep(
        "--system", "dgx_h100", "-b", "1K", "-e", "64M", "-f", "256", "--json", str(numbers), "--plot", str(picture)
    )
    assert result.exit_code == 0
    for collective in ccl_sweep.COLLECTIVES:
        assert f"# {collective}\n" in result.output
    assert "# left out: torus_allreduce" in result.output
    rows = json.loads(numbers.read_text())["rows"]
    assert {row["collective"] for row in rows} == set(ccl_sweep.COLLECTIVES)
    for row in rows:
        if row["algorithm"] == "auto" and row["collective"] not in ("gather", "scatter"):
            expected = collective_time("dgx_h100", row["collective"], row["size"], ranks=8, kind="kernel")
            assert row["seconds"] == pytest.approx(expected.seconds, rel=1e-6)
            assert row["busbw"] == pytest.approx(expected.busbw, rel=1e-6)
    text = picture.read_text()
    assert "all_to_all" in text
    assert "nvls_allreduce" in text


def test_crossovers_and_the_quickest():
    result = sweep(
        "--system", "dgx_h100", "--collectives", "all_reduce", "--algorithms", "one_shot_pull,two_shot_pull,ring_allreduce",
        "-b", "4K", "-e", "16M", "-f", "2",
    )  # fmt: skip
    marked = [line for line in result.output.splitlines() if " < " in line]
    assert len(marked) == 13  # one per size
    assert "one_shot_pull" in marked[0]
    crossings = [line for line in result.output.splitlines() if line.startswith("# from")]
    assert any("(before: one_shot_pull)" in line for line in crossings)


def test_what_is_wrong_is_said():
    assert "unknown collective 'gossip'" in sweep("--collectives", "gossip").output
    assert sweep("-b", "2M", "-e", "1M").exit_code == 2


def ccl(*arguments: str):
    return CliRunner().invoke(app, ["ccl", *arguments])


def test_the_ccl_command():
    listing = ccl("list", "--system", "sip8").output
    assert "* ring_allreduce" in listing
    assert "(auto" in ccl("list", "--system", "mi300x").output
    assert ccl("order", "recursive_doubling_allreduce").output.endswith("((3+2)+(1+0))\n")
    assert "4 members, root 3: 2 rounds" in ccl("check", "kernbench.ccl.algorithms.binomial_reduce").output
    assert isinstance(ccl("order", "ring_allgather").exception, Exception)
