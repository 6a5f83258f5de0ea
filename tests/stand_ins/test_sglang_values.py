"""SGLang's tokens with data are those of transformers' model: by one rank, by two, and by its server."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stand_ins.small_models import CLIENT, PROMPTS, TOKENS, saved

pytestmark = [
    pytest.mark.long,  # starts the engine in processes
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed (docs/serving.md)"),
    pytest.mark.timeout(1200),
]

_WANTED = {"max_new_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
_ENGINE = {"dtype": "float32", "max_total_tokens": 512, "context_length": 64, "skip_tokenizer_init": True}

OFFLINE = f"""
import json, sys
import sglang

if __name__ == "__main__":
    engine = sglang.Engine(model_path=sys.argv[1], **json.loads(sys.argv[2]))
    for turn in range(2):  # the second time with prompts that are in its cache
        outputs = engine.generate(input_ids={PROMPTS}, sampling_params={_WANTED})
        print("tokens", [each["output_ids"] for each in outputs])
    engine.shutdown()
"""

ASKS = f"""
wait_for("http://127.0.0.1:8131/model_info")
for turn in range(2):
    answers = json.loads(asked("http://127.0.0.1:8131/generate", input_ids={PROMPTS}, sampling_params={_WANTED}))
    print("tokens", [each["output_ids"] for each in answers], flush=True)
"""

SERVER = """
$1 -m sglang.launch_server --model-path $2 --port 8131 --skip-server-warmup --dtype float32 --max-total-tokens 512 \\
    --context-length 64 --skip-tokenizer-init --disable-cuda-graph --tp-size $3 > $2/server.log 2>&1 &
$1 $2/client.py
kill -TERM $!
wait $!
"""


def _tokens(*command: str) -> list[list[list[int]]]:
    """What is printed, turn by turn."""
    begun = [sys.executable, "-m", "kernbench", "run", "--stand-in", "auto", "--system", "dgx_h100", "--", *command]
    ended = subprocess.run(begun, capture_output=True, text=True, check=False, timeout=1000)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(each) for each in re.findall(r"^tokens (.*)$", ended.stdout, re.MULTILINE)]


@pytest.mark.parametrize(("kind", "ranks", "options"), [
    ("Llama", 1, {"disable_cuda_graph": True}),
    ("Llama", 2, {"disable_cuda_graph": True}),
    ("Llama", 1, {"cuda_graph_max_bs_decode": 2}),  # prompts are captured by default
    ("Llama", 2, {"cuda_graph_max_bs_decode": 2}),
    ("Qwen3Moe", 1, {"disable_cuda_graph": True}),
    ("Qwen3Moe", 2, {"disable_cuda_graph": True}),
])  # fmt: skip
def test_tokens_are_those_of_the_model(kind: str, ranks: int, options: dict[str, object], tmp_path: Path) -> None:
    expected = saved(tmp_path, kind)
    (tmp_path / "offline.py").write_text(OFFLINE)
    how = json.dumps({**_ENGINE, "tp_size": ranks, **options})
    assert _tokens(sys.executable, str(tmp_path / "offline.py"), str(tmp_path), how) == [expected] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_its_server_answers_with_them(ranks: int, tmp_path: Path) -> None:
    """It ends when it is asked to: seconds in which schedulers of two ranks have nothing to do, and tell each other so."""
    expected = saved(tmp_path, "Llama")
    (tmp_path / "client.py").write_text(CLIENT + ASKS)
    (tmp_path / "serve.sh").write_text(SERVER)
    assert _tokens("bash", str(tmp_path / "serve.sh"), sys.executable, str(tmp_path), str(ranks)) == [expected] * 2
    assert "Finished server process" in (tmp_path / "server.log").read_text()
