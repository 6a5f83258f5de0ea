"""A program that hydra configures: its global state is a singleton of a metaclass, and it sets up the loggers of a process."""

import json
import logging
import os

import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="configs", config_name="train")
def main(config: DictConfig) -> None:
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(config.seed)
    model = torch.nn.Linear(config.model.width, 1).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=config.optimizer.lr)
    losses = []
    for batch in torch.randn(config.steps, 8, config.model.width).chunk(config.steps):
        mine = batch[0].chunk(world)[rank].cuda()
        optimizer.zero_grad()
        loss = ddp(mine).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(mean := loss.detach() / world)
        losses.append(mean.item())
    log.info("rank %d of %d", rank, world)
    print(json.dumps({"who": [rank, world, len(logging.getLogger().handlers)], "losses": losses}))
    dist.destroy_process_group()


main()
