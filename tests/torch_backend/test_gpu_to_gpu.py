"""Copies between simulated GPUs: their values, their places, and the time that they take on the links."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kernbench

NUMBER = 1 << 20

COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to": lambda x: x.to("cuda:1"),
    "to a number": lambda x: x.to(1),
    "cuda": lambda x: x.cuda(1),
    "copy_": lambda x: torch.empty(NUMBER, device="cuda:1").copy_(x),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_takes_the_time_of_the_route(name: str) -> None:
    measured: list[float] = []

    def body(rank: int) -> None:
        torch.cuda.set_device(0)
        x = torch.arange(NUMBER, dtype=torch.float32, device="cuda:0")
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        y = COPIES[name](x)
        end.record()
        torch.cuda.synchronize()
        measured.append(begin.elapsed_time(end) / 1e3)
        assert (x.device.index, y.device.index) == (0, 1)
        assert torch.equal(x.cpu(), y.cpu())

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        route = ctx.topology.route(ctx.sips[0], ctx.sips[1])
        launch = ctx.topology.device.launch
        copy = route.latency + 4 * NUMBER / route.bandwidth
        (op,) = [op for op in ctx.engine.op_log.records() if op.name == "device to device"]
    assert op.end - op.start == pytest.approx(copy)
    assert copy <= measured[0] <= copy + 2 * (launch.overhead + launch.latency)


def test_a_gradient_goes_the_way_back() -> None:
    def body(rank: int) -> None:
        w = torch.ones(4, device="cuda:0", requires_grad=True)
        (w.to("cuda:1") * torch.arange(4.0, device="cuda:1")).sum().backward()
        assert w.grad is not None
        assert w.grad.device == torch.device("cuda", 0)
        assert w.grad.tolist() == [0.0, 1.0, 2.0, 3.0]

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        assert len([op for op in ctx.engine.op_log.records() if op.name == "device to device"]) == 2


def test_a_conversion_stays_on_its_gpu() -> None:
    """Also one that names the GPU once more."""

    def body(rank: int) -> None:
        x = torch.ones(4, device="cuda:0")
        assert x.to("cuda:0") is x
        for y in (
            x.to("cuda:0", torch.float16),
            x.to(device="cuda", dtype=torch.float16),
            x.to("cuda:0", dtype=torch.float16),
            x.to("cuda:0", torch.float16, True, True),
            x.to(torch.empty(1, dtype=torch.float16, device="cuda:0")),
        ):
            assert (y.device, y.dtype) == (torch.device("cuda", 0), torch.float16)
        copied = x.to("cuda:0", copy=True)
        assert copied.device == x.device
        assert copied.data_ptr() != x.data_ptr()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        assert not [op for op in ctx.engine.op_log.records() if op.name == "device to host"]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("begin", "end"), [("cuda:0", "cpu"), ("cpu", "cuda:0"), ("cuda:0", "cuda:1")])
def test_lists_are_copied_between_devices_one_by_one(begin: str, end: str, count: int) -> None:
    """``_foreach_copy_``, as FSDP's scaler of gradients calls it, takes what as many ``copy_`` take."""

    def copied(data: bool, call: Callable[[list[torch.Tensor], list[torch.Tensor]], None]) -> tuple[object, ...]:
        with kernbench.simulated_gpu("dgx_h100", enable_data=data) as ctx:
            sources = [torch.full((1 << 16,), float(number), device=begin) for number in range(count)]
            targets = [torch.zeros(1 << 16, device=end) for _ in range(count)]
            call(targets, sources)
            torch.cuda.synchronize()
            names = [each.name for each in ctx.engine.op_log.operations]
            return (
                ctx.now(),
                names,
                {str(each.device) for each in targets},
                [each[-1].item() for each in targets if data],
            )

    def one_by_one(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    for data in (True, False):
        assert copied(data, torch._foreach_copy_) == copied(data, one_by_one)
    assert copied(True, torch._foreach_copy_)[2:] == ({end}, [float(number) for number in range(count)])
