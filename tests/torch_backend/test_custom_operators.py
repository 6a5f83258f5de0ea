"""Operators that torch does not bring, on simulated GPUs: where their results are, what they take, who is notified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import kernbench
from kernbench.commands.run_program import print_summary
from kernbench.cost import register
from kernbench.cost.op_costs import OpCosts
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace import summary, write_chrome_trace

SIDE = 2048


@torch.library.custom_op("kernbench_tests::flash", mutates_args=())
def flash(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    room = torch.empty_like(q)
    assert room.device == q.device
    return torch.relu(q @ k) + 1


def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return flash(gradient, gradient), None


flash.register_autograd(_gradients)


@torch.library.custom_op("kernbench_tests::scale", mutates_args=("x",))
def scale(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


@torch.library.custom_op("kernbench_tests::on_gpu", mutates_args=(), device_types="cuda")
def on_gpu(x: torch.Tensor) -> torch.Tensor:
    return x + 2


@on_gpu.register_kernel("cpu")
def _(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.custom_op("kernbench_tests::reduced", mutates_args=("x",))
def reduced(x: torch.Tensor) -> None:
    torch.distributed.all_reduce(x)


def simulated(
    program: Callable[[], Any], ranks: int = 1, **options: Any
) -> tuple[RuntimeContext, list[tuple[str, float]]]:
    """The context of a program on GPUs, and what rank 0 put on its compute stream: name and seconds, but for factories."""

    def worker(rank: int) -> None:
        if ranks > 1:
            torch.distributed.init_process_group(
                "nccl", rank=rank, world_size=ranks, store=torch.distributed.HashStore()
            )
        program()
        torch.cuda.synchronize()

    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
    operations = [op for op in ctx.engine.op_log.operations if op.rank == 0]
    return ctx, [(op.name, op.duration) for op in operations if not op.name.startswith(("ones", "rand"))]


def square(**options: Any) -> torch.Tensor:
    return torch.ones(SIDE, SIDE, device="cuda", **options)


@torch.library.custom_op("kernbench_tests::several", mutates_args=())
def several(x: torch.Tensor, count: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return x + 1, [x * at for at in range(count)]


@several.register_fake
def _several(x: torch.Tensor, count: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.empty_like(x), [torch.empty_like(x) for _ in range(count)]


@pytest.mark.parametrize("enable_data", [True, False])
def test_a_list_within_what_it_returns_is_on_the_gpu_and_in_its_memory(enable_data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=enable_data):
        x = torch.ones(1 << 20, device="cuda")
        before = torch.cuda.memory_allocated()
        first, rest = several(x, 3)
        assert {str(each.device) for each in (first, *rest)} == {"cuda:0"}
        assert torch.cuda.memory_allocated() == before + 4 * (4 << 20)


def test_a_custom_operator_is_one_kernel_on_the_gpu_and_so_is_its_gradient() -> None:
    def program() -> None:
        q, k = square(requires_grad=True), square()
        result = flash(q, k)
        assert result.is_cuda
        assert float(result.detach()[0, 0]) == SIDE + 1
        result.backward(k)
        assert q.grad is not None
        assert q.grad.is_cuda
        assert float(q.grad[0, 0]) == SIDE + 1

    ctx, operations = simulated(program)
    calls = [seconds for name, seconds in operations if name == "kernbench_tests::flash"]
    moved = 3 * 4 * SIDE**2
    assert len(calls) == 2
    assert calls[0] == calls[1] > moved / (4 * ctx.topology.device.hbm.bandwidth)
    assert not any("mm" in name or "relu" in name for name, _ in operations)
    line = flash.__wrapped__.__code__.co_filename if hasattr(flash, "__wrapped__") else __file__
    (unknown,) = ctx.op_costs.unmodelled.operators
    assert (unknown.name, unknown.calls) == ("kernbench_tests::flash", 2)
    assert (Path.cwd() / unknown.where.partition(":")[0]) == Path(line)


def test_what_it_writes_counts_as_well_as_what_it_returns() -> None:
    ctx, operations = simulated(lambda: scale(square(), 2.0))
    found = OpCosts(ctx.topology.device).of(
        "kernbench_tests::scale", (((SIDE, SIDE), "fp32"),), (((SIDE, SIDE), "fp32"),)
    )
    assert operations == [("kernbench_tests::scale", found.seconds)]
    assert found.nbytes == 2 * 4 * SIDE**2


def test_the_kernel_is_that_of_the_device_that_holds_the_arguments() -> None:
    def program() -> None:
        x = square()
        assert float(on_gpu(x)[0, 0]) == 3
        assert float(on_gpu(torch.ones(1))[0]) == 2
        assert not on_gpu(torch.ones(1)).is_cuda

    ctx, operations = simulated(program)
    assert [name for name, _ in operations] == ["add.Tensor", "device to host"]
    assert not ctx.op_costs.unmodelled.operators


def test_a_function_for_cuda_takes_what_it_launches_unless_its_cost_is_known() -> None:
    """What it does with torch is on a GPU what it does here; a function for any device is taken to stand for a kernel."""

    def program() -> None:
        on_gpu(square())

    def by_torch() -> None:
        square() + 2

    assert simulated(program)[1] == simulated(by_torch)[1]
    with register("kernbench_tests::on_gpu", lambda given, made: 1e-3):
        assert simulated(program)[1] == [("kernbench_tests::on_gpu", 1e-3)]


def test_a_registered_cost_is_what_it_takes_and_nobody_complains() -> None:
    with register("kernbench_tests::flash", lambda given, made: 1e-3):
        ctx, operations = simulated(lambda: flash(square(), square()))
    assert operations == [("kernbench_tests::flash", 1e-3)]
    assert not ctx.op_costs.unmodelled.operators


def test_a_plugin_may_bring_the_cost() -> None:
    class Prices:
        def kernbench_operator_costs(self) -> dict[str, Any]:
            return {"kernbench_tests::flash": lambda given, made: 2e-3, "kernbench_tests::scale": "mul"}

    ctx, operations = simulated(lambda: (flash(square(), square()), scale(square(), 2.0)), plugins=[Prices()])
    assert operations[0] == ("kernbench_tests::flash", 2e-3)
    assert not ctx.op_costs.unmodelled.operators


def test_a_collective_that_it_calls_is_what_it_takes() -> None:
    ctx, operations = simulated(lambda: reduced(square()), ranks=2)
    assert [name for name, _ in operations] == ["all_reduce"]
    assert not ctx.op_costs.unmodelled.operators


@pytest.mark.long  # seconds
def test_products_cost_the_same_however_they_are_written_and_in_inference_mode() -> None:
    def products() -> None:
        x = square()
        torch.einsum("ij,jk->ik", x, x)
        torch.tensordot(x, x, dims=1)
        torch.inner(x, x)
        torch.nn.functional.linear(x, x)
        x @ x

    def inferred() -> None:
        with torch.inference_mode():
            products()

    (_, plain), (_, inference) = simulated(products), simulated(inferred)
    assert plain == inference
    assert len(plain) == 5
    assert len({seconds for _, seconds in plain}) == 1


def test_transposed_copies_are_copies_and_views_are_free() -> None:
    def program() -> None:
        x = square()
        x.t().reshape(-1)
        x.reshape(-1).view(2, -1).unsqueeze(0).squeeze_()

    _, operations = simulated(program)
    assert [name for name, _ in operations] == ["clone.default"]


def test_summary_trace_and_run_name_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ctx, _ = simulated(lambda: [flash(square(), square()) for _ in range(3)])
    (unknown,) = ctx.op_costs.unmodelled.operators
    line = str(unknown)
    assert line.startswith("not modelled: kernbench_tests::flash, counted by its bytes (3 calls, first at ")
    write_chrome_trace(ctx, tmp_path / "trace.json")
    print_summary(ctx)
    for text in (str(summary(ctx)), (tmp_path / "trace.json").read_text(), click.unstyle(capsys.readouterr().out)):
        assert line in text
    assert str(summary(ctx)).count("not modelled") == 1
