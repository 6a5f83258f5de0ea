"""Files that people are given, mutated: a description is read or refused in a line, never another exception.

Each kind has a handful of inputs in every run of the suite, and ``KERNBENCH_HOSTILE`` of them (300) where long tests run:

    KERNBENCH_HOSTILE=10000 pytest -m long tests/reliability/test_hostile_files.py
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import strategies as st

from kernbench.autotune.seeds import FORMAT, prune_from
from kernbench.ccl.config import load_ccl_config
from kernbench.ccl.registry import algorithm_module
from kernbench.cli import app
from kernbench.cost.generations import generation_of
from kernbench.names import ALGORITHM
from kernbench.precompile.record import Record
from kernbench.sweep.journal import Journal
from kernbench.topology import load_device
from kernbench.topology.shipped import config_root
from kernbench.trace.run_result import read_result
from kernbench.validation.table_files import read_table
from tests.reliability.hostile import (
    PARTS,
    mutated,
    mutated_text,
    run_hostile,
    run_hostile_command,
    use_a_handful,
    use_many,
)

CONFIGS = config_root()
FOLDER = Path(__file__).parent

PROGRAM = """
def program(ctx, system="sip8", size=1, kind="x", other=0):
    return {"size": 1}
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""
SWEEP = """
program: program.py:program
axes: {system: [sip8, mine.yaml], size: [1, 2, 3], kind: [a, "b", 2024-01-01]}
fixed: {other: 1}
where: ["size < 3 or kind == 'a'"]
plot: {x: size, y: virtual_seconds, by: [kind], log: true}
"""
SPACES = """
targets: [sm_90]
kernels:
- kernel: kernel.py:copy
  axes: {dtype: [fp16, fp32], BLOCK: [128, 256], num_warps: [4]}
  arguments: {x_ptr: "*{dtype}", y_ptr: "*{dtype}:1", n: "i32:16"}
  where: ["BLOCK < 256 or dtype == 'fp16'"]
"""
RECORD = """# Written by kernbench.precompile.record
recorded: true
kernels:
- {"kernel": "kernel.py:copy", "axes": {"x_ptr": ["*fp16"], "y_ptr": ["*fp16"], "n": ["i32"], "BLOCK": [64]},
   "targets": ["cuda:90"]}
"""
TUNE = """
device: h100_sxm
kernels:
- kernel: kernel.py:copy
  axes: {M: [1024], dtype: [fp16]}
  arguments: {x_ptr: "dtype[M]", y_ptr: "dtype[M]", n: M}
  configs: [{BLOCK: 128, num_warps: 4}]
  grid: ["cdiv(M, BLOCK)"]
  key: [n]
"""
SEEDS = {
    "format": FORMAT, "device": "h100_sxm", "entries": [
        {"kernel": "kernel.copy", "key_names": ["n"], "key": {"n": 16},
         "configs": [{"config": {"BLOCK": 1}, "seconds": 1e-6, "limit": "x"}]}
    ],
}  # fmt: skip
OURS = {
    "otherData": {"kernbench": "1", "title": "a run"},
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "rank 0 (SIP 0)"}},
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "rank 1 (SIP 1)"}},
        *({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
          for pid in (1, 2) for tid, name in ((1, "compute"), (2, "host"), (3, "comm"))),
        {"ph": "X", "name": "mm", "cat": "gemm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 9.5,
         "args": {"bytes": 4096, "low us": 9.0, "high us": 10.0, "shapes": "4x4", "flops": 100, "stack": ["a.py:1", "b.py:2"]}},
        {"ph": "X", "name": "launch", "cat": "launch", "pid": 1, "tid": 2, "ts": 0.5, "dur": 0.5, "args": {}},
        {"ph": "X", "name": "wait", "cat": "wait", "pid": 2, "tid": 2, "ts": 3, "dur": 20},
        *({"ph": "X", "name": "all_reduce", "cat": "collective", "pid": pid, "tid": 3, "ts": 12 - pid, "dur": 10 + pid,
           "args": {"bytes": 64, "op": "all_reduce", "group": "default", "sequence": 0}} for pid in (1, 2)),
        {"ph": "X", "name": "m", "cat": "message", "pid": 3, "tid": 1, "ts": 1, "dur": 1,
         "args": {"collective": "all_reduce", "bytes": 8, "links": ["a"]}},
        {"ph": "C", "name": "memory", "pid": 1, "ts": 1, "args": {"x": 3}},
    ],
}  # fmt: skip
PROFILERS = {
    "distributedInfo": {"rank": 1},
    "traceEvents": [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 8, "ts": 10, "dur": 3,
         "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 14.5, "dur": 3,
         "args": {"stream": 7, "grid": [1, 1, 1]}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "pid": 0, "tid": 8, "ts": 15, "dur": 9,
         "args": {"stream": 8, "Collective name": "allreduce", "Process Group Name": "0"}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 9, "tid": 8, "ts": 15, "dur": 12},
        {"ph": "i", "name": "x", "s": "t", "ts": 1},
    ],
}  # fmt: skip
MANIFEST = """
tables:
- {file: t.csv, kind: collective, system: dgx_h100, ranks: 8, collective: all_reduce, min_bytes: 1 KiB, where: {dtype: bf16}}
- {file: g.csv, kind: gemm, device: h100_sxm, dtype: bf16, source: us, held_out: true}
- {file: m.csv, kind: memory_bound, device: h100_sxm, op: copy}
"""
TABLES = (
    b"# by us\nsize_bytes,time_us,dtype\n1024,10.5,bf16\n1048576,30,bf16\n",
    b"M,N,K,time_us\n1024,1024,1024,10\n4096,4096,4096,300\n",
    b"op,elements,dtype,time_us\ncopy,1048576,fp16,3.5\ncopy,104857600,fp16,80\n",
)
LOG = b"""# nThread 1 nGpus 1
#  Rank  0 Group  0 Pid  1 on  host1 device  0 [0x07] H100
#  Rank  1 Group  0 Pid  2 on  host1 device  1 [0x07] H100
# all_reduce_perf
#                                   out-of-place                       in-place
        1024           256     float     sum      -1    10.42    0.10    0.10      0    10.2    0.1    0.1      0
     1048576        262144     float     sum      -1    30.01   34.9    34.9      0    30.2   34.7    34.7      0
    16777216       4194304     float     sum      -1    130.01   134.9    134.9      0    130.2   134.7    134.7      0
   268435456      67108864     float     sum      -1    1300.1   234.9    234.9      0    1300.2   234.7    234.7      0
"""
RESULT = {
    "format": "kernbench.run", "version": 1, "kernbench": "0.2.0", "program": "x.py",
    "arguments": [], "system": "sip8", "gpus": 1,
    "status": "ok", "failures": [{"rank": 0, "error": "x", "short_bytes": 1}], "seconds": 1.0,
    "throughput": None, "extrapolated": {"10": 1.0},
    "steps": [{"number": 1, "seconds": 1.0, "compute": 0.5, "communication": 0.1,
               "idle": None, "model_flops": 3, "recomputed_flops": 0,
               "tokens": 3, "samples": 4}],
    "ranks": [{"rank": 0, "seconds": 1.0, "compute": 1.0, "communication": 0, "host": 0,
               "idle": 0, "device_bytes": 1, "capacity_bytes": 2}],
    "collectives": [{"name": "all_reduce", "calls": 1, "bytes": 3}], "notes": ["a"],
}  # fmt: skip
OUTCOME = {"index": 0, "key": "k", "status": "ok", "metrics": {"virtual_seconds": 1.0}, "error": "", "detail": ""}


def _shipped(kind: str, *names: str) -> list[bytes]:
    return [(CONFIGS / kind / f"{name}.yaml").read_bytes() for name in names]


def _whole_system() -> bytes:
    whole = yaml.safe_load(_shipped("systems", "sip8")[0])
    whole["system"]["sips"]["device"] = yaml.safe_load(_shipped("devices", "sip")[0])["device"]
    whole["system"]["fabric"] = yaml.safe_load(_shipped("fabrics", "ndr400")[0])["fabric"]
    return json.dumps(whole).encode()


def _write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, text in files.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def _with_device(folder: Path) -> None:
    _write(folder, {"system.yaml": "extends: sip8\nsystem: {sips: {device: mine.yaml}}\n"})
    run_hostile_command("systems", "show", folder / "system.yaml")


def _with_fabric(folder: Path) -> None:
    run_hostile_command("systems", "show", "sip8", "--nodes", "2", "--fabric", folder / "mine.yaml")


def _with_generation(folder: Path) -> None:
    _write(folder, {"device.yaml": "extends: h100_sxm\ndevice: {generation: mine.yaml}\n"})
    run_hostile(lambda: generation_of(load_device(folder / "device.yaml")))


def _as_ccl(folder: Path) -> None:
    def read() -> None:
        for entry in load_ccl_config(folder / "mine.yaml").algorithms.values():
            algorithm_module(entry.module)

    run_hostile(read)
    (folder / "ccl.yaml").write_bytes((folder / "mine.yaml").read_bytes())
    run_hostile(partial(ALGORITHM.shell_complete, click.Option(["--x"]), click.Context(app), ""))
    (folder / "ccl.yaml").unlink()


def _as_trace(folder: Path) -> None:
    file = folder / "mine.yaml"
    run_hostile_command("trace", "summary", file)
    run_hostile_command("trace", "summary", file, "--json")
    run_hostile_command("trace", "report", file, folder / "page.html")


def _as_gzip(folder: Path) -> None:
    (folder / "t.json.gz").write_bytes((folder / "mine.yaml").read_bytes())
    run_hostile_command("trace", "summary", folder / "t.json.gz")


def _as_sweep(folder: Path) -> None:
    run_hostile_command("sweep", folder / "mine.yaml", "--list")


def _as_spaces(folder: Path) -> None:
    run_hostile_command("precompile", folder / "mine.yaml", "--list")


def _as_record(folder: Path) -> None:
    _as_spaces(folder)
    run_hostile(lambda: Record().read(folder / "mine.yaml"))


def _as_tuning(folder: Path) -> None:
    run_hostile_command("tune", folder / "mine.yaml")


def _as_seeds(folder: Path) -> None:
    def use() -> None:
        prune = prune_from(folder / "mine.yaml", "kernel.copy")
        prune([], {"n": 17})

    run_hostile(use)


def _as_manifest(folder: Path) -> None:
    run_hostile_command("validate", folder / "mine.yaml")


def _as_table(folder: Path) -> None:
    run_hostile(lambda: read_table(folder / "mine.yaml"))
    for name in ("t.csv", "g.csv", "m.csv"):
        _write(folder, {"t.csv": TABLES[0], "g.csv": TABLES[1], "m.csv": TABLES[2]})
        (folder / name).write_bytes((folder / "mine.yaml").read_bytes())
        run_hostile_command("validate", folder / "manifest.yaml")


def _as_log(folder: Path) -> None:
    run_hostile_command("calibrate", folder / "mine.yaml", "--system", "dgx_h100", "--out", folder / "out.yaml")


def _as_result(folder: Path) -> None:
    run_hostile(lambda: read_result(folder / "mine.yaml"))


def _as_journal(folder: Path) -> None:
    """No line is lost silently: each that has an end gives its outcome, whatever the others are, or is said to be damaged."""
    journal, alone = Journal(folder / "mine.yaml"), Journal(folder / "line")
    found: list[Any] = []
    run_hostile(lambda: found.append(journal.read()))
    expected: dict[str, Any] = {}
    *lines, last = (folder / "mine.yaml").read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        alone.path.write_bytes(line + b"\n")
        known = alone.read()
        assert bool(known) + (number in journal.damaged) == bool(line.strip())
        expected |= known
    alone.path.write_bytes(last)
    assert found == [expected | alone.read()]


@dataclass(frozen=True)
class Kind:
    """A kind of file: mutations of valid ones, and what is done with it, as ``mine.yaml`` in a folder.

    ``dear``: an input costs more than a tenth of a second, so that there are fewer where they are not counted.
    """

    inputs: st.SearchStrategy[bytes]
    use: Callable[[Path], None]
    dear: bool = False


KINDS: dict[str, Kind] = {
    "system": Kind(
        mutated(_whole_system(), *_shipped("systems", "dgx_h100", "sip8")),
        lambda folder: run_hostile_command("systems", "show", folder / "mine.yaml") and None,
    ),
    "device": Kind(mutated(*_shipped("devices", "h100_sxm", "sip", "mi300x")), _with_device),
    "fabric": Kind(mutated(*_shipped("fabrics", "ndr400")), _with_fabric),
    "generation": Kind(mutated(*_shipped("generations", "hopper")), _with_generation),
    "ccl": Kind(mutated((CONFIGS / "ccl.yaml").read_bytes()), _as_ccl),
    "trace": Kind(mutated(json.dumps(OURS)), _as_trace),
    "profiler": Kind(mutated(json.dumps(PROFILERS)), _as_trace),
    "gzip": Kind(
        st.one_of(
            mutated_text(gzip.compress(json.dumps(OURS).encode())), mutated(json.dumps(PROFILERS)).map(gzip.compress)
        ),
        _as_gzip,
    ),
    "sweep": Kind(mutated(SWEEP), _as_sweep),
    "spaces": Kind(mutated(SPACES), _as_spaces),
    "record": Kind(mutated(RECORD), _as_record),
    "tune": Kind(mutated(TUNE), _as_tuning, dear=True),
    "seeds": Kind(mutated(json.dumps(SEEDS)), _as_seeds),
    "manifest": Kind(mutated(MANIFEST), _as_manifest),
    "table": Kind(mutated_text(*TABLES), _as_table),
    "log": Kind(mutated_text(LOG), _as_log, dear=True),
    "result": Kind(mutated(json.dumps(RESULT)), _as_result),
    "journal": Kind(
        st.one_of(mutated(json.dumps(OUTCOME)), mutated_text(json.dumps(OUTCOME) + "\n" + json.dumps(OUTCOME))),
        _as_journal,
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, {"program.py": PROGRAM, "kernel.py": KERNEL, "manifest.yaml": MANIFEST})
    _write(tmp_path, {"t.csv": TABLES[0], "g.csv": TABLES[1], "m.csv": TABLES[2]})
    return tmp_path


def _use(kind: str, folder: Path) -> Callable[[bytes], None]:
    def use(data: bytes) -> None:
        (folder / "mine.yaml").write_bytes(data)
        KINDS[kind].use(folder)

    return use


@pytest.mark.parametrize("kind", KINDS)
def test_a_handful(kind: str, folder: Path) -> None:
    use_a_handful(KINDS[kind].inputs, _use(kind, folder), 3 if KINDS[kind].dear else 12)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(len(PARTS)))
@pytest.mark.parametrize("kind", KINDS)
def test_many(kind: str, part: int, folder: Path) -> None:
    use_many(kind, part, KINDS[kind].inputs, _use(kind, folder))
