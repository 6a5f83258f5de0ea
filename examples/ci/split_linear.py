"""A package of one module: a linear layer whose rows are split over the ranks of a group. Its tests are in ``tests``.

kernbench run --nproc-per-node 4 --system dgx_h100 examples/ci/split_linear.py
"""

import torch
import torch.distributed as dist


class SplitLinear(torch.nn.Module):
    """``x @ weight.T`` where every rank has ``width / ranks`` columns of ``weight``, and of ``x``."""

    def __init__(self, width: int, outputs: int, device: str = "cuda") -> None:
        super().__init__()
        if width % dist.get_world_size():
            raise ValueError(f"{width} columns over {dist.get_world_size()} ranks")
        self.weight = torch.nn.Parameter(torch.empty(outputs, width // dist.get_world_size(), device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x @ self.weight.T
        dist.all_reduce(result)
        return result


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    layer = SplitLinear(8192, 1024)
    torch.nn.init.constant_(layer.weight, 0.5)
    with torch.no_grad():
        print(layer(torch.ones(4, layer.weight.shape[1], device="cuda")).sum().item())
