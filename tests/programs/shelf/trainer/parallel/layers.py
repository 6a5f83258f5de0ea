"""Linear layers whose weights are split between the ranks of the tensor-parallel group."""

import torch
import torch.distributed as dist
import trainer.parallel.state as state


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.clone(), group=state.manager.tensor_group)
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
        dist.all_reduce(grad := grad.contiguous().clone(), group=state.manager.tensor_group)
        return grad


class SplitMLP(torch.nn.Module):
    """``width -> hidden -> width``: this rank has its part of the hidden units."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        part = slice_of(hidden)
        self.up = torch.nn.Parameter((torch.randn(hidden, width) / width**0.5)[part].clone())
        self.down = torch.nn.Parameter((torch.randn(width, hidden) / hidden**0.5)[:, part].clone())

    def forward(self, x):
        return _Reduce.apply(torch.relu(_Copy.apply(x) @ self.up.t()) @ self.down.t())


def slice_of(size: int) -> slice:
    """This rank's part of a dimension."""
    each = size // state.manager.tensor
    return slice(state.manager.tensor_rank * each, (state.manager.tensor_rank + 1) * each)
