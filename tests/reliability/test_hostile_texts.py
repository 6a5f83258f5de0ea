"""Texts that people give beside descriptions, mutated: a served model and its requests, pages, results, templates, schedules,
options of the pytest plugin, variables of the environment. Each is used, or refused in a line.

    KERNBENCH_HOSTILE=10000 pytest -m long tests/reliability/test_hostile_texts.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import strategies as st

from kernbench.commands.serve import check_engine
from kernbench.cost.selection import choose
from kernbench.explore.exhaustive import bound_of
from kernbench.explore.search import schedules
from kernbench.html_report import read_page
from kernbench.html_report.columns import Columns
from kernbench.html_report.page import MARK
from kernbench.memory.settings import VARIABLES, AllocatorSettings
from kernbench.memory.workspaces import Workspaces
from kernbench.order.choices import strategy_of
from kernbench.programs.model_shape import ServedModel
from kernbench.programs.requests import requests_of
from kernbench.testing.declared import OPTIONS
from kernbench.testing.declared import settings as settings_of
from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus
from kernbench.trace.serving_figures import limits_of
from kernbench.validation.end_to_end.published import published
from kernbench.validation.end_to_end.results import FORMAT, VERSION, read_results
from kernbench.what_if.templates import Template
from tests.reliability.hostile import PARTS, TOKENS, mutated, mutated_text, run_hostile, use_a_handful, use_many

MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 256, "rope_parameters": {"rope_theta": 1e4}, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "torch_dtype": "float32",
}  # fmt: skip
REQUESTS = b"""{"arrival": 2, "prompt": [1, 2], "output_tokens": 3, "name": "late"}

{"prompt_tokens": 4, "output_tokens": 200}
{"arrival": 0.5, "prompt_tokens": 40, "output_tokens": 20}
"""
STREAMS = (b"poisson:4/s,in=1024,out=256,n=20,seed=0", b"burst:in=512-2048,out=256,n=64", b"poisson:.5/s,n=3", b"none")
ENGINE = (b"--page 256 --pages 9 --budget 24 --sequences 6 --utilization 0.5 --dtype float16 --eager --host-seconds 1e-3",
          b"--longest 4096 --weights drawn --answers out.json")  # fmt: skip
RESULTS = {"format": FORMAT, "version": VERSION, "rows": [
    {"id": published()[0].id, "seconds": 1.5, "parts": {"compute": [1.0, 0.5, 2.0]}, "reserved": 1, "host_seconds": 1.0,
     "problem": "", "allocated": 3},
]}  # fmt: skip
TEMPLATES = (b"--size={size * 2} --tp={tp} {{literal}}", b"{min(tp, 8)} {'a' if tp > 1 else 'b'} {[each for each in (1, 2)]}",
             b'{"a": {"b": 1}} {size // tp:>3}')  # fmt: skip
SCHEDULES = (b"default", b"random:7", b"pct:3:100:1", b"w1.4=2,r.0=1", b"exhaustive:2", b"pct:3", b"exhaustive")
GOODPUT = (b"ttft=0.5s,tpot=50ms", b"itl=1ms,latency=2.5s")
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": (b"0,1,2", b"GPU-8932f937,1", b"-1"),
    "NCCL_ALGO": (b"ring,tree", b"^nvls;allreduce:tree"), "NCCL_PROTO": (b"ll128,simple", b"^ll"),
    "NCCL_MAX_NCHANNELS": (b"8", b"32"), "NCCL_MIN_NCHANNELS": (b"4",),
    "CUBLAS_WORKSPACE_CONFIG": (b":4096:2:16:8",), "CUBLASLT_WORKSPACE_SIZE": (b"1024",),
    VARIABLES[0]: (b"max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:8]",
                   b"expandable_segments:True,garbage_collection_threshold:0.8,pinned_num_register_threads:4"),
}  # fmt: skip


def _page() -> bytes:
    columns = Columns()
    columns.add("begin", [0, 5, 1000, 70000])
    return f"<html>{MARK}{columns.packed({'title': 'a run', 'rows': [[0, 'compute', 4]]})}</script></html>".encode()


def _text(data: bytes) -> str:
    """As an argument of a command line has it."""
    return os.fsdecode(data.replace(b"\0", b""))


def _as_model(folder: Path, data: bytes) -> None:
    (folder / "config.json").write_bytes(data)
    run_hostile(partial(ServedModel.read, folder, 2))


def _as_requests(folder: Path, data: bytes) -> None:
    (folder / "r.jsonl").write_bytes(data)
    run_hostile(partial(requests_of, "r.jsonl", 256))


def _as_stream(_: Path, data: bytes) -> None:
    run_hostile(partial(requests_of, _text(data), 256))


def _as_engine(folder: Path, data: bytes) -> None:
    (folder / "config.json").write_text(json.dumps(MODEL))
    run_hostile(lambda: check_engine(["--model", "config.json", *_text(data).split(" ")], 2))


def _as_page(folder: Path, data: bytes) -> None:
    (folder / "page.html").write_bytes(data)

    def read() -> None:
        _, columns = read_page(folder / "page.html")
        for name in columns.index:
            columns.column(name)

    run_hostile(read)


def _as_results(folder: Path, data: bytes) -> None:
    (folder / "results.json").write_bytes(data)
    run_hostile(partial(read_results, folder / "results.json", published()))


def _as_template(_: Path, data: bytes) -> None:
    run_hostile(lambda: Template(_text(data), ("tp", "size"), "an argument").at({"tp": 2, "size": 3}))


def _as_schedule(_: Path, data: bytes) -> None:
    text = _text(data)
    run_hostile(partial(strategy_of, text))
    run_hostile(partial(schedules, text, 2, 10))
    run_hostile(partial(bound_of, text))


def _as_goodput(_: Path, data: bytes) -> None:
    run_hostile(partial(limits_of, _text(data)))


def _as_plugin(_: Path, data: bytes) -> None:
    for option in OPTIONS:
        if not option.is_switch:
            with contextlib.suppress(argparse.ArgumentTypeError):
                settings_of(option)["type"](_text(data))


def _as_environment(_: Path, data: bytes) -> None:
    for name in ENVIRONMENT:
        variables = {name: _text(data)}
        run_hostile(partial(AllocatorSettings.of_environment, variables))
        run_hostile(partial(NodeGpus(8, "dgx_h100").visible, variables))
        for arch in (90, "gfx942"):
            run_hostile(partial(Workspaces.of, arch, variables))
        if name.startswith("NCCL"):
            run_hostile(partial(choose, "dgx_h100", "all_reduce", 1 << 20, ranks=8, environ=variables))


@dataclass(frozen=True)
class Kind:
    """A kind of text: mutations of valid ones, and what is done with one, in a folder of its own."""

    inputs: st.SearchStrategy[bytes]
    use: Callable[[Path, bytes], None]


_words = st.sampled_from(TOKENS)
KINDS: dict[str, Kind] = {
    "model": Kind(mutated(json.dumps(MODEL)), _as_model),
    "requests": Kind(st.one_of(mutated_text(REQUESTS), mutated(REQUESTS.splitlines()[0])), _as_requests),
    "stream": Kind(st.one_of(mutated_text(*STREAMS), _words), _as_stream),
    "engine": Kind(mutated_text(*ENGINE), _as_engine),
    "page": Kind(mutated_text(_page()), _as_page),
    "results": Kind(mutated(json.dumps(RESULTS)), _as_results),
    "template": Kind(st.one_of(mutated_text(*TEMPLATES), _words), _as_template),
    "schedule": Kind(st.one_of(mutated_text(*SCHEDULES), _words), _as_schedule),
    "goodput": Kind(st.one_of(mutated_text(*GOODPUT), _words), _as_goodput),
    "plugin": Kind(
        st.one_of(mutated_text(b"25900:1024", b"16GB", b"512 MiB", b"3", b"1.5", b"warn"), _words), _as_plugin
    ),
    "environment": Kind(
        st.one_of(mutated_text(*(text for texts in ENVIRONMENT.values() for text in texts)), _words), _as_environment
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_handful(kind: str, folder: Path) -> None:
    use_a_handful(KINDS[kind].inputs, partial(KINDS[kind].use, folder), 12)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(len(PARTS)))
@pytest.mark.parametrize("kind", KINDS)
def test_many(kind: str, part: int, folder: Path) -> None:
    use_many(kind, part, KINDS[kind].inputs, partial(KINDS[kind].use, folder))
