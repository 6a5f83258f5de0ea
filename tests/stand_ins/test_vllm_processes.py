"""vLLM's own processes, as it is installed: workers that spin on shared memory, its engine's core, its server and client.

What a request takes there is what the same engine takes for it in one process, where nothing waits for anybody.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.trace.run_result import RunResult, read_result
from tests.stand_ins.test_vllm_engine import LLAMA

pytestmark = [
    pytest.mark.long,  # starts the engine in processes
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed (docs/serving.md)"),
    pytest.mark.timeout(2400),
]

OFFLINE = """
import sys, time
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=2048,
              tensor_parallel_size=int(sys.argv[2]))
    prompts = [dict(prompt_token_ids=[5 + i % 200 for i in range(128)]) for _ in range(2)]
    begin = time.perf_counter()
    wanted = SamplingParams(max_tokens=6, ignore_eos=True, detokenize=False, temperature=0)
    outputs = llm.generate(prompts, wanted, use_tqdm=False)
    print("generated", [len(each.outputs[0].token_ids) for each in outputs], "in", time.perf_counter() - begin)
"""

# One request after the other: the moments of each one's tokens
ALONE = """
import sys, time
from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=2048)
engine, took = llm.llm_engine, []
for turn in range(2):
    time.sleep(0.1)
    begin, moments = time.perf_counter(), []
    wanted = SamplingParams(max_tokens=6, ignore_eos=True, detokenize=False, temperature=0)
    engine.add_request(f"r{turn}", {"prompt_token_ids": [5 + i % 200 for i in range(128)]}, wanted)
    while engine.has_unfinished_requests():
        if engine.step():
            moments.append(time.perf_counter() - begin)
    took.append(moments)
print("took", took)
"""

ASYNC = """
import asyncio, sys, time
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

async def one(llm, at):
    await asyncio.sleep(at)
    begin, moments = time.perf_counter(), []
    wanted = SamplingParams(max_tokens=6, ignore_eos=True, detokenize=False, temperature=0)
    async for _ in llm.generate({"prompt_token_ids": [5 + i % 200 for i in range(128)]}, wanted, f"at {at}"):
        moments.append(time.perf_counter() - begin)
    return moments

async def main():
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(
        model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=2048))
    print("took", await asyncio.gather(*[one(llm, at) for at in (0.0, 0.1, 0.2)]))
    llm.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""

SERVER = """
python=$1 model=$2
$python -m vllm.entrypoints.cli.main serve $model --load-format dummy --enforce-eager --max-model-len 2048 --port 8129 \\
    --shutdown-timeout 30 > $model/server.log 2>&1 &
server=$!
$python -m vllm.entrypoints.cli.main bench serve --model $model --port 8129 --dataset-name random --random-input-len 128 \\
    --random-output-len 6 --num-prompts 4 --request-rate 8 --ignore-eos --ready-check-timeout-sec 1000 --save-result \\
    --save-detailed --result-dir $model --result-filename benchmark.json
kill -INT $server
wait $server
"""


def _run(folder: Path, script: str, *arguments: str) -> tuple[str, RunResult]:
    (folder / "script.py").write_text(script)
    return _ran(folder, "--", sys.executable, str(folder / "script.py"), str(folder), *arguments)


def _ran(folder: Path, *command: str) -> tuple[str, RunResult]:
    (folder / "config.json").write_text(json.dumps(LLAMA))
    begun = [
        sys.executable, "-m", "kernbench", "run", "--no-data", "--stand-in", "auto", "--system", "dgx_h100", "--json",
        str(folder / "result.json"),
    ]  # fmt: skip
    apart = "1" if command[0] == "--" else "0"
    environ = {
        **os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": apart,
    }  # fmt: skip
    ended = subprocess.run([*begun, *command], env=environ, capture_output=True, text=True, check=False, timeout=2000)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout, read_result(folder / "result.json")


def _took(printed: str) -> list[list[float]]:
    """Of each request, when its tokens came after it had been asked, s."""
    found = re.search(r"took (\[.*\])", printed)
    assert found is not None
    moments: list[list[float]] = json.loads(found[1])
    return moments


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The moments of a request's tokens in one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "script.py").write_text(ALONE)
    first, second = _took(_ran(folder, "--nproc-per-node", "1", str(folder / "script.py"), str(folder))[0])
    assert first == pytest.approx(second, rel=1e-3)
    assert len(second) == 6
    return second


def test_workers_that_are_processes(tmp_path: Path) -> None:
    printed, result = _run(tmp_path, OFFLINE, "2")
    found = re.search(r"generated (\[.*\]) in (.*)", printed)
    assert found is not None
    assert found[1] == "[6, 6]"
    serving = result.serving
    assert serving is not None
    assert (serving.requests, serving.ended, serving.generated_tokens, serving.steps) == (2, 2, 12, 6)
    assert 0.9 < float(found[2]) / serving.seconds < 1.1


def test_an_engine_of_its_own_process_takes_as_long(tmp_path: Path, alone: list[float]) -> None:
    runs = []
    for name in ("first", "again"):
        (folder := tmp_path / name).mkdir()
        printed, result = _run(folder, ASYNC)
        assert result.serving is not None
        assert (result.serving.requests, result.serving.ended) == (3, 3)
        runs.append((_took(printed), result.serving))
    assert runs[0] == runs[1]
    for moments in runs[0][0]:
        assert moments == pytest.approx(alone, rel=1e-3)


def test_a_server_and_its_benchmark_over_loopback(tmp_path: Path, alone: list[float]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(2000)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w0").save_pretrained(tmp_path)
    (tmp_path / "serve.sh").write_text(SERVER)
    _, result = _ran(tmp_path, "--", "bash", str(tmp_path / "serve.sh"), sys.executable, str(tmp_path))
    assert not result.failures
    told = json.loads((tmp_path / "benchmark.json").read_text())
    assert told["completed"] == 4
    assert told["ttfts"] == pytest.approx([alone[0]] * 4, rel=1e-3)
    for between in told["itls"]:
        assert sum(between) == pytest.approx(alone[-1] - alone[0], rel=1e-3)
    serving = result.serving
    assert serving is not None
    assert (serving.requests, serving.ended) == (5, 5)  # the benchmark tries one before it begins
    assert [each.name for each in serving.of_requests] == ["cmpl-0", *(f"cmpl-bench-{at}-0" for at in range(4))]
    for each in serving.of_requests:
        assert each.first_token is not None
        assert each.first_token - each.arrived == pytest.approx(alone[0], rel=1e-3)
