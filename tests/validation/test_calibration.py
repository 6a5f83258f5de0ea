"""kernbench calibrate: recovering what a cluster was made with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.cost import collective_time, gemm_time
from kernbench.errors import ConfigError, KernbenchError
from kernbench.topology import load_system
from kernbench.validation.calibration import MOST_PARAMETERS, parameters_for
from kernbench.validation.manifests import Table

SIZES = np.array([1 << 12, 1 << 16, 1 << 24, 1 << 30], dtype=float)
TRUTH = (
    "extends: dgx_h100\nsystem:\n  name: truth\n"
    "  fabric: {extends: roce400, name: mine, bandwidth: 30 GB/s, latency: 9 us}\n"
)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
    if isinstance(result.exception, KernbenchError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    path = tmp_path / "truth.yaml"
    path.write_text(TRUTH)
    return path


def measure(truth: Path, scale: np.ndarray | float = 1.0) -> np.ndarray:
    return collective_time(truth, "all_reduce", SIZES, ranks=16, nodes=2).seconds * scale


def write_table(path: Path, seconds: np.ndarray) -> Path:
    rows = "".join(f"{size:.0f},{1e6 * value:.9g}\n" for size, value in zip(SIZES, seconds, strict=True))
    (path.parent / "t.csv").write_text("size_bytes,time_us\n" + rows)
    path.write_text(
        "- {file: t.csv, kind: collective, system: dgx_h100, ranks: 16, nodes: 2, collective: all_reduce}\n"
    )
    return path


def test_four_points_recover_a_fabric(tmp_path, truth):
    out = tmp_path / "fitted.yaml"
    output = run(write_table(tmp_path / "m.yaml", measure(truth)), "--system", "dgx_h100", "--out", out)
    assert "before" in output
    assert "after" in output
    fitted = load_system(out)
    assert fitted.name == "fitted"
    estimate = collective_time(out, "all_reduce", SIZES, ranks=16, nodes=2).seconds
    assert np.all(np.abs(estimate / measure(truth) - 1) < 0.06)
    # and sizes, collectives and worlds that were not measured
    for collective, nodes in (("all_gather", 2), ("all_reduce", 8), ("sendrecv", 2)):
        there = [collective_time(s, collective, 1 << 26, ranks=8 * nodes, nodes=nodes).seconds for s in (truth, out)]
        assert there[1] == pytest.approx(there[0], rel=0.15)


def test_a_fit_is_shown_by_size_and_a_bad_one_is_warned_of(tmp_path, truth):
    good, odd = measure(truth), measure(truth, np.array([3.0, 0.2, 4.0, 0.3]))
    for seconds, bad in ((good, False), (odd, True)):
        output = run(
            write_table(tmp_path / "m.yaml", seconds), "--system", "dgx_h100", "--out", tmp_path / "fitted.yaml"
        )
        rows = [line.split() for line in output.splitlines() if line.split()[0].replace(",", "").isdigit()]
        assert [int(row[0].replace(",", "")) for row in rows] == list(SIZES.astype(int))
        fitted = collective_time(tmp_path / "fitted.yaml", "all_reduce", SIZES, ranks=16, nodes=2).seconds
        start = collective_time("dgx_h100", "all_reduce", SIZES, ranks=16, nodes=2).seconds
        for row, measured, before, after in zip(rows, seconds, start, fitted, strict=True):
            assert [float(row[at]) for at in (1, 2, 4)] == pytest.approx(
                [measured * 1e6, before * 1e6, after * 1e6], rel=1e-3
            )
            assert row[3] == f"{before / measured - 1:+.1%}"
        assert ("warning: the fit is bad" in output) is bad
        error = np.abs(fitted / seconds - 1)
        assert (float(np.median(error)) > 0.2) is bad


def test_an_outlier_does_not_move_the_fit(tmp_path, truth):
    clean, spoilt = tmp_path / "clean.yaml", tmp_path / "spoilt.yaml"
    run(write_table(tmp_path / "a.yaml", measure(truth)), "--system", "dgx_h100", "--out", clean)
    run(
        write_table(tmp_path / "b.yaml", measure(truth, np.array([1, 9, 1, 1]))),
        "--system",
        "dgx_h100",
        "--out",
        spoilt,
    )
    times = [collective_time(path, "all_reduce", 1 << 30, ranks=16, nodes=2).seconds for path in (clean, spoilt)]
    assert times[1] == pytest.approx(times[0], rel=0.05)


LOG = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{rows}
# Out of bounds values : 0 OK
# Collective test concluded: all_reduce_perf
"""


def write_log(path: Path, seconds: np.ndarray) -> Path:
    ranks = "\n".join(
        f"#  Rank {rank:2} Group  0 Pid {rank} on  node{rank // 8} device {rank % 8} [0x1b] NVIDIA H100"
        for rank in range(16)
    )
    head = "{:12.0f} {:13.0f}     float     sum      -1 {:8.2f} {:7.2f} {:7.2f}      0"
    rows = "\n".join(
        head.format(size, size / 4, 1e6 * time, size / time / 1e9, 1.875 * size / time / 1e9)
        for size, time in zip(SIZES, seconds, strict=True)
    )
    path.write_text(LOG.format(ranks=ranks, rows=rows))
    return path


def test_the_output_of_nccl_tests_does_as_well(tmp_path, truth):
    out = tmp_path / "fitted.yaml"
    run(write_log(tmp_path / "nccl.log", measure(truth)), "--system", "dgx_h100", "--out", out)
    estimate = collective_time(out, "all_reduce", SIZES, ranks=16, nodes=2).seconds
    assert np.all(np.abs(estimate / measure(truth) - 1) < 0.06)


def test_a_device_is_fitted_to_its_products(tmp_path):
    (tmp_path / "slow.yaml").write_text("extends: h100_sxm\ndevice: {name: slow, matrix_efficiency: 0.6}\n")
    dims = [1024, 2048, 4096, 8192]
    times = gemm_time(tmp_path / "slow.yaml", dims, 8192, 8192).seconds
    rows = "".join(f"{m},8192,8192,{1e6 * t:.9g}\n" for m, t in zip(dims, times, strict=True))
    (tmp_path / "t.csv").write_text("M,N,K,time_us\n" + rows)
    (tmp_path / "m.yaml").write_text("- {file: t.csv, kind: gemm, device: h100_sxm}\n")
    out = tmp_path / "fitted.yaml"
    run(tmp_path / "m.yaml", "--system", "dgx_h100", "--out", out)
    assert load_system(out).device.matrix_efficiency == pytest.approx(0.6, rel=0.05)


def test_at_most_four_figures_are_fitted():
    tables = [
        Table(file="", kind="collective", system="s", nodes=1),
        Table(file="", kind="collective", system="s", nodes=2),
        Table(file="", kind="collective", system="s", nodes=4),
        Table(file="", kind="gemm", device="d"),
        Table(file="", kind="memory_bound", device="d"),
    ]
    assert len(parameters_for(tables)) == MOST_PARAMETERS


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("nothing of use", (), "neither a manifest nor"),
        ("  1024  256  float  sum  -1  10.0  0.1  0.1  0\n", (), "does not say collective, ranks, nodes"),
        (
            "  1024  256  float  sum  -1  10.0  0.1  0.1  0\n",
            ("--collective", "all_reduce", "--ranks", 8, "--nodes", 1),
            "too few",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(tmp_path, text, options, words):
    (tmp_path / "nccl.log").write_text(text)
    with pytest.raises(ConfigError, match=words):
        run(tmp_path / "nccl.log", "--system", "dgx_h100", "--out", tmp_path / "o.yaml", *options)
