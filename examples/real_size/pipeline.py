"""A GPT of 7 billion parameters in eight pipeline stages, 1F1B or interleaved, with torch.distributed.pipelining.

kernbench run --no-data --system dgx_h100 --nproc-per-node 8 examples/real_size/pipeline.py --schedule 1F1B
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class


class Layer(nn.Module):
    """A layer of the transformer."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.mlp_norm = heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class Part(nn.Module):
    """What one stage holds: some layers, the first the embedding, the last the output."""

    def __init__(self, stage: int, stages: int, options: argparse.Namespace) -> None:
        super().__init__()
        o = options
        self.embedding = nn.Embedding(o.vocabulary, o.dim) if stage == 0 else None
        first, end = stage * o.layers // stages, (stage + 1) * o.layers // stages
        self.layers = nn.Sequential(*(Layer(o.dim, o.heads) for _ in range(first, end)))
        self.output = nn.Linear(o.dim, o.vocabulary, bias=False) if stage == stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(x if self.embedding is None else self.embedding(x))
        return x if self.output is None else self.output(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="1F1B")
    sizes = {
        "layers": 32, "dim": 4096, "heads": 32, "vocabulary": 50304, "length": 2048, "batch": 16, "microbatches": 16,
        "steps": 2,
    }  # fmt: skip
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    schedule_class = get_schedule_class(options.schedule)
    several = issubclass(schedule_class, PipelineScheduleMulti)
    stages = world * (2 if several else 1)
    torch.manual_seed(rank)
    parts = []
    for stage in range(rank, stages, world):
        with torch.device(device):
            part = Part(stage, stages, options).to(torch.bfloat16)
        parts.append(PipelineStage(part, stage, stages, device))

    def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.flatten(0, 1).float(), target.flatten())

    schedule = schedule_class(parts if several else parts[0], options.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([p for part in parts for p in part.submod.parameters()], lr=3e-4, fused=True)
    for step in range(options.steps):
        begin = time.perf_counter()
        tokens = torch.randint(0, options.vocabulary, (options.batch, options.length), device=device)
        given = (tokens,) if rank == 0 else ()
        last = {"target": tokens, "losses": []} if rank == world - 1 else {}
        schedule.step(*given, **last)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"step {step}: {took:.3f} s, {options.batch * options.length / took:.0f} tokens/s, peak {peak:.1f} GiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
