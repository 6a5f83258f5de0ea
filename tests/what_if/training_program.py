"""A small transformer, data parallel: what ``torchrun`` would run. ``--fail-at`` makes one width fail."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--fail-at", type=int)
args = parser.parse_args()
if args.width == args.fail_at:
    raise ValueError(f"width {args.width} is not for this")

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layer = nn.TransformerEncoderLayer(args.width, 4, 4 * args.width, dropout=0.0, batch_first=True)
model = DistributedDataParallel(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda())
optimizer = torch.optim.AdamW(model.parameters())
try:
    for _ in range(int(os.environ.get("STEPS", "100"))):
        x = torch.randn(args.batch, 8, args.width, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    print("torn down")
    dist.destroy_process_group()
