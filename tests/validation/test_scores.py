"""Reading measured tables, scoring the models on them, and the accuracy that they keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.cost import collective_time, gemm_time, memory_bound_time
from kernbench.errors import ConfigError
from kernbench.validation.comparisons import Comparison
from kernbench.validation.manifests import SHIPPED_MANIFEST, Table, read_manifest
from kernbench.validation.scores import Score, compare, compare_manifest, score


@cache
def shipped() -> list[Comparison]:
    return compare_manifest(SHIPPED_MANIFEST)


def select(kind: str, keep: Callable[[Table], bool] = lambda table: True) -> list[Comparison]:
    return [item for item in shipped() if item.table.kind == kind and keep(item.table)]


def middle(group: list[Comparison]) -> float:
    """The median of the tables' median errors."""
    return float(np.median([score([item]).median for item in group]))


# What docs/accuracy.md reports, with a tolerance: pool, median of the tables' medians, median and p90 of all points.
GUARD = {
    "all-reduce, one node": (
        lambda t: t.collective == "all_reduce" and t.nodes == 1 and t.time == "host",
        0.03,
        0.03,
        0.20,
    ),
    "all-reduce, several nodes": (lambda t: t.collective == "all_reduce" and t.nodes > 1, 0.06, 0.065, 0.39),
    "other collectives": (lambda t: t.collective != "all_reduce" and t.time == "host", 0.025, 0.035, 0.125),
    "collective kernels": (lambda t: t.time == "kernel" and t.kind == "collective", 0.08, 0.07, 0.28),
}


@pytest.mark.parametrize("pool", GUARD)
def test_collectives_stay_as_accurate_as_documented(pool):
    keep, medians, median, p90 = GUARD[pool]
    group = select("collective", keep)
    result = score(group)
    assert middle(group) <= medians
    assert result.median <= median
    assert result.p90 <= p90


@pytest.mark.parametrize(("kind", "median", "p90"), [("gemm", 0.07, 0.235), ("memory_bound", 0.055, 0.195)])
def test_kernels_stay_as_accurate_as_documented(kind, median, p90):
    result = score(select(kind))
    assert result.median <= median
    assert result.p90 <= p90


def test_products_are_ten_percent_off_on_average():
    errors = np.concatenate([np.abs(item.error) for item in select("gemm")])
    assert np.mean(errors) <= 0.103


@pytest.mark.parametrize("kind", ["gemm", "memory_bound"])
def test_a_device_from_its_data_sheet_alone(kind):
    """The A40: no constant was set by its tables."""
    assert score(select(kind, lambda table: table.device == "a40")).median <= 0.09


@pytest.mark.parametrize("kind", ["collective", "gemm", "memory_bound"])
def test_intervals_cover_about_what_they_promise(kind):
    assert 0.70 <= score(select(kind)).coverage <= 0.92


def test_large_transfers_other_than_all_reduce_are_within_six_percent():
    group = select("collective", lambda t: t.collective != "all_reduce" and t.time == "host")
    errors = np.concatenate([np.abs(item.error[item.size >= 2**25]) for item in group])
    assert np.median(errors) <= 0.06


def test_every_shipped_table_names_its_source():
    for path in (SHIPPED_MANIFEST.parent / "tables").glob("*.csv"):
        assert path.read_text().startswith("# source"), path.name


def exact(tmp_path: Path) -> Path:
    """A manifest of one table per kind whose measurements are the models' own estimates."""
    sizes = [1024.0, 1 << 20, 1 << 28]
    times = collective_time("dgx_h100", "all_gather", np.array(sizes), ranks=16, nodes=2).seconds
    rows = "".join(f"{size:.0f},{1e6 * t:.9g}\n" for size, t in zip(sizes, times, strict=True))
    (tmp_path / "collective.csv").write_text("# source: this test\nsize_bytes,time_us\n" + rows)
    tflops = 2 * 4096**3 / gemm_time("h200", 4096, 4096, 4096, dtype="bf16").seconds / 1e12
    (tmp_path / "gemm.csv").write_text(f"M,N,K,dtype,tflops\n4096,4096,4096,bf16xbf16->bf16,{tflops:.12g}\n")
    rate = 2**20 / memory_bound_time("h200", "gelu", (2**20,), dtype="float16").seconds / 1e9
    (tmp_path / "gelu.csv").write_text(f"elements,gelem_per_s\n{2**20},{rate:.12g}\n")
    path = tmp_path / "manifest.yaml"
    path.write_text(
        "- {file: collective.csv, kind: collective, system: dgx_h100, ranks: 16, nodes: 2, collective: all_gather}\n"
        "- {file: gemm.csv, kind: gemm, device: h200}\n"
        "- {file: gelu.csv, kind: memory_bound, device: h200, dtype: float16}\n"
    )
    return path


def test_estimates_compared_with_themselves_are_exact(tmp_path):
    for item in compare_manifest(exact(tmp_path)):
        assert np.allclose(item.error, 0, atol=1e-6)
        assert score([item]).coverage == 1


def test_a_score_is_what_numpy_says():
    table = Table(file="t.csv", kind="gemm", device="h200")
    measured = np.array([1.0, 1.0, 1.0, 1.0])
    seconds = np.array([1.1, 0.8, 1.0, 3.0])
    found = score(
        [Comparison(table, np.array([1.0, 2**17, 2**22, 2**30]), measured, seconds, 0.9 * seconds, 1.3 * seconds)]
    )
    assert found == Score(
        points=4,
        median=pytest.approx(0.15),
        p90=pytest.approx(np.quantile([0.1, 0.2, 0, 2], 0.9)),
        signed=pytest.approx(0.05),
        coverage=0.75,
        bands={"<=64K": pytest.approx(0.1), "<=1M": pytest.approx(0.2), "<=32M": 0, ">32M": pytest.approx(2)},
    )


def test_the_command_prints_writes_and_draws(tmp_path):
    pytest.importorskip("matplotlib")
    out, plots = tmp_path / "scores.json", tmp_path / "plots"
    result = CliRunner().invoke(app, ["validate", str(exact(tmp_path)), "--json", str(out), "--plot", str(plots)])
    assert result.exit_code == 0, result.output
    scores = json.loads(out.read_text())
    assert [table["name"] for table in scores["tables"]] == ["collective", "gemm", "gelu"]
    assert scores["pooled"]["all"]["points"] == 5
    assert sorted(path.name for path in plots.iterdir()) == ["collective.png", "gelu.png", "gemm.png"]
    assert "pooled" in result.output


def test_a_fabric_beside_the_manifest_joins_the_nodes(tmp_path):
    path = exact(tmp_path)
    (tmp_path / "slow.yaml").write_text("extends: ndr400\nfabric: {name: slow, bandwidth: 4 GB/s}\n")
    table = read_manifest(path).tables[0].model_copy(update={"fabric": "slow.yaml"})
    assert compare(table, tmp_path).error[-1] > 5


GOOD = "size_bytes,time_us\n8,1\n"


@pytest.mark.parametrize(
    ("manifest", "table", "words"),
    [
        ("tables: []", GOOD, "at least 1 item"),
        ("tables: [", GOOD, "broken YAML"),
        ("just text", GOOD, "manifest"),
        ("- {file: t.csv, kind: collectivity, system: dgx_h100}", GOOD, "kind"),
        ("- {file: t.csv, kind: collective, ranks: 8}", GOOD, "needs `system`"),
        ("- {file: t.csv, kind: gemm}", GOOD, "needs `device`"),
        ("- {file: t.csv, kind: collective, system: dgx_h100, rank: 8}", GOOD, "rank"),
        ("- {file: t.csv, kind: collective, system: dgx_h100}", GOOD, "needs `ranks`"),
        ("- {file: no.csv, kind: collective, system: dgx_h100, ranks: 8}", GOOD, "no.csv"),
        ("- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8}", "# nothing\n", "no rows"),
        (
            "- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8}",
            "weight,time_us\n8,1\n",
            "no column 'size_bytes'",
        ),
        (
            "- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8}",
            "size_bytes,took\n8,1\n",
            "no measured column",
        ),
        (
            "- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8}",
            "size_bytes,time_us\n8,x\n",
            "expected a number",
        ),
        (
            "- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8}",
            "size_bytes,time_us\nx,1\n",
            "expected a number",
        ),
        (
            "- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8}",
            "size_bytes,time_us\n8,0\n",
            "more than zero",
        ),
        ("- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8, min_bytes: 64}", GOOD, "at least 64 bytes"),
        ("- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8, where: {a: b}}", GOOD, "to select by"),
        ("- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8, fabric: x}", GOOD, "no shipped fabric"),
        ("- {file: t.csv, kind: gemm, device: h200}", "M,N,tflops\n1,1,1\n", "no column 'K'"),
        ("- {file: t.csv, kind: memory_bound, device: h200}", "elements,time_us\n1,1\n", "which `op`"),
        ("- {file: t.csv, kind: memory_bound, device: h200, op: add}", "count,time_us\n1,1\n", "no shape columns"),
    ],
)
def test_bad_manifests_and_tables_say_what_is_wrong(tmp_path, manifest, table, words):
    (tmp_path / "t.csv").write_text(table)
    path = tmp_path / "manifest.yaml"
    path.write_text(manifest)
    with pytest.raises(ConfigError, match=words):
        compare_manifest(path)


def test_a_manifest_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        compare_manifest(tmp_path / "none.yaml")
