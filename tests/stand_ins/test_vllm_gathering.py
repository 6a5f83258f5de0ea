"""vLLM's collectives of parts of several sizes, where its binding of NCCL has no library: the values of torch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.compiled_operators.vllm.gathering import gather_by_torch


class Communicator:
    """What the stand-in relies on of vLLM's."""

    def __init__(self, group: Any, *, disabled: bool) -> None:
        self.device_group, self.pynccl_comm = group, SimpleNamespace(disabled=disabled)

    def all_gatherv(self, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
        return "bound"

    def reduce_scatterv(self, input_: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
        return "bound"

    def reduce_scatterv_into_output(
        self, input_: Any, output: Any, dim: int = -1, sizes: list[int] | None = None
    ) -> Any:
        return "bound"


def _collectives(rank: int, sizes: list[int]) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    made: Any = type("CudaCommunicator", (Communicator,), {})
    gather_by_torch(SimpleNamespace(CudaCommunicator=made))  # type: ignore[arg-type]
    assert made(dist.group.WORLD, disabled=False).all_gatherv(None) == "bound"
    mine = made(dist.group.WORLD, disabled=True)
    ends = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    whole = torch.arange(2.0 * ends[-1], device="cuda").view(-1, 2)
    own = whole[ends[rank] : ends[rank + 1]]
    first, second = mine.all_gatherv([own, own[:, :1].contiguous()], 0, sizes)
    assert torch.equal(first, whole)
    assert torch.equal(second, whole[:, :1])
    assert torch.equal(mine.all_gatherv(own, sizes=sizes), whole)
    summed = len(sizes) * own
    assert torch.equal(mine.reduce_scatterv(whole, 0, sizes), summed)
    out = torch.empty_like(own)
    assert mine.reduce_scatterv_into_output(whole, out, 0, sizes) is out
    assert torch.equal(out, summed)
    assert torch.equal(whole, torch.arange(2.0 * ends[-1], device="cuda").view(-1, 2))
    with pytest.raises(NotImplementedError, match="rows alone"):
        mine.reduce_scatterv(whole, 1, sizes)


@pytest.mark.parametrize("sizes", [[2, 2], [1, 3, 2]])
def test_values(sizes: list[int]) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_collectives, args=(sizes,), nprocs=len(sizes))
