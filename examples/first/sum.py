"""An all-reduce, and what it gives.

kernbench run --nproc-per-node 4 --system dgx_h100 examples/first/sum.py
"""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.full((1 << 20,), dist.get_rank() + 0.5, device="cuda")
dist.all_reduce(x)
print(x[0].item(), "on", x.device)
