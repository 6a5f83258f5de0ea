"""On which streams a backward pass is: each node on that of its forward pass, in order with the others and with the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import kernbench
from kernbench.torch_backend.gpu.device.backward_streams import _nodes
from kernbench.torch_backend.gpu.device.devices import bound_devices
from kernbench.torch_backend.gpu.device.gradient_streams import sequence_number


def branch(width: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(3)]).cuda()


def elapsed(work: Callable[[], object]) -> float:
    """Virtual ms of what is enqueued, until all streams have ended."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    work()
    torch.cuda.synchronize()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def two_branches(width: int, beside: bool) -> torch.Tensor:
    """A loss of two branches, the first of them on a stream of its own."""
    first, second, x = branch(width), branch(width), torch.ones(width, width, device="cuda")
    caller, side = torch.cuda.current_stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side if beside else caller):
        made = first(x).sum()
    loss = second(x).sum()
    caller.wait_stream(side)
    return loss + made


def test_branches_overlap_in_the_backward_pass_as_in_the_forward_pass() -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=False):
        one, two = (elapsed(two_branches(2048, beside).backward) for beside in (False, True))
        assert 0.5 * one < two < 0.62 * one


def test_a_captured_backward_pass_overlaps_too() -> None:
    def replayed(beside: bool) -> float:
        first, second, x = branch(2048), branch(2048), torch.ones(2048, 2048, device="cuda")
        first(x).sum().backward()
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            caller = torch.cuda.current_stream()
            side.wait_stream(caller)
            with torch.cuda.stream(side if beside else caller):
                made = first(x).sum()
            loss = second(x).sum()
            caller.wait_stream(side)
            torch.autograd.grad(loss + made, [*first.parameters(), *second.parameters()])
        return elapsed(graph.replay)

    with kernbench.simulated_gpu("dgx_h100", enable_data=False):
        assert replayed(True) < 0.65 * replayed(False)


@pytest.mark.parametrize("within", [False, True], ids=["called outside", "called on it"])
def test_gradients_are_in_order_with_the_stream_that_is_current_at_the_call(within: bool) -> None:
    """torch's notes on CUDA: what a forward pass has done on a stream is waited for; gradients are for the caller's stream."""
    with kernbench.simulated_gpu("dgx_h100", races="warn") as ctx:
        x, side = torch.ones(1 << 20, device="cuda", requires_grad=True), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            loss = (x * x).sum()
        with torch.cuda.stream(side if within else torch.cuda.current_stream()):
            loss.backward()
        assert x.grad is not None
        x.grad.mul_(2)
        assert bool(ctx.simulation.order.races.found) == within
        torch.cuda.synchronize()
        assert float(x.grad[0]) == 4.0


def test_the_sum_of_two_gradients_waits_for_both() -> None:
    with kernbench.simulated_gpu("dgx_h100", races="error"):
        x, side = torch.ones(1 << 20, device="cuda", requires_grad=True), torch.cuda.Stream()
        caller = torch.cuda.current_stream()
        made = x.exp()
        side.wait_stream(caller)
        with torch.cuda.stream(side):
            one = made * 2
        other = made.cos()
        caller.wait_stream(side)
        (one + other).sum().backward()
        assert x.grad is not None
        with torch.no_grad():
            torch.testing.assert_close(x.grad, (2 - made.sin()) * made)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_computed_again_on_its_stream(reentrant: bool) -> None:
    seen: list[int] = []

    def seeing(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.cuda.current_stream().stream_id)
        return x.exp()

    with kernbench.simulated_gpu("dgx_h100", races="error"):
        x, side = torch.ones(8, device="cuda", requires_grad=True), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            made = checkpoint(seeing, x * 1, use_reentrant=reentrant)
        torch.cuda.current_stream().wait_stream(side)
        made.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == pytest.approx([2.7182817] * 8)
        assert seen == [side.stream_id] * 2
        assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_after_a_failure_the_stream_is_the_callers_and_the_graph_is_as_before() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        x, side = torch.ones(8, device="cuda", requires_grad=True), torch.cuda.Stream()
        with torch.cuda.stream(side):
            made = x.exp()
            handle = made.register_hook(lambda _: 1 / 0)
            loss = made.sum()
        with pytest.raises(ZeroDivisionError):
            loss.backward(retain_graph=True)
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        handle.remove()
        loss.backward()
        assert x.grad is not None
        assert x.grad.tolist() == pytest.approx([2.7182817] * 8)


def test_a_hook_of_a_tensor_is_on_the_stream_that_the_tensor_has_come_from() -> None:
    seen = []
    with kernbench.simulated_gpu("dgx_h100", races="error"):
        x, side = torch.ones(8, device="cuda", requires_grad=True), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            made = x.exp()
        made.register_hook(lambda _: seen.append(torch.cuda.current_stream()))
        x.register_hook(lambda _: seen.append(torch.cuda.current_stream()))
        torch.cuda.current_stream().wait_stream(side)
        made.sum().backward()
        assert seen == [side, side]


@pytest.mark.parametrize("original", [False, True])
def test_fsdp_1_has_no_race(original: bool) -> None:
    """It makes its views where it gathers; its hooks have the current stream wait for what they gather in the backward pass."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        layers = [FullyShardedDataParallel(branch(64), use_orig_params=original, device_id=rank) for _ in range(3)]
        model = FullyShardedDataParallel(nn.Sequential(*layers), use_orig_params=original, device_id=rank)
        for _ in range(2):
            model(torch.ones(8, 64, device="cuda")).sum().backward()

    with kernbench.simulate("dgx_h100", races="error") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)


def test_what_is_queued_for_the_end_is_on_the_callers_stream() -> None:
    seen = []
    with kernbench.simulated_gpu("dgx_h100"):
        x, side = torch.ones(8, device="cuda", requires_grad=True), torch.cuda.Stream()

        def queue(_: torch.Tensor) -> None:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append(torch.cuda.current_stream()))

        with torch.cuda.stream(side):
            made = x.exp()
            made.register_hook(queue)
            loss = made.sum()
        loss.backward()
        assert seen == [torch.cuda.default_stream()]


def test_changes_of_stream_between_which_no_node_is_made_are_forgotten() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        changes, side = bound_devices().mine().stream_changes, torch.cuda.Stream()
        x = torch.ones(2, device="cuda", requires_grad=True)
        for _ in range(3):
            with torch.cuda.stream(side), torch.no_grad():
                x * 2
            x * 2
        assert not changes
        with torch.cuda.stream(side):
            number = sequence_number()
            made = x * 2
        assert changes
        assert [changes.at(number + step, 0) for step in (-1, 0, 1)] == ["compute", "stream 1", "compute"]
        numbers, leaves = _nodes([made.grad_fn])
        assert [*numbers.values(), *leaves.values()] == [number] * 2


@pytest.mark.parametrize("keeps", [False, True], ids=["made in each pass", "kept by DDP"])
def test_gradients_of_a_leaf_are_added_where_its_node_was_made(keeps: bool) -> None:
    seen: list[torch.cuda.Stream] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        layer, side = nn.Linear(64, 64, bias=False).cuda(), torch.cuda.Stream()
        called: Any = DistributedDataParallel(layer) if keeps else layer
        layer.weight.register_post_accumulate_grad_hook(lambda _: seen.append(torch.cuda.current_stream()))
        for _ in range(2):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = called(torch.ones(64, 64, device="cuda")).sum()
            loss.backward()
        default = torch.cuda.default_stream()
        assert seen == [default if keeps else side] * 2
        seen.clear()

    with kernbench.simulate("dgx_h100", races="error") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
