"""A mixture of experts with expert parallelism: Mixtral 8x7B's layers, one expert of each on every one of eight GPUs.

    kernbench run --no-data --system dgx_h100 --nproc-per-node 8 examples/real_size/experts.py

Attention and router are replicated (DDP's work, done by hand here); tokens go to their experts and back by all-to-all, with
sizes that the router's choice decides.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.utils.checkpoint import checkpoint


class Expert(nn.Module):
    """One gated feed-forward network."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """As many experts as ranks, of which this rank has one."""

    def __init__(self, dim: int, hidden: int, top: int) -> None:
        super().__init__()
        self.top, self.world = top, dist.get_world_size()
        self.router, self.expert = nn.Linear(dim, self.world, bias=False), Expert(dim, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top, -1)
        order = chosen.flatten().argsort(stable=True)
        sends = torch.bincount(chosen.flatten(), minlength=self.world)
        receives = torch.empty_like(sends)
        dist.all_to_all_single(receives, sends)
        there, here = receives.tolist(), sends.tolist()
        sent = tokens[order // self.top]
        arrived = all_to_all_single_autograd(sent, there, here, dist.group.WORLD)
        back = all_to_all_single_autograd(self.expert(arrived), here, there, dist.group.WORLD)
        scaled = back * weights.flatten()[order][:, None].to(back.dtype)
        return torch.zeros_like(tokens).index_add(0, order // self.top, scaled).view_as(x)


class Layer(nn.Module):
    """A layer of the transformer."""

    def __init__(self, dim: int, heads: int, hidden: int, top: int) -> None:
        super().__init__()
        self.heads, self.norm, self.expert_norm = heads, nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.experts = Experts(dim, hidden, top)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.experts(self.expert_norm(x))


class Model(nn.Module):
    """Token numbers, shape [batch, length], to logits."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        o = options
        self.embedding = nn.Embedding(o.vocabulary, o.dim)
        self.layers = nn.ModuleList(Layer(o.dim, o.heads, o.hidden, o.top) for _ in range(o.layers))
        self.output = nn.Linear(o.dim, o.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embedding(tokens)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        return self.output(h)


def main() -> None:
    parser = argparse.ArgumentParser()
    sizes = {
        "layers": 32, "dim": 4096, "heads": 32, "hidden": 14336, "top": 2, "vocabulary": 32000, "length": 4096, "batch": 1,
        "steps": 2,
    }  # fmt: skip
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(options).to(torch.bfloat16)
    own = {id(each) for layer in model.layers for each in layer.experts.expert.parameters()}
    shared = [each for each in model.parameters() if id(each) not in own]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    for step in range(options.steps):
        begin = time.perf_counter()
        tokens = torch.randint(0, options.vocabulary, (options.batch, options.length + 1)).cuda()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
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
