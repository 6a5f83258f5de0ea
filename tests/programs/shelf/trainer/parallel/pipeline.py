"""A pipeline: all micro-batches forward, then all backward."""

import torch
import torch.distributed as dist
import trainer.parallel.state as state


def step(model, batches, loss_of):
    """One pass over micro-batches; the mean of their losses on the last stage, 0 on the others."""
    manager = state.manager
    first = manager.ranks["pipeline"] == 0
    last = manager.ranks["pipeline"] == manager.sizes["pipeline"] - 1
    ran = []
    for batch in batches:
        given = batch
        if not first:
            dist.recv(given := torch.empty_like(batch), manager.neighbour("pipeline", -1))
            given.requires_grad_()
        out = model(given)
        if last:
            out = loss_of(out, batch) / len(batches)
        else:
            dist.send(out.detach(), manager.neighbour("pipeline", 1))
        ran.append((given, out))
    for given, out in ran:
        grad = None
        if not last:
            dist.recv(grad := torch.empty_like(out), manager.neighbour("pipeline", 1))
        out.backward(grad)
        if not first:
            dist.send(given.grad, manager.neighbour("pipeline", -1))
    return sum(out.detach() for _, out in ran) if last else torch.zeros((), device=batches[0].device)
