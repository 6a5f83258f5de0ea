"""Which GPU what a program makes is of: in the gradient of its own function, of events, of buffers of DDP."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kernbench


class Doubled(torch.autograd.Function):
    """A function whose gradient makes a tensor on ``cuda``."""

    seen: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Doubled.seen.append(torch.cuda.current_device())
        return grad * torch.full((1,), 2.0, device="cuda")


class Filled(torch.autograd.Function):
    """A function whose gradient is what its forward pass' stream has filled a buffer with."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, filled: torch.Tensor) -> torch.Tensor:
        ctx.filled, ctx.stream = filled, torch.cuda.current_stream()
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        assert torch.cuda.current_stream() == ctx.stream
        return grad * ctx.filled, None


@pytest.mark.parametrize("races", [None, "error"])
@pytest.mark.parametrize("beside", [False, True], ids=["on the caller's", "beside it"])
def test_a_gradient_is_computed_on_the_stream_of_its_forward_pass(races: str | None, beside: bool) -> None:
    """In order with what is filled there, and with what the caller does next, which need not wait."""
    with kernbench.simulated_gpu("dgx_h100", races=races):
        side, caller = torch.cuda.Stream(), torch.cuda.current_stream()
        x, filled = torch.ones(1 << 20, device="cuda", requires_grad=True), torch.empty(1 << 20, device="cuda")
        side.wait_stream(caller)
        with torch.cuda.stream(side if beside else caller):
            made = Filled.apply(x, filled)
            torch.cuda._sleep(10_000_000)
            filled.fill_(3.0)
        caller.wait_stream(side)
        made.sum().backward()
        assert torch.cuda.current_stream() == caller
        assert x.grad is not None
        assert float((x.grad + 1).sum()) == 4.0 * (1 << 20)


@pytest.mark.parametrize("device", ["cuda:1", "cuda:0"])
def test_a_gradient_is_computed_on_its_own_gpu(device: str) -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        Doubled.seen.clear()
        x = torch.ones(3, device=device, requires_grad=True)
        Doubled.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 3
        assert (Doubled.seen, torch.cuda.current_device()) == ([x.device.index], 0)


def test_an_event_is_of_one_gpu() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        with torch.cuda.device(1):
            second.record()
            torch.cuda.synchronize()
            with pytest.raises(RuntimeError, match="Event device 0 does not match recording stream's device 1"):
                first.record()
        torch.cuda.synchronize()
        with pytest.raises(torch.AcceleratorError, match="invalid resource handle"):
            first.elapsed_time(second)
        assert (first.device, torch.cuda.Event().device) == (torch.device("cuda", 0), None)


def test_buffers_on_the_host_are_refused_as_nccl_refuses_them() -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        model = torch.nn.Linear(2, 2).cuda()
        model.register_buffer("table", torch.zeros(3))
        with pytest.raises(
            RuntimeError, match="No backend type associated with device type cpu: broadcast of a tensor"
        ):
            DistributedDataParallel(model, device_ids=[rank])

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
