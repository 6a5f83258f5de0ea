"""What speed benches print and keep, and two trees in turns; on benches that need no clock."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kernbench.benches import (
    compare,
    cost_speed,
    distributed_speed,
    order_cost,
    report_speed,
    runtime_speed,
    speed_table,
    tp_speed,
    wide_products,
)
from kernbench.benches.harness import history
from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turn_worker import TurnWorker
from kernbench.benches.harness.turns import Budget, Comparison, Side, measure
from kernbench.errors import ConfigError

ROOT = Path(__file__).parents[2]
TOY = '''"""A bench whose seconds are what a tree says they are."""
import kernbench
from kernbench.benches.harness.turns import Comparison, Side

def broken():
    raise ValueError("not with this tree")

def figures():
    print("this does not disturb the replies")
    return [
        Comparison("speed", "ms", lambda: {"kernbench": Side(lambda: kernbench.SECONDS), "peer": Side(broken)}),
        Comparison("rest", "ms", lambda: {"kernbench": Side(lambda: 3.0, lambda: 1.0)}),
        Comparison("new", "ms", lambda: {"kernbench": Side(lambda: kernbench.NEW)}),
    ]
'''


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """A repository with a toy bench, this harness, and a revision ``old`` before the one that is checked out."""
    if shutil.which("git") is None:
        pytest.skip("trees of two revisions need git")
    root = tmp_path / "repository"
    (root / "kernbench" / "benches" / "harness").mkdir(parents=True)
    for name in ("__init__", "harness/__init__", "harness/turns", "harness/turn_worker"):
        shutil.copy(ROOT / "kernbench" / "benches" / f"{name}.py", root / "kernbench" / "benches" / f"{name}.py")
    (root / "kernbench" / "benches" / "toy.py").write_text(TOY)
    (root / "configs").mkdir()
    git(root, "init", "-q")
    for tag, text in (("old", "SECONDS = 2.0\n"), ("now", "SECONDS = 1.0\nNEW = 1.0\n")):
        (root / "kernbench" / "__init__.py").write_text(text)
        git(root, "add", "-A")
        git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", tag)
        git(root, "tag", tag)
    return root


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout


@click.command()
@speed_options
@click.option("--seconds-of-ours", type=float, default=1.0)
def toy(speed: SpeedRun, seconds_of_ours: float) -> None:
    """A bench."""
    sides = {"kernbench": Side(lambda: seconds_of_ours), "torch": Side(lambda: 2.0), "gone": Side(lambda: 1 // 0)}
    speed.run("toy", [
        Comparison("product [8]", "ms", lambda: sides, {"torch": 0.75}),
        Comparison("memory", "KiB", lambda: {"kernbench": Side(lambda: 4096.0)}, limit=3.0),
    ])  # fmt: skip


def test_a_table_json_and_history(tmp_path: Path) -> None:
    kept, figures = tmp_path / "deep" / "history.jsonl", tmp_path / "figures.json"
    kept.parent.mkdir()
    arguments = ["--rounds", "4", "--seconds", "0", "--history", str(kept)]
    for _ in range(2):
        result = CliRunner().invoke(toy, [*arguments, "--json", str(figures)], catch_exceptions=False)
    assert "1e+03 ms" in result.output
    assert "reached" in result.output
    assert "ZeroDivisionError" in result.output
    (product, memory) = json.loads(figures.read_text())
    assert product["ratios"] == {"torch": [0.5, 0.5, 0.5]}
    assert product["sides"]["torch"] == {"minimum": 2000.0, "median": 2000.0, "spread": 0.0}
    assert (product["verdicts"], memory["verdicts"]) == ({"torch": "reached"}, {"": "missed"})
    assert memory["value"] == [4.0, 4.0, 4.0]
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["figure"] for line in lines] == ["product [8]", "memory"] * 2
    assert lines[0]["bench"] == "toy"
    assert lines[0]["cpu"]
    assert {key: lines[0][key] for key in product} == product


def test_figures_by_parts_of_their_names(tmp_path: Path) -> None:
    result = CliRunner().invoke(toy, ["--only", "mem", "--rounds", "4", "--no-history"])
    assert "memory" in result.output
    assert "product" not in result.output
    result = CliRunner().invoke(toy, ["--only", "nothing", "--no-history"])
    assert result.exit_code == 2
    assert "there are 'product [8]', 'memory'" in result.output


def test_history_says_which_tree(trees: Path) -> None:
    head = git(trees, "rev-parse", "HEAD").strip()
    assert history.revision(trees) == {"commit": head, "dirty": False}
    (trees / "kernbench" / "more.py").write_text("")
    assert history.revision(trees) == {"commit": head, "dirty": True}
    assert history.revision(trees / "kernbench") == {"commit": None, "dirty": None}
    path = history.append([{"figure": "a"}], "toy", tree=trees)
    assert path == trees / ".benches" / "history.jsonl"
    assert json.loads(path.read_text())["commit"] == head
    assert history.append([{"figure": "a"}], "toy", tree=trees / "kernbench") is None


def test_the_history_is_ignored_by_git() -> None:
    assert f"/{history.HISTORY.relative_to(history.ROOT).parent}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_machine_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: other\n")
    assert history.machine(tmp_path / "cpuinfo")["cpu"] == "A CPU @ 2 GHz"
    assert history.machine(tmp_path / "missing")["cpu"]


def test_trees_are_compared_in_turns(trees: Path) -> None:
    speed = SpeedRun(Budget(turn=0.0))
    with compare.assembled("old", trees) as old, compare.assembled(str(trees), trees) as new:
        assert len(git(trees, "worktree", "list").splitlines()) == 2
        speeds, rest, only_new = compare.compared("toy", old, new, speed)
    assert len(git(trees, "worktree", "list").splitlines()) == 1
    assert compare.rows(speeds) == ("speed", "2e+03 ms", "1e+03 ms", "0.50", "0.50 to 0.50", "faster", "16")
    assert compare.rows(rest)[5] == "no difference seen (spread)"
    assert rest.estimate("old").value == 1.0
    assert "has no attribute 'NEW'" in compare.rows(only_new)[5]
    assert compare.rows(only_new)[1] == "cannot"


def test_a_tree_that_is_not_there_is_an_error(trees: Path) -> None:
    with pytest.raises(ConfigError, match="neither a folder nor a revision"), compare.assembled("v9", trees):
        pass
    with pytest.raises(ConfigError, match="no package kernbench"), compare.assembled(str(trees / "configs"), trees):
        pass


def test_a_worker_that_ends_is_an_error(trees: Path) -> None:
    with TurnWorker("missing", trees) as worker, pytest.raises(RuntimeError, match="its process has ended"):
        worker.figures()


def test_reports_of_two_kinds_are_written_in_turns() -> None:
    speed = SpeedRun(Budget(seconds=0.0), keep=False)
    found = report_speed.in_turns(speed, operations=100, ranks=2, browser=None)
    assert [outcome.comparison.name for outcome in found] == [
        "equal: written", "equal: size", "jittered: written", "jittered: size",
    ]  # fmt: skip
    sizes = [outcome.samples["kernbench"] for outcome in found if outcome.comparison.unit == "MiB"]
    assert [len(samples.values) for samples in sizes] == [4, 4]
    assert all(samples.spread == 0 for samples in sizes)
    assert report_speed.comparison("equal: opened").limit == 3.0


def test_the_published_table_has_a_row_per_goal() -> None:
    sides = {"ours": Side(lambda: 3e-6), "torch": Side(lambda: 2e-6), "other": Side(lambda: 1.0)}
    lonely = Comparison("launch", "us", lambda: {"ours": Side(lambda: 3e-6)}, limit=40.0)
    outcomes = [
        measure(Comparison("add", "us", lambda: sides, {"torch": 1.2}), Budget(turn=0)),
        measure(lonely, Budget(turn=0)),
    ]
    assert speed_table.markdown(outcomes).splitlines()[2:] == [
        "| add | 3 us | torch, 2 us | 1.5 | 1.5 to 1.5 | 1.2 | missed |",
        "| launch | 3 us |  |  | 3 to 3 | 40 us | reached |",
    ]


@pytest.mark.parametrize("bench", [cost_speed, distributed_speed, order_cost, runtime_speed, tp_speed, wide_products])
def test_goals_are_beside_sides_that_there_are(bench) -> None:  # type: ignore[no-untyped-def]
    figures = bench.figures()
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        sides = list(figure.sides()) if figure.goals and "64 MiB" not in figure.name else [None, *figure.goals]
        assert set(figure.goals) <= set(sides[1:])
