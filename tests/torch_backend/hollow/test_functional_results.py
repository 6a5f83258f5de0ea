"""Without data: what a functional collective gives is known where what its members bring is, and else assumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import kernbench
from kernbench.torch_backend.hollow.assumed_numbers import AssumedFloat, is_marked

OPS: Any = torch.ops._c10d_functional
SIZE = 2

COLLECTIVES: dict[str, Callable[[torch.Tensor, str], Any]] = {
    "all_reduce": lambda x, group: OPS.all_reduce(x, "sum", group),
    "all_reduce_coalesced": lambda x, group: OPS.all_reduce_coalesced([x], "sum", group)[0],
    "broadcast": lambda x, group: OPS.broadcast(x, 0, group),
    "all_gather": lambda x, group: OPS.all_gather_into_tensor(x, SIZE, group),
    "reduce_scatter": lambda x, group: OPS.reduce_scatter_tensor(x, "sum", SIZE, group),
    "all_to_all": lambda x, group: OPS.all_to_all_single(x, [1, 1], [1, 1], group),
}


def _in_ranks(body: Callable[[int], Any]) -> list[Any]:
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        found[rank] = body(rank)

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=SIZE)
    return [found[rank] for rank in range(SIZE)]


def _assumed() -> torch.Tensor:
    """``[2]``: small, and of what is not known."""
    return torch.stack([torch.randn(4096, device="cuda").square().sum()] * 2)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_is_assumed_stays_so(name: str) -> None:
    def body(rank: int) -> list[bool]:
        group = dist.distributed_c10d._get_default_group().group_name
        given = (
            torch.tensor([3.0, 3.0], device="cuda"),
            _assumed(),
            _assumed() if rank == 1 else torch.ones(2, device="cuda"),
        )
        return [is_marked(OPS.wait_tensor(COLLECTIVES[name](each, group))[0].item()) for each in given]

    known, assumed, assumed_by_one = zip(*_in_ranks(body), strict=True)
    assert known == (False, False)
    assert assumed == (True, True)
    assert any(assumed_by_one) or name == "broadcast"


def test_a_norm_of_sharded_gradients() -> None:
    """A DTensor sums its parts by one."""

    def body(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (SIZE,))
        gradient = DTensor.from_local(torch.randn(64, 64, device="cuda"), mesh, [Shard(0)])
        norm: Any = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([gradient, gradient])))
        return norm.full_tensor().item()

    assert [type(each) for each in _in_ranks(body)] == [AssumedFloat, AssumedFloat]
