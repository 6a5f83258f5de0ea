"""The tests of ``split_linear.py``, on simulated ranks: they need no GPU, no launcher and no port.

python -m pytest -q examples/ci
"""

import pytest
import torch
import torch.distributed as dist
from split_linear import SplitLinear


@pytest.fixture
def weight():
    return torch.arange(16.0 * 32).reshape(16, 32) / 512


@pytest.mark.world_size(2, 4, system="dgx_h100")
def test_it_is_the_whole_product(rank, world_size, weight):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    x = torch.linspace(-1, 1, 4 * 32).reshape(4, 32)
    mine = slice(rank * 32 // world_size, (rank + 1) * 32 // world_size)
    layer = SplitLinear(32, 16)
    layer.weight.data.copy_(weight[:, mine])
    torch.testing.assert_close(layer(x[:, mine].cuda()).cpu(), x @ weight.T)


@pytest.mark.world_size(3, system="dgx_h100")
def test_what_does_not_divide_is_refused():
    dist.init_process_group("nccl")
    with pytest.raises(ValueError, match="32 columns over 3 ranks"):
        SplitLinear(32, 16)
