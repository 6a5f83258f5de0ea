"""Training a GPT-2 of 124 million parameters on one GPU, or on several with DDP, as nanoGPT's first ``bench.py`` did.

    python gpt.py --batch 8 --compile
    torchrun --nproc-per-node 8 gpt.py --batch 12 --attention flash --optimizer fused --vocab 50304

What is as there (github.com/karpathy/nanoGPT of 29 December 2022) by default: attention by hand, GELU in one kernel, autocast
to 16 bits, separate tables for tokens and logits, AdamW without a kernel of its own, and a look at the loss after every step.
Later versions have ``--attention flash``, ``--optimizer fused`` and ``--vocab 50304``.
"""

from __future__ import annotations

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class GptAttention(nn.Module):
    """Causal self-attention, ``flash`` or by hand."""

    def __init__(self, dim: int, heads: int, seq: int, flash: bool) -> None:
        super().__init__()
        self.heads, self.flash = heads, flash
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.ones(seq, seq, dtype=torch.bool).tril()[None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, seq, dim]``."""
        seq = x.shape[1]
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        if self.flash:
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(key.shape[-1]))
            scores = scores.masked_fill(self.seen[:, :, :seq, :seq] == 0, float("-inf"))
            found = F.softmax(scores, dim=-1) @ value
        result: torch.Tensor = self.out(found.transpose(1, 2).flatten(2))
        return result


class GptLayer(nn.Module):
    """One layer."""

    def __init__(self, dim: int, heads: int, seq: int, flash: bool) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = GptAttention(dim, heads, seq, flash)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [batch, seq, dim]``."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.ffn_norm(x)), approximate="tanh"))
        return result


class Gpt(nn.Module):
    """Tokens ``[batch, seq]`` and labels to the loss."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(args.vocab, args.dim)
        self.positions = nn.Embedding(args.seq, args.dim)
        flash = args.attention == "flash"
        self.blocks = nn.ModuleList(GptLayer(args.dim, args.heads, args.seq, flash) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.dim)
        self.logits = nn.Linear(args.dim, args.vocab, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of the next tokens."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.logits(self.norm(x)).flatten(0, 1), labels.flatten())


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 12, "dim": 768, "heads": 12, "vocab": 50257, "seq": 1024, "batch": 8, "steps": 3}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--attention", choices=("hand", "flash"), default="hand")
    parser.add_argument("--optimizer", choices=("foreach", "fused", "for-loop"), default="foreach")
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Train."""
    args = arguments()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        dist.init_process_group("nccl")
    torch.backends.cuda.matmul.allow_tf32 = True
    model: nn.Module = Gpt(args).to(device)
    kernels = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False}}[args.optimizer]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=1e-2, **kernels)
    if args.compile:
        model = torch.compile(model)  # type: ignore[assignment]
    if several:
        model = DistributedDataParallel(model, device_ids=[device.index])
    for step in range(args.steps):
        tokens = torch.randint(0, args.vocab, (args.batch, args.seq + 1)).to(device)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
