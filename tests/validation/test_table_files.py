"""Reading measurements: nccl-tests' output as its versions print it, and CSV as people write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.errors import ConfigError
from kernbench.validation.manifests import Table, read_manifest
from kernbench.validation.scores import compare_manifest, load
from kernbench.validation.table_files import read_log, read_table

# One row of 1 GiB, 8142.6 us out of place and 8141.2 us in place, as it was printed over the years.
ROWS = {
    "root and checks": "1073741824 268435456 float sum -1 8142.6 131.87 230.77 0 8141.2 131.89 230.81 0",
    "checks not made": "1073741824 268435456 float sum -1 8142.6 131.87 230.77 N/A 8141.2 131.89 230.81 N/A",
    "no root": "1073741824 268435456 float sum 8142.6 131.87 230.77 2e-07 8141.2 131.89 230.81 2e-07",
    "no redop": "1073741824 268435456 float 8142.6 131.87 230.77 0e+00 8141.2 131.89 230.81 0e+00",
    "no checks": "1073741824 268435456 float sum -1 8142.6 131.87 230.77 8141.2 131.89 230.81",
    "a root": "1073741824 268435456 float none 0 8142.6 131.87 230.77 0 8141.2 131.89 230.81 0",
    "eight bits": "1073741824 1073741824 f8e5m2 sum -1 8142.6 131.87 230.77 0 8141.2 131.89 230.81 0",
    "mpirun --tag-output": "[1,0]<stdout>:1073741824 268435456 float sum -1 8142.6 131.87 230.77 0 8141.2 131.89 230.81 0",
    "srun --label": "0: 1073741824 268435456 float sum -1 8142.6 131.87 230.77 0 8141.2 131.89 230.81 0",
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_rows_of_every_version_are_read(row):
    found = read_log(f"# header\n   {row}\n# Avg bus bandwidth : 230\n")
    assert found is not None
    assert [float(found.rows[0][name]) for name in ("size_bytes", "oop_us", "ip_us")] == [1 << 30, 8142.6, 8141.2]


def test_whole_microseconds_are_times_and_not_roots():
    found = read_log("1073741824 268435456 float sum 35215 30.49 57.17 4e-07 35198 30.51 57.20 4e-07")
    assert found is not None
    assert (found.rows[0]["oop_us"], found.rows[0]["ip_us"]) == ("35215", "35198")


def test_in_place_may_come_first():
    head = "#          in-place                       out-of-place\n"
    found = read_log(head + ROWS["root and checks"])
    assert found is not None
    assert (found.rows[0]["ip_us"], found.rows[0]["oop_us"]) == ("8142.6", "8141.2")


RANKS = "\n".join(
    f"#  Rank {rank:2} Group  0 Pid 1{rank} on node{rank // 8} device {rank % 8} [0x1b] NVIDIA H100"
    for rank in range(16)
)
OPTIONS = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"


def test_a_log_says_what_ran():
    found = read_log(OPTIONS + RANKS + "\n1073741824 268435456 float sum -1 8142.6 131.87 247.25 0\n")
    assert found is not None
    assert found.about == {
        "ranks": 16,
        "nodes": 2,
        "gpus_per_process": 8,
        "dtype": "float",
        "collective": "all_reduce",  # by its bus bandwidth, 2 * 15 / 16 of the other
    }
    named = read_log("# Collective test starting: alltoall_perf\n" + ROWS["root and checks"])
    assert named is not None
    assert named.about["collective"] == "alltoall"


def test_a_log_in_a_manifest_needs_nothing_beside_its_system(tmp_path):
    (tmp_path / "run.log").write_text(OPTIONS + RANKS + "\n1073741824 268435456 float sum -1 5000.0 214.7 402.6 0\n")
    (tmp_path / "m.yaml").write_text("- {file: run.log, kind: collective, system: dgx_h100}\n")
    [item] = compare_manifest(tmp_path / "m.yaml")
    assert (item.table.ranks, item.table.nodes, item.table.gpus_per_process) == (16, 2, 8)
    assert item.measured.tolist() == [0.005]


CSV = {
    "as in the references": "# source\nsize_bytes,time_us\n1048576,30\n",
    "units in brackets": "Size (B),Time (us)\n1048576,30\n",
    "semicolons": "bytes;latency_us\n1048576;30\n",
    "tabs and a byte order mark": "\ufeffsize\ttime\n1048576\t30\n",
    "milliseconds": "size_bytes,time_ms\n1048576,0.03\n",
    "algorithm bandwidth": f"size_bytes,algbw_GBps\n1048576,{1048576 / 30e-6 / 1e9}\n",
    "bus bandwidth": f"size_bytes,busbw (GB/s)\n1048576,{1.75 * 1048576 / 30e-6 / 1e9}\n",
    "a row that was not measured": "size_bytes,time_us\n8,N/A\n1048576,30\n",
}


@pytest.mark.parametrize("text", CSV.values(), ids=CSV)
def test_tables_as_people_write_them(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    table = Table(file="t.csv", kind="collective", system="dgx_h100", ranks=8, collective="AllReduce")
    found = load(table, tmp_path)
    assert found.size.tolist() == [1048576]
    assert found.measured.tolist() == pytest.approx([30e-6])


def entry(tmp_path: Path, text: str) -> Table:
    (tmp_path / "m.yaml").write_text(f"- {{file: t.csv, kind: collective, system: dgx_h100, ranks: 8, {text}}}\n")
    return read_manifest(tmp_path / "m.yaml").tables[0]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("min_bytes: 64K", "min_bytes", 65536),
        ("min_bytes: 1 MiB", "min_bytes", 1 << 20),
        ("min_bytes: 100", "min_bytes", 100),
        ("placement: in-place", "placement", "in"),
        ("placement: out_of_place", "placement", "out"),
        ("note: the second run", "note", "the second run"),
    ],
)
def test_entries_as_people_write_them(tmp_path, text, name, value):
    assert getattr(entry(tmp_path, text), name) == value


def test_the_problems_of_all_tables_are_named_at_once(tmp_path):
    (tmp_path / "a.csv").write_text("size_bytes,weight\n8,1\n")
    (tmp_path / "m.yaml").write_text(
        "tables:\n- {file: a.csv, kind: collective, system: dgx_h100, ranks: 8}\n"
        "- {file: gone.csv, kind: collective, system: dgx_h100, ranks: 8}\n"
    )
    with pytest.raises(ConfigError, match=r"(?s)a\.csv: no measured column.*gone\.csv"):
        compare_manifest(tmp_path / "m.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min_bytes: lots", "size"),
        ("placement: beside", "placement"),
        ("rnks: 8", "rnks"),
        ("min_bytes: -1", "min_bytes"),
    ],
)
def test_wrong_entries_are_refused(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        entry(tmp_path, text)


def test_columns_of_one_meaning_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("size,bytes,time_us\n8,8,1\n")
    with pytest.raises(ConfigError, match="two columns"):
        read_table(tmp_path / "t.csv")


def test_a_device_of_a_system_and_a_fabric_with_its_nics(tmp_path):
    (tmp_path / "g.csv").write_text("M,N,K,time_us\n4096,4096,4096,200\n")
    (tmp_path / "t.csv").write_text("size_bytes,time_us\n1073741824,5000\n")
    (tmp_path / "m.yaml").write_text(
        "- {file: g.csv, kind: gemm, system: dgx_h100, dtype: bf16}\n"
        "- {file: t.csv, kind: collective, system: dgx_h100, fabric: efa, nodes: 2, ranks: 16, collective: all_reduce}\n"
        "- {file: t.csv, kind: collective, system: aws_p5, nodes: 2, ranks: 16, collective: all_reduce}\n"
    )
    gemm, joined, shipped = compare_manifest(tmp_path / "m.yaml")
    assert gemm.seconds[0] > 2 * 4096**3 / 989e12
    assert joined.seconds[0] == shipped.seconds[0]  # 32 adapters, as the instances have
