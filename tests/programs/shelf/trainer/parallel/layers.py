"""Layers of a transformer: weights are split over the tensor-parallel group, sequences over the context-parallel one."""

import torch
import torch.distributed as dist
import trainer.parallel.state as state
from trainer.parallel.context import around

WIDTH, HIDDEN, HEADS = 8, 16, 4


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.clone(), group=state.manager.groups["tensor"])
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad := grad.contiguous().clone(), group=state.manager.groups["tensor"])
        return grad


class SplitMLP(torch.nn.Module):
    """This rank has its part of the hidden units."""

    def __init__(self) -> None:
        super().__init__()
        part = state.manager.part("tensor", HIDDEN)
        self.up = torch.nn.Parameter((torch.randn(HIDDEN, WIDTH) / WIDTH**0.5)[part].clone())
        self.down = torch.nn.Parameter((torch.randn(WIDTH, HIDDEN) / HIDDEN**0.5)[:, part].clone())

    def forward(self, x):
        return _Reduce.apply(torch.relu(_Copy.apply(x) @ self.up.t()) @ self.down.t())


class SplitAttention(torch.nn.Module):
    """This rank has its heads, and its part of each sequence; keys and values of the others come around the ring."""

    def __init__(self) -> None:
        super().__init__()
        part = state.manager.part("tensor", HEADS)
        each = WIDTH // HEADS
        weights = (torch.randn(3, HEADS, each, WIDTH) / WIDTH**0.5)[:, part]
        self.mixed = torch.nn.Parameter(weights.clone())
        self.out = torch.nn.Parameter((torch.randn(WIDTH, HEADS, each) / WIDTH**0.5)[:, part].clone())

    def forward(self, x):
        queries, keys, values = torch.einsum("bsw,khew->kbhse", _Copy.apply(x), self.mixed)
        keys, values = around(keys), around(values)
        place = state.manager.ranks["context"] * queries.shape[2]
        rows = place + torch.arange(queries.shape[2], device=x.device)
        mask = torch.arange(keys.shape[2], device=x.device) <= rows[:, None]
        scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5
        mixed = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ values
        return _Reduce.apply(torch.einsum("bhse,whe->bsw", mixed, self.out))


class Block(torch.nn.Module):
    """Attention and a multilayer perceptron, each beside what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = SplitAttention(), SplitMLP()

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)
