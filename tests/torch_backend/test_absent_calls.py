"""What groups and backends of torch have besides collectives: memory of the library, and what is refused in words."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import kernbench


def test_fsdp_takes_memory_of_the_group() -> None:
    sums: list[list[float]] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        for from_group in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
            for module in (*model, model):
                fully_shard(module)
                module.set_allocate_memory_from_process_group_for_comm(from_group)  # type: ignore[attr-defined]
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            sums.append([each.grad.full_tensor().sum().item() for each in model.parameters()])  # type: ignore[union-attr]

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert len(sums) == 4
    assert all(each == sums[0] for each in sums)


@pytest.mark.parametrize(("system", "gives"), [("dgx_h100", True), ("dgx_a100", False)])
def test_a_backend_has_memory_where_switches_reduce(system: str, gives: bool) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        group, gpu = dist.distributed_c10d._get_default_group(), torch.device("cuda")
        backend = group._get_backend(gpu)
        assert backend.supports_tensor_alloc(gpu) is gives  # type: ignore[attr-defined]
        host = torch.device("cpu")
        assert not group._get_backend(host).supports_tensor_alloc(host)  # type: ignore[attr-defined]
        if gives:
            tensor = backend.allocate_tensor(4, dtype=torch.int64, device=gpu)  # type: ignore[attr-defined]
            assert (tensor.shape, tensor.dtype, tensor.device.type) == ((4,), torch.int64, "cuda")

    with kernbench.simulate(system) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)


def test_what_is_not_modelled_is_refused_in_words() -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.distributed_c10d._get_default_group()
        with pytest.raises(
            NotImplementedError, match=r"_register_on_completion_hook is not modelled: .*get_future\(\)"
        ):
            group._register_on_completion_hook(print)  # type: ignore[attr-defined]
        with pytest.raises(NotImplementedError, match="shrink is not modelled: make a new group"):
            group._get_backend(torch.device("cuda")).shrink([1])
        with pytest.raises(NotImplementedError, match="kernbench run --flight-recorder"):
            torch._C._distributed_c10d._dump_nccl_trace()  # type: ignore[attr-defined]
        group._enable_collectives_timing()  # type: ignore[attr-defined]
        x = torch.ones(2, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        group._wait_for_pending_works()  # type: ignore[attr-defined]
        assert work is not None
        assert work.is_completed()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
