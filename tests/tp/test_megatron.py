"""Parity with Megatron-Core's own layers, which run on the same simulated ranks (``pip install --no-deps megatron-core``)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench import tp
from tests.tp import cases
from tests.tp.ranks import SEED, fixed, part

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it speaks of accelerator packages that are not installed
    megatron = pytest.importorskip(
        "megatron.core", reason="parity needs Megatron-Core: pip install --no-deps megatron-core", exc_type=ImportError
    )
    from megatron.core import ModelParallelConfig, parallel_state, tensor_parallel

SIZES = [1, 2, 4, 8]


def both(world: int, ours: Callable[..., Any], theirs: Callable[..., Any], **sizes: int) -> list[tuple[Any, Any]]:
    """``ours()`` and ``theirs()`` on each rank, both libraries initialised with the same sizes."""
    results: list[Any] = [None] * world

    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        tp.initialize_model_parallel(**sizes)
        parallel_state.initialize_model_parallel(**sizes)
        tp.model_parallel_manual_seed(SEED)
        results[rank] = ours(), theirs()

    with kernbench.simulate() as ctx, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ctx.multiprocessing.spawn(body, nprocs=world, per_rank_modules=["megatron"])
    return results


GETTERS = [
    "tensor_model_parallel_world_size", "tensor_model_parallel_rank", "data_parallel_world_size", "data_parallel_rank",
    "pipeline_model_parallel_world_size", "pipeline_model_parallel_rank", "context_parallel_rank",
    "tensor_model_parallel_src_rank", "data_parallel_src_rank", "pipeline_model_parallel_first_rank",
    "pipeline_model_parallel_last_rank", "pipeline_model_parallel_next_rank", "pipeline_model_parallel_prev_rank",
]  # fmt: skip
GROUPS = [
    "model_parallel_group", "tensor_model_parallel_group", "data_parallel_group", "pipeline_model_parallel_group",
    "context_parallel_group", "tensor_and_data_parallel_group", "tensor_and_context_parallel_group",
]  # fmt: skip


@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
        {"tensor_model_parallel_size": 2, "context_parallel_size": 2},
        {"pipeline_model_parallel_size": 4},
    ],
)
def test_parallel_state(sizes):
    def state(of: Any) -> dict[str, Any]:
        found: dict[str, Any] = {name: getattr(of, f"get_{name}")() for name in GETTERS}
        found.update({name: dist.get_process_group_ranks(getattr(of, f"get_{name}")()) for name in GROUPS})
        found["stages"] = of.is_pipeline_first_stage(), of.is_pipeline_last_stage()
        found["embedding"] = of.is_rank_in_embedding_group()
        return found

    for ours, theirs in both(8, lambda: state(tp), lambda: state(parallel_state), **sizes):
        assert ours == theirs


def mlp(library: str, sequence_parallel: bool, skip_bias_add: bool) -> cases.Tensors:
    """Column, gelu, row with the same weights, by either library: outputs and every gradient."""
    if library == "ours":
        column = tp.ColumnParallelLinear(24, 48, gather_output=False, sequence_parallel=sequence_parallel)
        row = tp.RowParallelLinear(
            48, 24, input_is_parallel=True, skip_bias_add=skip_bias_add, sequence_parallel=sequence_parallel
        )
    else:
        config = ModelParallelConfig(
            tensor_model_parallel_size=tp.get_tensor_model_parallel_world_size(),
            sequence_parallel=sequence_parallel and tp.get_tensor_model_parallel_world_size() > 1,
            use_cpu_initialization=True,
            perform_initialization=False,
            gradient_accumulation_fusion=False,
        )
        init = torch.nn.init.zeros_
        column = tensor_parallel.ColumnParallelLinear(24, 48, config=config, init_method=init, gather_output=False)
        row = tensor_parallel.RowParallelLinear(
            48, 24, config=config, init_method=init, bias=True, input_is_parallel=True, skip_bias_add=skip_bias_add
        )
    with torch.no_grad():
        column.weight.copy_(part(fixed(48, 24, seed=1), 0))
        column.bias.copy_(part(fixed(48, seed=2), 0))
        row.weight.copy_(part(fixed(24, 48, seed=3), 1))
        row.bias.copy_(fixed(24, seed=4))
    x, grad = fixed(16, 2, 24), fixed(16, 2, 24, seed=5)
    if sequence_parallel:
        x, grad = part(x, 0), part(grad, 0)
    x.requires_grad_()
    y, bias = row(torch.nn.functional.gelu(column(x)[0]))
    assert (bias is row.bias) == skip_bias_add
    y.backward(grad)
    result = {"y": y.detach(), "dx": x.grad, "dw1": column.weight.grad, "db1": column.bias.grad, "dw2": row.weight.grad}
    return result if skip_bias_add else {**result, "db2": row.bias.grad}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("sequence_parallel", "skip_bias_add"), [(False, False), (True, False), (False, True)])
def test_linear_layers(size, sequence_parallel, skip_bias_add):
    arguments = sequence_parallel, skip_bias_add
    for ours, theirs in both(
        size, lambda: mlp("ours", *arguments), lambda: mlp("theirs", *arguments), tensor_model_parallel_size=size
    ):
        cases.assert_matches(ours, theirs)


@pytest.mark.parametrize("size", SIZES)
def test_embedding(size):
    def run(library: str) -> cases.Tensors:
        if library == "ours":
            layer = tp.VocabParallelEmbedding(48, 24)
        else:
            config = ModelParallelConfig(use_cpu_initialization=True, perform_initialization=False)
            layer = tensor_parallel.VocabParallelEmbedding(48, 24, init_method=torch.nn.init.zeros_, config=config)
        with torch.no_grad():
            layer.weight.copy_(part(fixed(48, 24, seed=1), 0))
        y = layer(torch.arange(48).view(6, 8))
        y.backward(fixed(6, 8, 24, seed=3))
        return {"y": y.detach(), "dw": layer.weight.grad}

    for ours, theirs in both(size, lambda: run("ours"), lambda: run("theirs"), tensor_model_parallel_size=size):
        cases.assert_matches(ours, theirs)


@pytest.mark.parametrize(("size", "smoothing"), [(1, 0.0), (2, 0.0), (4, 0.0), (8, 0.0), (1, 0.1)])
def test_cross_entropy(size, smoothing):
    """Smoothed only on one rank: Megatron-Core's smoothing depends on the tensor parallel size."""

    def run(library: Any) -> cases.Tensors:
        logits = part(fixed(5, 7, 48, scale=4.0), -1).requires_grad_()
        target = torch.arange(35).view(5, 7)
        loss = library.vocab_parallel_cross_entropy(logits.clone(), target, smoothing)
        loss.backward(fixed(5, 7, seed=3))
        return {"loss": loss.detach(), "dlogits": logits.grad}

    for ours, theirs in both(size, lambda: run(tp), lambda: run(tensor_parallel), tensor_model_parallel_size=size):
        cases.assert_matches(ours, theirs)


MAPPINGS = [name for name in tp.__all__ if name.endswith("_region")]


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings(name):
    def run(library: Any) -> cases.Tensors:
        x = fixed(8, 3, 8, seed=tp.get_tensor_model_parallel_rank()).requires_grad_()
        y = getattr(library, name)(x.clone())
        y.backward(fixed(*y.shape, seed=100 + tp.get_tensor_model_parallel_rank()))
        return {"y": y.detach(), "dx": x.grad}

    for ours, theirs in both(4, lambda: run(tp), lambda: run(tensor_parallel.mappings), tensor_model_parallel_size=4):
        cases.assert_matches(ours, theirs)
