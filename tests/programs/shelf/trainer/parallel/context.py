"""The ring of the context-parallel group: parts of sequences go around it, their gradients the other way."""

import torch
import torch.distributed as dist
import trainer.parallel.state as state


def _passed(x, by):
    """What the neighbour ``by`` places back has, while the one ``by`` places further gets ``x``."""
    x = x.contiguous()  # NCCL moves memory, whatever strides say: both sides need the same
    manager, got = state.manager, torch.empty_like(x)
    calls = [
        dist.P2POp(dist.isend, x, manager.neighbour("context", by), manager.groups["context"]),
        dist.P2POp(dist.irecv, got, manager.neighbour("context", -by), manager.groups["context"]),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return got


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _passed(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _passed(grad, -1)


def around(part):
    """Parts of dimension 2 of all ranks, in order; each goes around the ring."""
    size, rank = state.manager.sizes["context"], state.manager.ranks["context"]
    parts = [None] * size
    for step in range(size):
        parts[(rank - step) % size] = part
        if step < size - 1:
            part = _Pass.apply(part)
    return torch.cat(parts, dim=2)
