"""``ShardedTensor``, which has a torch function of its own, on simulated ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch_backend.conftest import Ranks


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_sharded_tensor_says_where_it_is(ranks: Ranks, device: str) -> None:
    def body() -> Any:
        from torch.distributed._shard import sharded_tensor
        from torch.distributed._shard.sharding_spec import ChunkShardingSpec

        places = [f"rank:{rank}/{device}" + (f":{rank}" if device == "cuda" else "") for rank in range(2)]
        if device == "cuda":
            torch.cuda.set_device(dist.get_rank())
        tensor = sharded_tensor.rand(ChunkShardingSpec(dim=0, placements=places), 4, 3)
        return tensor.device.type, tensor.shape[0], tensor.local_shards()[0].tensor.device.type

    backend = "nccl" if device == "cuda" else "gloo"
    assert ranks(body, 2, backend=backend) == [(device, 4, device)] * 2
