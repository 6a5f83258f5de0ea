"""Refitting constants, and leaving tables out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernbench.benches.accuracy_page import replaced
from kernbench.cost import collective_time, memory_bound_time
from kernbench.cost.collective_world import resolve_system
from kernbench.cost.uncertainty import BANDS
from kernbench.validation.cross_validation import Fold, bands, judged, leave_one_out, with_bands
from kernbench.validation.manifests import Table
from kernbench.validation.refit import Knob, constants, knobs, refit
from kernbench.validation.scores import Comparison, MeasuredTable, measured_collective

SHARE = Knob("generation", "hopper", "nvls_share", 0.5, most=1.0)
BASE = Knob("generation", "hopper", "nvls_base", 20e-6)
HOP = Knob("generation", "hopper", "hop", 1e-6, key="ll")


def measured(sizes: list[float], algorithm: str) -> MeasuredTable:
    """A table whose measurements are the models' own estimates."""
    system = resolve_system("hgx_h200")
    times = collective_time(system, "all_reduce", sizes, ranks=8, algorithm=algorithm).seconds
    table = Table(
        file="t.csv", kind="collective", system="hgx_h200", ranks=8, collective="all_reduce", algorithm=algorithm
    )
    return measured_collective(table, Path("t.csv"), list(zip(sizes, times, strict=True)), system)


def test_constants_are_set_and_set_back():
    before = collective_time("hgx_h200", "all_reduce", 1 << 30, ranks=8).seconds
    with constants({SHARE: 0.35}):
        assert collective_time("hgx_h200", "all_reduce", 1 << 30, ranks=8).seconds > 1.2 * before
    assert collective_time("hgx_h200", "all_reduce", 1 << 30, ranks=8).seconds == before
    with pytest.raises(ZeroDivisionError), constants({SHARE: 0.35}):
        _ = 1 / 0
    assert collective_time("hgx_h200", "all_reduce", 1 << 30, ranks=8).seconds == before


def test_a_fit_finds_the_constants_that_made_the_measurements():
    truth = {SHARE: 0.62, BASE: 31e-6, HOP: 0.8e-6}
    with constants(truth):
        tables = [measured([2.0**k for k in range(20, 34, 2)], "nvls"), measured([8, 1024, 4096], "ring/ll")]
    found = refit(tables, [[SHARE, BASE], [HOP]])
    for knob, value in truth.items():
        assert found[knob] == pytest.approx(value, rel=0.06), knob.name


def test_what_no_table_tells_stays_at_its_prior():
    unheard = Knob("generation", "cdna", "tree_share", 0.77)
    found = refit([measured([1 << 30], "nvls")], [[SHARE, unheard]])
    assert found[unheard] == 0.77


@pytest.mark.parametrize("kind", ["collective", "gemm", "memory_bound"])
def test_every_knob_is_a_constant_of_a_model(kind):
    for group in knobs(kind):
        for knob in group:
            with constants({knob: knob.prior}):
                pass  # a row, a field or a key that is not there raises


@pytest.fixture
def two_sources(tmp_path: Path) -> Path:
    """Additions on two devices, each measured by another source, 20 % slower than the models say."""
    entries = []
    for device in ("a100_sxm", "h100_sxm"):
        rows = [
            (n, 1.2e6 * memory_bound_time(device, "add", (n,), dtype="float16").seconds) for n in 2 ** np.arange(20, 30)
        ]
        (tmp_path / f"{device}.csv").write_text("elements,time_us\n" + "".join(f"{n},{t:.9g}\n" for n, t in rows))
        entries.append(f"- {{file: {device}.csv, kind: memory_bound, device: {device}, op: add, source: {device}}}\n")
    path = tmp_path / "manifest.yaml"
    path.write_text("".join(entries))
    return path


def test_what_is_left_out_is_predicted_from_the_rest(two_sources):
    folds = leave_one_out("memory_bound", manifest=two_sources)
    assert [fold.left_out for fold in folds] == ["a100_sxm", "h100_sxm"]
    for fold in folds:  # the other device says that additions are slower than the shipped constants have them
        [item] = fold.comparisons
        assert np.median(np.abs(item.error)) < 0.1


def test_bands_leave_out_as_many_errors_as_asked():
    table = Table(file="t.csv", kind="gemm", device="h200")
    measured = np.linspace(0.5, 2.0, 1001)
    item = Comparison(table, measured, measured, np.ones(1001), np.ones(1001), np.ones(1001))
    found = bands([item], tail=0.1)
    wide = with_bands(item, found)
    assert np.mean((wide.low <= measured) & (measured <= wide.high)) == pytest.approx(0.8, abs=0.01)
    assert found["one_node"] == BANDS["one_node"]  # of which there are no points
    narrow = replace(item, measured=np.ones(1001))
    first, second = judged([Fold("gemm", "a", [item]), Fold("gemm", "b", [narrow])])
    # each by the errors of the other
    assert np.mean((first.comparisons[0].low <= measured) & (measured <= first.comparisons[0].high)) < 0.1
    assert np.all(second.comparisons[0].low <= 1)


def test_the_page_is_rewritten_between_its_marks():
    page = "a\n<!-- report -->\nold\n<!-- end -->\nb\n"
    assert replaced(page, "report", "new\n") == "a\n<!-- report -->\n```\nnew\n```\n<!-- end -->\nb\n"
    with pytest.raises(ValueError, match="no block"):
        replaced(page, "other", "x")
