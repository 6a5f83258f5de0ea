"""Parameters and buffers that a program never writes are named after the first step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import kernbench

WIDTH = 64


class Scaled(nn.Module):
    """A layer with a scale, a table, and a parameter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.empty(WIDTH))
        self.unused = nn.Parameter(torch.empty(WIDTH))
        self.register_buffer("table", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale + self.table


def of_meta() -> Scaled:
    """On the GPU, without values."""
    with torch.device("meta"):
        module = Scaled()
    return module.to_empty(device="cuda")


def initialised(fill: Callable[[torch.Tensor], object]) -> Scaled:
    module = of_meta()
    module.linear.reset_parameters()
    module.table.fill_(1.0)
    fill(module.scale)
    return module


def by_collective(scale: torch.Tensor) -> None:
    """As where only rank 0 has initialised it: nothing is passed to autograd."""
    dist.broadcast(scale.data if dist.get_rank() else scale.data.fill_(1.0), src=0)


def sharded() -> Scaled:
    with torch.device("meta"):
        module = Scaled()
    fully_shard(module)
    module.to_empty(device="cuda")
    module.linear.reset_parameters()
    return module


def remarks_of(make: Callable[[], nn.Module], *, data: bool = True, isolation: str = "carrier") -> list[str]:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2)
        module = make()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            module(torch.ones(4, WIDTH, device="cuda", dtype=next(module.parameters()).dtype)).sum().backward()
            optimizer.step()

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
        return [each for each in ctx.simulation.remarks if each.startswith("never written")]


UNWRITTEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "to_empty": (of_meta, "a parameter of Scaled (float32 [64]) and 3 more"),
    "one forgotten": (lambda: initialised(lambda scale: None), "a parameter of Scaled (float32 [64])"),
    "made on the host": (lambda: Scaled().cuda(), "a parameter of Scaled (float32 [64])"),
    "of half the bits": (lambda: Scaled().cuda().bfloat16(), "a parameter of Scaled (bfloat16 [64])"),
    "sharded": (sharded, "a parameter of FSDPScaled (float32 [64]) and 1 more"),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_was_never_written_is_named_once(case):
    make, words = UNWRITTEN[case]
    found = remarks_of(make)
    assert len(found) == 1, "the ranks say the same"
    assert f"first step: {words};" in found[0]


def test_ranks_that_are_processes_say_it_too():
    assert remarks_of(of_meta, isolation="process") == remarks_of(of_meta)


def test_a_buffer_that_was_never_written_is_named():
    def make() -> nn.Module:
        module = initialised(lambda scale: nn.init.ones_(scale))
        module.table = torch.empty_like(module.table)
        return module

    assert ["first step: buffer Scaled.table (float32 [64]);" in each for each in remarks_of(make)] == [True]


WRITTEN: dict[str, Callable[[torch.Tensor], object]] = {
    "init": nn.init.ones_,
    "behind autograd": lambda scale: scale.data.normal_(),
    "zeros": nn.init.zeros_,
    "from numpy": lambda scale: scale.data.copy_(torch.from_numpy(torch.ones(WIDTH).numpy())),
    "by parts": lambda scale: [scale.data[:32].fill_(1.0), scale.data[32:].fill_(2.0)],
    "by a collective": by_collective,
}


@pytest.mark.parametrize("how", WRITTEN)
def test_what_was_written_in_any_way_is_not(how):
    assert remarks_of(lambda: initialised(WRITTEN[how])) == []


def test_without_data_no_memory_has_been_read():
    assert remarks_of(of_meta, data=False) == []
