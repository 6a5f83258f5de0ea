"""A trainer in a package without ``__init__.py`` that keeps the process's groups in a module, as small trainers do."""

import json
import os
import sys

import torch
import torch.distributed as dist
import trainer.parallel.state as state
from trainer.parallel.layers import SplitMLP

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
state.set_up(int(sys.argv[1]))
torch.manual_seed(0)
model = torch.nn.Sequential(SplitMLP(8, 16), SplitMLP(8, 16)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for batch in torch.randn(4, 8, 8):
    mine = batch.chunk(state.manager.data)[state.manager.data_rank].cuda()
    optimizer.zero_grad()
    loss = (model(mine) - mine).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=state.manager.data_group)
        parameter.grad /= state.manager.data
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, group=state.manager.data_group)
    losses.append(mean.item() / state.manager.data)
print(json.dumps({"who": [state.RANK, state.Manager.instances], "losses": losses}))
