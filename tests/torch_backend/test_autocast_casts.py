"""Casts of parameters are kept within autocast, as torch keeps them, by each rank for itself."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import kernbench

NARROW = torch.bfloat16
MODES: dict[str, type[AbstractContextManager[Any]]] = {
    "gradients": torch.enable_grad, "none": torch.no_grad, "inference": torch.inference_mode,
}  # fmt: skip


class Casting(TorchDispatchMode):
    """Counts casts."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operator._overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.to)
        return operator(*args, **(kwargs or {}))


def _counted(device: str, modes: tuple[str, ...], *, kept: bool = True, trained: bool = True) -> list[object]:
    """Casts of each of several products with one parameter, and whether the last is differentiable."""
    weight = torch.nn.Parameter(torch.ones(4, 4, device=device), requires_grad=trained)
    x = torch.ones(2, 4, dtype=NARROW, device=device)
    found, y = [], x
    with torch.autocast(device, NARROW, cache_enabled=kept):
        for mode in modes:
            with MODES[mode](), Casting() as casting:
                y = torch.nn.functional.linear(x, weight)
            found.append(casting.count)
    return [*found, y.requires_grad]


CASES = [
    ("gradients", "gradients"), ("gradients", "none"), ("none", "gradients"), ("none", "none"), ("gradients", "inference"),
]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("modes", CASES, ids=lambda modes: "-".join(modes))
def test_casts_are_those_of_torch(modes: tuple[str, ...], device: str) -> None:
    torchs = [_counted("cpu", modes), _counted("cpu", modes, kept=False), _counted("cpu", modes, trained=False)]
    with kernbench.simulated_gpu("dgx_h100"):
        ours = [_counted(device, modes), _counted(device, modes, kept=False), _counted(device, modes, trained=False)]
    assert ours == torchs


def test_a_cast_lives_as_long_as_the_outermost_autocast() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        weight = torch.nn.Parameter(torch.ones(1 << 10, 1 << 10, device="cuda"))
        x = torch.ones(1, 1 << 10, dtype=NARROW, device="cuda")
        (x @ x.T).sum()  # makes the workspace of products
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", NARROW):
            with torch.autocast("cuda", NARROW), torch.no_grad():
                (x @ weight).sum()
            assert torch.cuda.memory_allocated() - before == weight.nbytes // 2
        assert torch.cuda.memory_allocated() == before


def _order_of_gradients(device: str) -> list[str]:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Conv1d(4, 4, 1), torch.nn.Linear(4, 4)).to(device)
    found: list[str] = []
    for name, parameter in layers.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: found.append(name))
    with torch.autocast(device, NARROW):
        layers(torch.ones(2, 4, 4, device=device)).sum().backward()
    return found


def test_gradients_come_in_the_order_of_torchs_casts() -> None:
    torchs = _order_of_gradients("cpu")
    with kernbench.simulated_gpu("dgx_h100"):
        assert _order_of_gradients("cuda") == torchs
        assert _order_of_gradients("cpu") == torchs


def _leaves_before(rank: int) -> None:
    """Rank 1 leaves autocast before rank 0 uses its parameter again."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    told, weight = torch.zeros(1, device="cuda"), torch.nn.Parameter(torch.ones(1024, 1024, device="cuda"))
    x = torch.ones(8, 1024, device="cuda", dtype=NARROW)
    with torch.autocast("cuda", NARROW):
        torch.mm(x, weight)
        if rank == 0:
            dist.recv(told, 1)
            torch.cuda.synchronize()
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            torch.mm(x, weight)
            assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == 1
    if rank == 1:
        dist.send(told, 0)


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_rank_keeps_its_casts_when_another_leaves_autocast(isolation: str) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_leaves_before, nprocs=2, isolation=isolation)


def _trains(rank: int, device: str) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
    for _ in range(4):
        with torch.autocast(device, NARROW):
            layers(torch.ones(2, 4, device=device)).sum().backward()
    assert layers[0].weight.grad is not None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_give_way_within_autocast(device: str) -> None:
    """Torch's cast of a parameter holds a lock of the process: a rank that gave way within stopped all others for ever."""
    with kernbench.simulate("dgx_h100", schedule="random:7") as ctx:
        ctx.multiprocessing.spawn(_trains, args=(device,), nprocs=3)
