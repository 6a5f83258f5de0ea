"""DTensor compares the states of generators when it begins: a look of the host, not one per byte."""

from __future__ import annotations

import torch
import torch.distributed as dist

import kernbench


def test_states_are_compared_in_one_look():
    def worker(rank: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (2,))
        drawn = torch.nn.init.normal_(distribute_tensor(torch.empty(64, 64, device="cuda"), mesh, [Shard(0)]))
        found.append(float(drawn.full_tensor().std()))
        dist.destroy_process_group()

    found: list[float] = []
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        looks = [op for op in ctx.engine.op_log.operations if op.name == "device to host"]
    assert found[0] == found[1]
    assert abs(found[0] - 1.0) < 0.1
    assert len(looks) < 20  # the states, and the test's own
