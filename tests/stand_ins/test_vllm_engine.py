"""vLLM itself, as it is installed: its engine answers requests without data, alone and with tensor parallelism."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.trace.run_result import RunResult, read_result

pytestmark = [
    pytest.mark.long,  # starts the engine in processes
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed (docs/serving.md)"),
]

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 32000,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16",
}  # fmt: skip
GRAPHS = '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2]}'


def served(folder: Path, tp: int, *options: str, launcher: tuple[str, ...] = ()) -> RunResult:
    """Two requests of 1,024 and 8 tokens by vLLM's engine."""
    (folder / "config.json").write_text(json.dumps(LLAMA))
    result = folder / "result.json"
    module = ["-m", "kernbench.programs.serving_vllm", "--model", str(folder)]
    asked = ["--requests", "burst:in=1024,out=8,n=2", "--max-num-seqs", "2", *options]
    command = [
        sys.executable, "-m", "kernbench", "run", "--no-data", "--stand-in", "auto", "--system", "dgx_h100", "--json",
        str(result), "--nproc-per-node", str(tp), *launcher, *module, *asked,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not re.search("^Traceback|Exception ignored", ended.stderr, re.MULTILINE), ended.stderr
    return read_result(result)


@pytest.mark.timeout(2400)
def test_tensor_parallelism_and_graphs(tmp_path: Path) -> None:
    """Two GPUs decode quicker than one, by less than twice; a request is counted once, whatever the number of ranks."""
    found = {tp: served(tmp_path, tp, "--compilation-config", GRAPHS).serving for tp in (1, 2)}
    eager = served(tmp_path, 2, "--enforce-eager").serving
    for each in (*found.values(), eager):
        assert each is not None
        assert (each.requests, each.ended, each.generated_tokens, each.steps) == (2, 2, 16, 8)
    one, two = (found[tp].tpot.mean for tp in (1, 2))  # type: ignore[union-attr]
    assert one / 2 < two < one
    assert two < eager.tpot.mean  # type: ignore[union-attr]


@pytest.mark.timeout(1600)
def test_ranks_that_are_processes_take_the_same_time(tmp_path: Path) -> None:
    threads = served(tmp_path, 2, "--enforce-eager").serving
    processes = served(tmp_path, 2, "--enforce-eager", launcher=("--isolation", "process")).serving
    assert threads is not None
    assert processes is not None
    assert processes.generated_tokens == threads.generated_tokens == 16
    assert processes.tpot.mean == pytest.approx(threads.tpot.mean, rel=0.02)  # type: ignore[union-attr]
