"""``torch.compile`` and fake tensors inside simulated ranks."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

import kernbench
from tests.torch_backend.conftest import Ranks


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_compiled_function_has_its_values_and_gradients(ranks: Ranks, device: str) -> None:
    def body() -> Any:
        graphs: list[Any] = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        def function(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * 2 + torch.ones(4, device=x.device)

        x = torch.tensor([-1.0, 0.5, 2.0, 3.0], device=device)
        seen = torch.compile(function, backend=backend, fullgraph=True)(x)
        x.requires_grad_()
        result = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
        result.sum().backward()
        assert x.grad is not None
        return len(graphs), seen.tolist(), result.tolist(), x.grad.tolist(), x.grad.device.type

    results = ranks(body, 2, backend="nccl" if device == "cuda" else "gloo")
    assert sum(graphs for graphs, *_ in results) >= 1  # Dynamo may take for one rank what it has compiled for another
    assert [values for _, *values in results] == [
        [[1.0, 2.0, 5.0, 7.0], [1.0, 2.0, 5.0, 7.0], [0.0, 2.0, 2.0, 2.0], device]
    ] * 2


def test_a_compiled_function_calls_collectives(ranks: Ranks) -> None:
    def body() -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

        x = torch.full((3,), float(dist.get_rank() + 1), device="cuda")
        return torch.compile(function, backend="aot_eager", fullgraph=True)(x).tolist()

    assert ranks(body, 2, backend="nccl") == [[7.0] * 3] * 2


def test_what_a_rank_is_told_of_its_group_is_no_constant_of_other_ranks(ranks: Ranks) -> None:
    """Dynamo puts it into what it compiles, without a guard; ranks of one process share the code that they compile."""

    def body() -> Any:
        rank = dist.get_rank()
        mine = [dist.new_group(pair) for pair in ([0, 1], [2, 3])][rank // 2]

        def number(group: Any) -> Any:
            return group.rank()

        def number_of_all(x: torch.Tensor) -> Any:
            return x + dist.get_rank()

        def first(x: torch.Tensor, group: Any) -> Any:
            return x + dist.get_process_group_ranks(group)[0]

        def reduced(x: torch.Tensor, group: Any) -> torch.Tensor:
            return functional.all_reduce(x, "sum", group)

        here, there = torch.zeros(1), torch.tensor([10.0**rank], device="cuda")
        calls: list[tuple[Any, ...]] = [
            (number, mine),
            (number_of_all, here),
            (first, here, mine),
            (reduced, there, mine),
        ]
        return [int(torch.compile(function, backend="eager")(*given)) for function, *given in calls]

    assert ranks(body, 4, backend="nccl") == [
        [rank % 2, rank, rank // 2 * 2, (11, 1100)[rank // 2]] for rank in range(4)
    ]


def test_the_gpu_of_a_tensor_is_no_constant_of_other_ranks(ranks: Ranks) -> None:
    def body() -> Any:
        rank = dist.get_rank()
        torch.cuda.set_device(rank)

        def number(x: torch.Tensor) -> torch.Tensor:
            return x + x.get_device()

        def made(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(2, device=x.device)

        def moved(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(2).cuda() + x

        x = torch.zeros(2, device="cuda")
        found = [torch.compile(function, backend="aot_eager")(x) for function in (number, made, moved)]
        return [each.device.index for each in found], found[0].tolist()

    assert ranks(body, 2, backend="nccl") == [([rank] * 3, [float(rank)] * 2) for rank in range(2)]


def test_fake_tensors_of_a_gpu_go_through_autograd(ranks: Ranks) -> None:
    def body() -> Any:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            layer = torch.nn.Linear(4, 4, device="cuda")
            loss = layer(torch.randn(2, 4, device="cuda")).sum()
            loss.backward()
            assert layer.weight.grad is not None
            return str(loss.device.type), loss.is_cuda, layer.weight.grad.shape == layer.weight.shape

    assert ranks(body, 2, backend="nccl") == [("cuda", True, True)] * 2


def test_dynamo_keeps_no_number_of_a_function_that_stood_in_numpy(ranks: Ranks) -> None:
    """Numbers of objects are given again: one of torch's functions was taken for numpy's, and broke its graph."""
    rules: Any = importlib.import_module("torch._dynamo.trace_rules")

    def body() -> bool:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        return id(np.random.rand) in rules._numpy_function_ids()

    assert ranks(body, 1) == [True]
    assert rules._numpy_function_ids() == set(rules._numpy_function_ids.lazy_initializer())


def test_dropout_that_is_trained_is_compiled() -> None:
    """Its backward pass casts its mask as another tensor, by C++."""

    def block(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x + bias, 0.1, training=True) + residual

    kept = torch.compiler.config.patch(force_disable_caches=True)  # what was compiled once would not be traced again
    with kernbench.simulated_gpu("dgx_h100") as ctx, kept:
        x, bias = (
            torch.randn(4, 8, device="cuda", requires_grad=True),
            torch.zeros(8, device="cuda", requires_grad=True),
        )
        y = torch.compile(block)(x, bias, torch.zeros(4, 8, device="cuda"))
        y.sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, (y != 0) / 0.9)
        assert not any("could not compile" in line for line in ctx.simulation.op_costs.unmodelled.sentences)
        mask = torch.ones(3, dtype=torch.bool, device="cuda")
        assert (mask.type_as(x).device, mask.type_as(x).dtype) == (x.device, x.dtype)


def test_an_operation_of_higher_order_on_fake_tensors_is_a_fake_one() -> None:
    from torch._higher_order_ops.flex_attention import flex_attention
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention.flex_attention import create_block_mask

    with kernbench.simulated_gpu("dgx_h100"):
        mask = create_block_mask(lambda batch, head, i, j: i >= j, None, None, 128, 128, device="cuda")
        with FakeTensorMode(allow_non_fake_inputs=True):
            q = torch.empty(1, 2, 128, 16, device="cuda")
            found = flex_attention(q, q, q, lambda score, *place: score, mask.as_tuple(), 0.25, {})
        assert [type(each).__name__ for each in found] == ["FakeTensor"] * 3
        assert found[0].shape == q.shape
        assert found[0].device == q.device


def test_a_mismatch_in_a_compiled_function_is_at_the_programs_line() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")

        @torch.compile(backend="eager")
        def reduced(x: torch.Tensor) -> torch.Tensor:
            functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))  # type: ignore[arg-type]
            return x

        reduced(torch.ones(4 + rank, device="cuda"))

    with kernbench.simulate("dgx_h100") as ctx, pytest.raises(kernbench.SpawnException) as failed:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    text = str(next(iter(failed.value.errors.values())))
    assert text.count("test_compile.py:") == 2
    assert "<eval_with_key>" not in text


def test_a_module_that_gets_its_parameters_while_it_runs() -> None:
    """As those of the first FSDP, whose hooks exchange them; what notes them here is not compiled."""
    sums: list[float] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        for compiled in (False, True):
            torch.manual_seed(0)
            layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
            model = FullyShardedDataParallel(layers, use_orig_params=True)
            call = torch.compile(model, backend="eager") if compiled else model
            for _ in range(2):
                loss = call(torch.ones(2, 8, device="cuda")).sum()
                loss.backward()
            sums.append(loss.item())

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert len(sums) == 4
    assert len(set(sums)) == 1
