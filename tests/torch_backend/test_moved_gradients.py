"""Gradients of tensors that a program moves between host and GPU, and moves within transforms of torch.func."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import kernbench

HOST, GPU, PEER = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(("begin", "end"), [(HOST, GPU), (GPU, HOST), (PEER, GPU)])
def test_a_gradient_is_where_its_tensor_is(begin: torch.device, end: torch.device, data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        leaf = torch.arange(3.0, device=begin, requires_grad=True)
        moved = leaf.to(end, torch.float64)
        moved.retain_grad()
        (moved * 2).sum().backward()
        assert (leaf.grad.device, leaf.grad.dtype) == (begin, torch.float32)
        assert (moved.grad.device, moved.grad.dtype) == (end, torch.float64)
        (first,) = torch.autograd.grad((leaf.to(end) ** 3).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), leaf)
        assert first.device == second.device == begin
        if data:
            assert leaf.grad.tolist() == [2.0] * 3
            assert second.tolist() == [0.0, 6.0, 12.0]


def test_the_way_back_takes_the_links_time() -> None:
    def seconds(moves: Callable[[Tensor], Tensor]) -> tuple[int, float]:
        with kernbench.simulated_gpu("dgx_h100", enable_data=False) as ctx:
            leaf = torch.empty(1 << 26, requires_grad=True)
            moves(leaf).backward(torch.empty(1 << 26, device=GPU))
            copies = [each for each in ctx.engine.op_log.operations if each.name == "device to host"]
            return len(copies), sum(each.duration for each in copies)

    count, time = seconds(lambda leaf: leaf.to(GPU))
    assert count == 1
    assert time > (1 << 28) / 100e9  # a link of 64 GB/s, and memory that is not pinned


def test_a_layer_on_the_host_learns_below_one_on_a_gpu() -> None:
    def losses(where: torch.device) -> list[float]:
        torch.manual_seed(0)
        table, head = nn.Embedding(16, 8), nn.Linear(8, 4).to(where)
        optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.5)
        found = []
        for _ in range(3):
            loss = head(table(torch.arange(16)).to(where)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert table.weight.grad.device == table.weight.device == HOST
        return found

    with kernbench.simulated_gpu("dgx_h100"):
        on_gpu = losses(GPU)
        assert on_gpu == losses(HOST)
        assert on_gpu[2] < on_gpu[0]


def test_moves_within_transforms() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        seen = []

        def twice(value: Tensor) -> Tensor:
            moved = value.to(GPU)
            seen.append((value.device, value.is_pinned(), moved.device))
            return (moved * 2).sum()

        gradient = torch.func.grad(twice)(torch.ones(3))
        assert (gradient.device, gradient.tolist()) == (HOST, [2.0] * 3)
        rows = torch.func.vmap(twice)(torch.ones(2, 3).pin_memory())
        assert (rows.device, rows.tolist()) == (GPU, [6.0, 6.0])
        rows = torch.func.vmap(torch.func.grad(twice))(torch.ones(2, 3, device=GPU))
        assert (rows.device, rows.tolist()) == (GPU, [[2.0] * 3] * 2)
        assert seen == [(HOST, False, GPU), (HOST, True, GPU), (GPU, False, GPU)]


def test_what_a_transform_shows_says_where_it_is_and_can_be_printed() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        seen: list[str] = []

        def look(value: Tensor) -> Tensor:
            assert (value.device, value.is_cuda, value.get_device()) == (GPU, True, 0)
            value.record_stream(torch.cuda.current_stream())
            seen.append(repr(value))
            return (value + torch.arange(3, device=value.device)).sum()

        torch.func.grad(look)(torch.ones(3, device=GPU))
        torch.func.vmap(look)(torch.ones(2, 3, device=GPU))
        assert ["GradTrackingTensor" in seen[0], "BatchedTensor" in seen[1]] == [True, True]
        assert all("device='cuda:0'" in each for each in seen)
