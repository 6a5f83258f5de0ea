"""Costs that look at the values of operands: the same with data and without, where the values are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kernbench
from kernbench.cost import StatedWork, by_values, register
from kernbench.torch_backend.gpu.tensors.placement import values_of

MOST = 4096


@torch.library.custom_op("kernbench_test_values::grouped", mutates_args=())
def grouped(x: torch.Tensor, counts: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * scale


@grouped.register_fake
def _(x: torch.Tensor, counts: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return torch.empty_like(x)


seen: list[Any] = []


@by_values
def work(operands: Any) -> StatedWork:
    x, counts = operands["x"], operands["counts"].known
    seen.append((counts, operands["scale"], x.known, [each.shape for each in operands.results]))
    rows = x.shape[0] if counts is None else sum(counts)
    return StatedWork(0, flops=2 * rows * MOST * MOST, matrix=True, dtype=x.format)


def worker(rank: int, counts: list[int] | None) -> None:
    x = torch.ones(64, 32, device="cuda", dtype=torch.bfloat16)
    there = torch.empty(2, dtype=torch.int64, device="cuda") if counts is None else torch.tensor(counts).cuda()
    grouped(x, there, 2.0)


def taken(counts: list[int] | None, data: bool) -> float:
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, args=(counts,), nprocs=1)
        logged = [each for each in ctx.simulation.engine.op_log.operations if "grouped" in each.name]
        assert not ctx.simulation.op_costs.unmodelled.operators
        flops = ctx.simulation.hosts.of_rank[0].account.flops
        assert counts is None or flops["bf16"] == 2 * sum(counts) * MOST * MOST
    return logged[0].end - logged[0].start


@pytest.mark.parametrize("data", [True, False])
def test_a_cost_follows_the_values(data: bool) -> None:
    seen.clear()
    with register("kernbench_test_values::grouped", work):
        short, long = taken([1000, 24], data), taken([4000, 96], data)
    assert long == pytest.approx(4 * short, rel=0.1)
    assert seen == [([1000, 24], 2.0, None, [(64, 32)]), ([4000, 96], 2.0, None, [(64, 32)])]


@pytest.mark.parametrize("races", [True, False])
def test_a_cost_follows_the_values_of_each_replay(races: bool) -> None:
    def replayed(rank: int) -> None:
        x, counts = torch.ones(64, 32, device="cuda", dtype=torch.bfloat16), torch.tensor([1000, 24]).cuda()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            grouped(x, counts, 2.0)
        for rows in ([1000, 24], [4000, 96], [1000, 24]):
            counts.copy_(torch.tensor(rows))
            graph.replay()

    with register("kernbench_test_values::grouped", work), kernbench.simulate("dgx_h100", races=races) as ctx:
        ctx.multiprocessing.spawn(replayed, nprocs=1)
        found = [each.duration for each in ctx.simulation.engine.op_log.operations if "grouped" in each.name]
    assert found[0] == found[2] == pytest.approx(found[1] / 4, rel=0.1)


def test_a_look_at_values_is_no_operation_of_the_program() -> None:
    found: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        assert values_of(torch.tensor([1000, 24])).tolist() == [1000, 24]
    assert found == ["aten.lift_fresh.default"]  # of the constant


def test_what_is_not_known_is_none() -> None:
    seen.clear()
    with register("kernbench_test_values::grouped", work):
        taken(None, False)
    assert [counts for counts, *_ in seen] == [None]


def test_a_cost_that_fails_names_the_operator() -> None:
    with (
        register("kernbench_test_values::grouped", by_values(lambda operands: operands["nothing"])),
        pytest.raises(Exception, match=r"the cost of kernbench_test_values::grouped .* failed: KeyError: 'nothing'"),
    ):
        taken([1], True)
