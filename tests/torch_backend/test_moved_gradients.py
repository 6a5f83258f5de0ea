"""Gradients of tensors that a program moves between host and GPU, and moves within transforms of torch.func."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

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


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(("begin", "end"), [(HOST, GPU), (GPU, HOST), (PEER, GPU)])
def test_a_tangent_is_where_its_tensor_is(begin: torch.device, end: torch.device, data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data), forward_ad.dual_level():
        moved = forward_ad.make_dual(torch.ones(3, device=begin), torch.full((3,), 2.0, device=begin)).to(end)
        tangent = forward_ad.unpack_dual(moved).tangent
        assert tangent is not None
        assert tangent.device == moved.device == end
        after = forward_ad.unpack_dual(moved.square()).tangent
        assert after is not None
        assert after.device == end
        if data:
            assert after.tolist() == [4.0] * 3


def test_a_tangent_is_copied_too() -> None:
    def copies(tangents: bool) -> int:
        with kernbench.simulated_gpu("dgx_h100") as ctx, forward_ad.dual_level():
            leaf = torch.ones(1 << 12)
            (forward_ad.make_dual(leaf, torch.ones(1 << 12)) if tangents else leaf).cuda()
            return sum(each.name == "host to device" for each in ctx.engine.op_log.operations)

    assert copies(tangents=True) == 2 * copies(tangents=False) == 2


@pytest.mark.parametrize("data", [True, False])
def test_derivatives_of_derivatives_through_moves(data: bool) -> None:
    def to_gpu(x: Tensor) -> Tensor:
        return (x.cuda() ** 3).sum()

    def to_host(x: Tensor) -> Tensor:
        return (x.cpu() ** 3).sum()

    first, again = torch.func.jacrev, torch.func.jacfwd
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        for outer, inner in ((again, first), (first, first), (first, again), (again, again)):
            on_host, on_gpu = torch.arange(3.0), torch.arange(3.0, device="cuda")
            begins = inner is first or outer is first  # a gradient is where it begins, a tangent where it ends
            found = outer(inner(to_gpu))(on_host)
            assert found.device == (HOST if begins else GPU)
            back = outer(inner(to_host))(on_gpu)
            assert back.device == (GPU if begins else HOST)
            if data:
                assert found.tolist() == back.tolist() == torch.diag(6 * torch.arange(3.0)).tolist()


@pytest.mark.parametrize("data", [True, False])
def test_gradients_that_are_zeros_are_where_their_tensors_are(data: bool) -> None:
    def masked(x: Tensor) -> Tensor:
        mask = torch.zeros(3)
        assert mask.device == HOST
        return x.sgn() * mask.to(x.device)

    with kernbench.simulated_gpu("dgx_h100", enable_data=data) as ctx:
        for begin, end in ((HOST, GPU), (GPU, GPU), (GPU, HOST), (HOST, HOST)):
            for zero in (torch.sgn, lambda x: torch.div(x, 2, rounding_mode="floor"), lambda x: x.repeat(0, 1)):
                leaf = torch.ones(3, device=begin, requires_grad=True)
                zero(leaf.to(end)).sum().backward()
                assert leaf.grad.device == begin
            assert torch.func.grad(lambda x, end=end: x.to(end).sgn().sum())(leaf.detach()).device == begin
            leaf.grad = None  # what Python makes in a backward pass is where it says
            checkpoint(masked, leaf, use_reentrant=False).sum().backward()
            assert leaf.grad.device == begin
        seen = [each.name for each in ctx.engine.op_log.operations]
    assert "zeros.default" in seen  # the GPU's are filled by a kernel


@pytest.mark.parametrize("data", [True, False])
def test_gradients_of_what_operations_of_a_gpu_take_from_the_host(data: bool) -> None:
    def assign(y: Tensor, x: Tensor) -> Tensor:
        y = y.clone()
        y[0] = x
        return y

    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        for use in (torch.add, torch.mul, assign, lambda y, x: torch.where(y > 0, y, x)):
            number, other = torch.ones((), requires_grad=True), torch.ones(4, device="cuda", requires_grad=True)
            for times in (1.0, 2.0):
                use(other * 1, number).sum().backward()
                assert (number.grad.device, other.grad.device) == (HOST, GPU)
                if data and use is torch.add:
                    assert number.grad.item() == 4.0 * times
        for begin, end in ((HOST, GPU), (GPU, HOST)):
            leaf = torch.ones(3, device=begin, requires_grad=True)
            torch.zeros(3, device=end).copy_(leaf).sum().backward()
            assert leaf.grad.device == begin


@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_gradient_is_where_its_tensor_has_come_back_to(with_gradients: bool) -> None:
    """Its data was on the host for a while, and was copied from there to a GPU, as FSDP's is by ``offload_to_cpu``."""
    with kernbench.simulated_gpu("dgx_h100"):
        leaf = nn.Parameter(torch.arange(3.0, device=GPU))
        loss = (leaf * 2).sum()
        memory = leaf.data
        leaf.data = memory.cpu()
        with torch.set_grad_enabled(with_gradients):
            memory.new_empty(3).copy_(leaf)
        leaf.data = memory
        loss.backward()
        assert leaf.grad is not None
        assert (leaf.grad.device, leaf.grad.tolist()) == (GPU, [2.0] * 3)


@pytest.mark.parametrize("data", [True, False])
def test_a_parameter_that_was_on_the_host_for_a_while_has_its_gradient_on_the_gpu(data: bool) -> None:
    """As FSDP 1's are while a full checkpoint is made of them, and are copied back from there."""
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        flat = nn.Parameter(torch.ones(4, device=GPU))
        with torch.no_grad():
            flat.data = flat.to(HOST)
            back = torch.empty(4, device=GPU)
            back.copy_(flat)
            flat.data = back
        (flat * 2).sum().backward()
        assert flat.grad is not None
        assert flat.grad.device == GPU
        if data:
            assert flat.grad.tolist() == [2.0] * 4
