"""Llama-3 8B trained with FSDP2: bfloat16 with float32 shards, every layer recomputed, AdamW, clipped gradients.

    kernbench run --no-data --system dgx_h100 --nproc-per-node 8 examples/real_size/llama_fsdp.py

The program has nothing of kernbench in it: ``torchrun --nproc-per-node 8 llama_fsdp.py`` runs it on eight GPUs.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Causal attention with rotary embeddings and fewer heads of keys than of queries."""

    def __init__(self, dim: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.size = dim // heads
        self.wq = nn.Linear(dim, heads * self.size, bias=False)
        self.wk = nn.Linear(dim, key_heads * self.size, bias=False)
        self.wv = nn.Linear(dim, key_heads * self.size, bias=False)
        self.wo = nn.Linear(heads * self.size, dim, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, self.size) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, angles), rotated(k, angles)
        o = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.wo(o.transpose(1, 2).reshape(batch, length, -1))


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary position embeddings of ``x``, shape [batch, length, heads, size]."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles[None, :, None, :]).flatten(3).type_as(x)


class Layer(nn.Module):
    """A layer of the transformer."""

    def __init__(self, dim: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.norm, self.mlp_norm = Attention(dim, heads, key_heads), nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x), angles)
        h = self.mlp_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    """The model: token numbers, shape [batch, length], to logits."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        o = options
        self.length, self.size = o.length, o.dim // o.heads
        self.embedding = nn.Embedding(o.vocabulary, o.dim)
        self.layers = nn.ModuleList(Layer(o.dim, o.heads, o.key_heads, o.hidden) for _ in range(o.layers))
        self.norm, self.output = nn.RMSNorm(o.dim), nn.Linear(o.dim, o.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        h = self.embedding(tokens)
        for layer in self.layers:
            h = checkpoint(layer, h, angles, use_reentrant=False)
        return self.output(self.norm(h))

    def angles(self) -> torch.Tensor:
        """Of the rotary embeddings: complex, shape [length, size / 2]."""
        frequencies = 500000.0 ** -(torch.arange(0, self.size, 2).float() / self.size)
        turns = torch.outer(torch.arange(self.length).float(), frequencies)
        return torch.polar(torch.ones_like(turns), turns).cuda()


def main() -> None:
    parser = argparse.ArgumentParser()
    sizes = {
        "layers": 32, "dim": 4096, "heads": 32, "key-heads": 8, "hidden": 14336, "vocabulary": 128256, "length": 8192,
        "batch": 1, "steps": 2,
    }  # fmt: skip
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    with torch.device("meta"):
        model = Llama(options)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    angles = model.angles()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(options.steps):
        begin = time.perf_counter()
        tokens = torch.randint(0, options.vocabulary, (options.batch, options.length + 1)).cuda()
        logits = model(tokens[:, :-1], angles)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        if dist.get_rank() == 0:
            rate = options.batch * options.length / took
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(
                f"step {step}: loss {loss.item():.3f}, {took:.3f} s, {rate:.0f} tokens/s per GPU, peak {peak:.1f} GiB"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
