"""A deadlock: two ranks wait for each other in two groups.

kernbench run --nproc-per-node 2 examples/first/stuck.py
"""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
pair, x = dist.new_group([0, 1]), torch.ones(1024, device="cuda")
if dist.get_rank() == 0:
    dist.barrier(pair)
dist.all_reduce(x)
if dist.get_rank() == 1:
    dist.barrier(pair)
