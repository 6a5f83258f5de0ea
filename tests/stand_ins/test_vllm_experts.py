"""vLLM's tokens of a model of experts with data: by one rank, by two with tensor or expert parallelism, by its server."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stand_ins.small_models import CLIENT, PROMPTS, TOKENS, saved

pytestmark = [
    pytest.mark.long,  # starts the engine in processes
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed (docs/serving.md)"),
    pytest.mark.timeout(2400),
]

OFFLINE = f"""
import os, sys
from vllm import LLM, SamplingParams

world = int(os.environ["WORLD_SIZE"])
more = dict(tensor_parallel_size=world, distributed_executor_backend="external_launcher") if world > 1 else {{}}
llm = LLM(model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, num_gpu_blocks_override=16,
          attention_backend="TRITON_ATTN", dtype="float32", enable_expert_parallel=sys.argv[2] == "experts",
          **more)
wanted = SamplingParams(max_tokens={TOKENS}, ignore_eos=True, detokenize=False, temperature=0)
outputs = llm.generate([dict(prompt_token_ids=each) for each in {PROMPTS}], wanted, use_tqdm=False)
print("tokens", [list(each.outputs[0].token_ids) for each in outputs])
"""


ASKS = f"""
wait_for("http://127.0.0.1:8133/health")
for prompt in {PROMPTS}:
    wanted = dict(max_tokens={TOKENS}, ignore_eos=True, temperature=0)
    answer = asked("http://127.0.0.1:8133/inference/v1/generate", token_ids=prompt, sampling_params=wanted)
    print("tokens", [json.loads(answer)["choices"][0]["token_ids"]], flush=True)
"""

SERVER = """
$1 -m vllm.entrypoints.cli.main serve $2 --port 8133 --tokens-only --enforce-eager --max-model-len 64 --dtype float32 \\
    --num-gpu-blocks-override 16 --attention-backend TRITON_ATTN --tensor-parallel-size 2 --shutdown-timeout 30 \\
    > $2/server.log 2>&1 &
$1 $2/client.py
kill -INT $!
wait $!
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A model on disk, and what it generates."""
    folder = tmp_path_factory.mktemp("experts")
    return folder, saved(folder, "Qwen3Moe")


def _tokens(apart: bool, *command: str) -> list[list[list[int]]]:
    """What is printed, line by line; ``apart``: by an engine that has processes of its own."""
    begun = [sys.executable, "-m", "kernbench", "run", "--stand-in", "auto", "--system", "dgx_h100", *command]
    environ = {
        **os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(apart)),
    }  # fmt: skip
    ended = subprocess.run(begun, env=environ, capture_output=True, text=True, check=False, timeout=800)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(each) for each in re.findall(r"tokens (\[\[.*\]\])", ended.stdout)]


@pytest.mark.parametrize(("ranks", "parallel", "isolation"), [
    (1, "tensor", "carrier"), (2, "tensor", "carrier"), (2, "tensor", "process"), (2, "experts", "carrier"),
])  # fmt: skip
def test_tokens_are_those_of_the_model(
    model: tuple[Path, list[list[int]]], ranks: int, parallel: str, isolation: str
) -> None:
    folder, expected = model
    (script := folder / "script.py").write_text(OFFLINE)
    how = ["--nproc-per-node", str(ranks), "--isolation", isolation]
    assert _tokens(False, *how, str(script), str(folder), parallel) == [expected] * ranks


def test_its_server_answers_with_them(model: tuple[Path, list[list[int]]]) -> None:
    folder, expected = model
    (folder / "client.py").write_text(CLIENT + ASKS)
    (folder / "serve.sh").write_text(SERVER)
    asked = _tokens(True, "--", "bash", str(folder / "serve.sh"), sys.executable, str(folder))
    assert asked == [[each] for each in expected]
