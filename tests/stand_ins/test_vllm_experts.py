"""vLLM's tokens of a model of experts with data: by one rank, by two with tensor or expert parallelism."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernbench.stand_ins import AUTO, standing_in

pytestmark = [
    pytest.mark.long,  # starts the engine in processes
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed (docs/serving.md)"),
    pytest.mark.timeout(2400),
]

PROMPTS = [[(5 + 7 * at * (1 + number)) % 200 for at in range(24)] for number in range(2)]
TOKENS = 6

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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A model on disk, and what it generates."""
    with standing_in([AUTO]):  # for torchvision's operators, which transformers imports where it is installed
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=2,
        decoder_sparse_step=1, norm_topk_prob=True, max_position_embeddings=64, initializer_range=0.2, torch_dtype="float32",
    )  # fmt: skip
    made = Qwen3MoeForCausalLM(config).float().eval()
    folder = tmp_path_factory.mktemp("experts")
    made.save_pretrained(folder)
    with torch.no_grad():
        found = [
            made.generate(
                torch.tensor([each]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            for each in PROMPTS
        ]
    return folder, [each[0, len(PROMPTS[0]) :].tolist() for each in found]


@pytest.mark.parametrize(("ranks", "parallel"), [(1, "tensor"), (2, "tensor"), (2, "experts")])
def test_tokens_are_those_of_the_model(model: tuple[Path, list[list[int]]], ranks: int, parallel: str) -> None:
    folder, expected = model
    assert len({token for each in expected for token in each}) > 3
    (script := folder / "script.py").write_text(OFFLINE)
    command = [
        sys.executable, "-m", "kernbench", "run", "--stand-in", "auto", "--system", "dgx_h100", "--nproc-per-node",
        str(ranks), str(script), str(folder), parallel,
    ]  # fmt: skip
    environ = {
        **os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }  # fmt: skip
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=800)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    printed = re.findall(r"tokens (\[\[.*\]\])", ended.stdout)
    assert printed == [str(expected)] * ranks
