"""vLLM's own processes, as it is installed: workers that spin on shared memory, its engine's core, its server and client."""

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
    return moments[0], moments[-1]

async def main():
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(
        model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=2048))
    print("took", await asyncio.gather(*[one(llm, at) for at in (0.0, 0.1, 0.2)]))
    llm.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""


def _run(folder: Path, script: str, *arguments: str) -> tuple[str, RunResult]:
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "script.py").write_text(script)
    command = [
        sys.executable, "-m", "kernbench", "run", "--no-data", "--stand-in", "auto", "--system", "dgx_h100", "--json",
        str(folder / "result.json"), "--", sys.executable, str(folder / "script.py"), str(folder), *arguments,
    ]  # fmt: skip
    environ = {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=2000)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout, read_result(folder / "result.json")


def test_workers_that_are_processes(tmp_path: Path) -> None:
    printed, result = _run(tmp_path, OFFLINE, "2")
    found = re.search(r"generated (\[.*\]) in (.*)", printed)
    assert found is not None
    assert found[1] == "[6, 6]"
    serving = result.serving
    assert serving is not None
    assert (serving.requests, serving.ended, serving.generated_tokens, serving.steps) == (2, 2, 12, 6)
    assert 0.9 < float(found[2]) / serving.seconds < 1.1


def test_requests_that_come_later_are_answered_as_quickly(tmp_path: Path) -> None:
    printed, result = _run(tmp_path, ASYNC)
    took = re.search(r"took (\[.*\])", printed)
    assert took is not None
    first, second, third = json.loads(took[1].replace("(", "[").replace(")", "]"))
    assert 1e-3 < first[0] < first[1] < 0.05
    assert second == pytest.approx(third, rel=0.02)
    assert second == pytest.approx(first, rel=0.1)
    assert result.serving is not None
    assert (result.serving.requests, result.serving.ended) == (3, 3)
