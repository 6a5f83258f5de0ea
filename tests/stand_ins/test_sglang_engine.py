"""SGLang itself, as it is installed: its engine answers requests without data, and its cache of prefixes is in effect."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stand_ins.test_vllm_engine import LLAMA

pytestmark = [
    pytest.mark.long,  # starts the engine in processes
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed (docs/serving.md)"),
    pytest.mark.timeout(1200),
]

OFFLINE = """
import json, sys, time
import sglang

if __name__ == "__main__":
    engine = sglang.Engine(model_path=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, **json.loads(sys.argv[2]))
    wanted = {"max_new_tokens": 6, "ignore_eos": True, "temperature": 0}
    for turn in (0, 1, 1):
        begin = time.perf_counter()
        prompts = [[5 + (i + 100 * turn + 7 * request) % 1000 for i in range(2048)] for request in range(2)]
        outputs = engine.generate(input_ids=prompts, sampling_params=wanted)
        took = time.perf_counter() - begin
        found = [[len(each["output_ids"]), each["meta_info"]["cached_tokens"]] for each in outputs]
        print("generated", json.dumps([took, *found]))
    engine.shutdown()
"""


@pytest.mark.parametrize("options", [
    {"disable_cuda_graph": True}, {"cuda_graph_max_bs_decode": 2, "disable_prefill_cuda_graph": True},
])  # fmt: skip
def test_its_engine_answers(options: dict[str, object], tmp_path: Path) -> None:
    """The same requests take the same time; what is in the cache is computed once; what schedulers have to report is there."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "offline.py").write_text(OFFLINE)
    command = [
        sys.executable, "-m", "kernbench", "run", "--no-data", "--stand-in", "auto", "--system", "dgx_h100",
        "--", sys.executable, str(tmp_path / "offline.py"), str(tmp_path), json.dumps(options),
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1000)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "ended in the middle" not in ended.stdout + ended.stderr
    (first, *cold), (second, *other), (third, *cached) = (
        json.loads(each) for each in re.findall(r"^generated (.*)$", ended.stdout, re.MULTILINE)
    )
    assert cold == other == [[6, 0], [6, 0]]
    assert cached == [[6, 2047], [6, 2047]]
    assert second == pytest.approx(first, rel=1e-3)
    assert third < second
