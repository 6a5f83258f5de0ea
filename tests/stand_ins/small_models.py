"""Small models with random weights on disk, and what transformers generates with them: for tests of serving engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kernbench.stand_ins import AUTO, standing_in

PROMPTS = [[(5 + 7 * at * (1 + number)) % 200 for at in range(24)] for number in range(2)]
TOKENS = 6

_SHAPE: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64, "initializer_range": 0.2,
    "torch_dtype": "float32",
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}  # fmt: skip


def saved(folder: Path, kind: str) -> list[list[int]]:
    """The tokens that a model generates behind :data:`PROMPTS`; it is saved in a folder.

    Args:
        folder: of the model.
        kind: ``"Llama"`` or ``"Qwen3Moe"``.
    """
    with standing_in([AUTO]):  # for torchvision's operators, which transformers imports where it is installed
        import transformers

        config, model = (getattr(transformers, f"{kind}{what}") for what in ("Config", "ForCausalLM"))
    torch.manual_seed(3)
    made = model(config(**_SHAPE, **(_EXPERTS if "Moe" in kind else {}))).float().eval()
    made.save_pretrained(folder)
    with torch.no_grad():
        found = [
            made.generate(
                torch.tensor([each]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
            )[0, len(each) :].tolist()
            for each in PROMPTS
        ]
    assert len({token for each in found for token in each}) > 3
    return found


CLIENT = """
import json, time, urllib.error, urllib.request

def asked(url, **body):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    with urllib.request.urlopen(request) as answer:
        return answer.read()

def wait_for(url):
    while True:
        try:
            return asked(url)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.01)
"""
"""Python of a client over HTTP, behind which what it asks is written."""
