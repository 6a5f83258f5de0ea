"""What a compiled function puts on a GPU, and takes from there, is where eager has it, however the device is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernbench

MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to('cuda')": lambda x: x.to("cuda") + 1,
    "to('cuda:0')": lambda x: x.to("cuda:0") + 1,
    "to(device)": lambda x: x.to(torch.device("cuda")) + 1,
    "to(0)": lambda x: x.to(0) + 1,
    "to(device=, dtype=)": lambda x: x.to(device="cuda", dtype=torch.float16) + 1,
    "to(device, dtype, copy=)": lambda x: x.to("cuda", torch.bfloat16, copy=True) + 1,
    "to(non_blocking=)": lambda x: x.to("cuda", non_blocking=True) + 1,
    "to(tensor)": lambda x: x.to(torch.empty(1, device="cuda")) + 1,
    "type_as": lambda x: x.type_as(torch.empty(1, device="cuda", dtype=torch.float64)) + 1,
    "cuda()": lambda x: x.cuda() + 1,
    "cuda(0)": lambda x: x.cuda(0) + 1,
    "there and back": lambda x: x.to("cuda").cpu() + 1,
    "to('cpu')": lambda x: (x + 1).to("cpu") * 2,
    "copy_": lambda x: torch.empty(4, device="cuda").copy_(x) + 1,
    "zeros_like": lambda x: torch.zeros_like(x, device="cuda") + 1,
    "arange": lambda x: torch.arange(4, device="cuda") + x.to("cuda"),
    "new_zeros": lambda x: x.new_zeros(3, device="cuda") + 1,
    "tensor": lambda x: torch.tensor([1.0, 2.0], device="cuda") + 1,
    "as_tensor": lambda x: torch.as_tensor(x, device="cuda") + 1,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("drives", [0, 1])
def test_a_move_goes_where_it_goes_in_eager(backend: str, drives: int) -> None:
    wrong: list[Any] = []

    def worker(rank: int) -> None:
        if rank != drives:
            return
        torch.cuda.set_device(rank)
        for name, move in MOVES.items():
            if name == "cuda(0)" and drives and backend != "eager":
                continue  # `FunctionalTensor.cuda` takes 0 for no number, on hardware too
            for given in (torch.ones(4), torch.ones(4, device="cuda")):
                torch._dynamo.reset()
                with torch.compiler.config.patch(force_disable_caches=True):
                    found = torch.compile(move, backend=backend, fullgraph=True)(given)
                expected = move(given)
                if (found.device, found.dtype, found.tolist()) != (expected.device, expected.dtype, expected.tolist()):
                    wrong.append((name, given.device, found, expected))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=drives + 1)
    assert not wrong


def test_a_graph_of_another_gpu_than_the_first_puts_things_on_that_one() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        with torch.compiler.config.patch(force_disable_caches=True):
            found.append(torch.compile(lambda x: torch.ones(4).cuda() + x)(torch.ones(4, device="cuda")).device.index)

    found: list[Any] = []
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        assert not [each for each in ctx.simulation.op_costs.unmodelled.sentences if "as it is written" in each]
    assert found == [0, 1]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_gradient_comes_back_to_where_its_leaf_is(backend: str) -> None:
    def worker(rank: int) -> None:
        weight = torch.arange(4.0, requires_grad=True)
        with torch.compiler.config.patch(force_disable_caches=True):
            compiled = torch.compile(lambda w: (w.to("cuda") ** 2).sum(), backend=backend, fullgraph=True)
            compiled(weight).backward()
        assert weight.grad is not None
        found.append((weight.grad.device.type, weight.grad.tolist()))

    found: list[Any] = []
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert found == [("cpu", [0.0, 2.0, 4.0, 6.0])]
