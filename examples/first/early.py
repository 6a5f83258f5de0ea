"""A race: a gradient is looked at before its all-reduce has been waited for.

kernbench run --nproc-per-node 2 --system dgx_h100 --races examples/first/early.py
"""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
gradient = torch.ones(1024, device="cuda")
work = dist.all_reduce(gradient, async_op=True)
norm = gradient.norm()  # before anything has waited for the all-reduce
work.wait()
