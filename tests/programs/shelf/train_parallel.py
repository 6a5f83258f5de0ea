"""A trainer in a package without ``__init__.py`` that keeps the process's groups in a module, as small trainers do.

``train_parallel.py TENSOR PIPELINE CONTEXT``: how many ranks split weights, layers and sequences; the others split the batch.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import trainer.parallel.state as state
from trainer.parallel import pipeline
from trainer.parallel.layers import WIDTH, Block

LAYERS, BATCH, SEQUENCE = 4, 8, 8

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
state.set_up(*map(int, sys.argv[1:]))
manager = state.manager
torch.manual_seed(0)
blocks = [Block() for _ in range(LAYERS)]
model = torch.nn.Sequential(*blocks[manager.part("pipeline", LAYERS)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for batch in torch.randn(3, BATCH, SEQUENCE, WIDTH):
    mine = batch[manager.part("data", BATCH), manager.part("context", SEQUENCE)].cuda()
    optimizer.zero_grad()
    loss = pipeline.step(model, mine.chunk(2), lambda out, x: (out - x.flip(-1)).square().mean())
    for name in ("data", "context"):
        for value in (loss, *(parameter.grad for parameter in model.parameters())):
            dist.all_reduce(value, group=manager.groups[name])
            value /= manager.sizes[name]
    dist.broadcast(loss, manager.members["pipeline"][-1], group=manager.groups["pipeline"])
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"who": [state.RANK, state.Manager.instances], "losses": losses}))
