"""The parallel layers against torch alone: outputs and every gradient, element by element."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import kernbench
from kernbench import tp
from kernbench.errors import ConfigError
from kernbench.runtime_api.multiprocessing import SpawnException
from tests.tp import cases
from tests.tp.ranks import SEED, assert_equal_everywhere, fill, fixed, part, simulated

SIZES = [1, 2, 3, 4, 8]
HALF = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("gather_output", "bias", "activation"), [(True, True, None), (False, True, "gelu"), (False, False, None)]
)
def test_column_parallel_linear(size, gather_output, bias, activation):
    found = cases.joined(simulated(size, cases.column, gather_output, bias, activation))
    cases.assert_matches(found, cases.column_reference(bias, activation))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("input_is_parallel", "bias"), [(True, True), (False, True), (True, False)])
def test_row_parallel_linear(size, input_is_parallel, bias):
    found = cases.joined(simulated(size, cases.row, input_is_parallel, bias))
    cases.assert_matches(found, cases.row_reference(bias))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision(dtype):
    column = cases.joined(simulated(4, cases.column, False, True, "gelu", dtype))
    cases.assert_matches(column, cases.column_reference(True, "gelu", dtype), HALF[dtype])
    row = cases.joined(simulated(4, cases.row, True, True, dtype))
    cases.assert_matches(row, cases.row_reference(True, dtype), HALF[dtype])


@pytest.mark.parametrize("size", SIZES)
def test_concatenated_column_outputs_are_the_product(size):
    """No sum is split, so the parts are the whole product bit for bit."""
    parts = simulated(size, cases.column, False, True, None)
    whole = simulated(1, cases.column, False, True, None)
    assert torch.equal(cases.joined(parts)["y"], cases.joined(whole)["y"])


@pytest.mark.parametrize("size", SIZES)
def test_embedding(size):
    found = cases.joined(simulated(size, cases.embedding))
    weight = fixed(cases.OUTPUTS, cases.FEATURES, seed=1).requires_grad_()
    words = torch.randint(0, cases.OUTPUTS, (5, 7), generator=torch.Generator().manual_seed(0))
    expected = nn.functional.embedding(words, weight)
    expected.backward(fixed(5, 7, cases.FEATURES, seed=3))
    assert torch.equal(found["y"], expected)  # one rank has the word, the others add zeros
    assert torch.equal(found["dw"], weight.grad)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_vocab_parallel_cross_entropy(size, smoothing):
    found = cases.joined(simulated(size, cases.cross_entropy, smoothing))
    logits = fixed(5, 7, cases.OUTPUTS, scale=4.0).double().requires_grad_()
    target = torch.randint(0, cases.OUTPUTS, (5, 7), generator=torch.Generator().manual_seed(0))
    everywhere = smoothing * cases.OUTPUTS / (cases.OUTPUTS - 1)  # torch spreads it over the target word too
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), target.flatten(), reduction="none", label_smoothing=everywhere
    )
    loss.view(5, 7).backward(fixed(5, 7, seed=3).double())
    cases.assert_matches(found, {"loss": loss.detach().view(5, 7), "dlogits": logits.grad})


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_sequence_parallel_is_the_same_mlp(size):
    plain = cases.joined(simulated(1, cases.mlp, False))
    cases.assert_matches(cases.joined(simulated(size, cases.mlp, True)), plain)
    cases.assert_matches(cases.joined(simulated(size, cases.mlp, False)), plain)


def test_skipped_bias_is_returned_and_not_added():
    def body() -> tuple[torch.Tensor, ...]:
        column = tp.ColumnParallelLinear(8, 12, gather_output=False, skip_bias_add=True)
        row = tp.RowParallelLinear(12, 8, input_is_parallel=True, skip_bias_add=True)
        for layer in (column, row):
            nn.init.ones_(layer.bias)
        x = fixed(3, 8)
        y, column_bias = column(x)
        z, row_bias = row(y)
        assert column_bias is column.bias
        assert row_bias is row.bias
        return y.detach(), z.detach(), column.weight.detach(), row.weight.detach()

    results = simulated(2, body)
    y, weight = torch.cat([r[0] for r in results], -1), torch.cat([r[2] for r in results])
    torch.testing.assert_close(y, fixed(3, 8) @ weight.t())
    torch.testing.assert_close(results[0][1], y @ torch.cat([r[3] for r in results], 1).t())


# -- initialisation --------------------------------------------------------------------------------------------------


def weights() -> cases.Tensors:
    layers = (tp.ColumnParallelLinear(16, 24), tp.RowParallelLinear(24, 16), tp.VocabParallelEmbedding(48, 16))
    return {f"{i}|{dim}": layer.weight.detach() for i, (layer, dim) in enumerate(zip(layers, (0, -1, 0), strict=True))}


@pytest.mark.parametrize("size", SIZES[1:])
def test_weights_do_not_depend_on_the_tensor_parallel_size(size):
    whole, one = cases.joined(simulated(size, weights)), cases.joined(simulated(1, weights))
    for name, value in whole.items():
        assert torch.equal(value, one[name])
    assert whole["0"].std() == pytest.approx((2 / (16 + 24)) ** 0.5, rel=0.15)  # Glorot and Bengio, normal


def test_parts_keep_no_whole_weight_alive():
    def body() -> int:
        layer = tp.RowParallelLinear(64, 32)
        return layer.weight.untyped_storage().nbytes()

    assert simulated(4, body) == [64 * 32 * 4 // 4] * 4


def test_layers_leave_the_random_state_alone():
    def body() -> torch.Tensor:
        torch.manual_seed(7)
        tp.ColumnParallelLinear(8, 8)
        return torch.rand(3)

    torch.manual_seed(7)
    expected = torch.rand(3)
    assert torch.equal(simulated(1, body)[0], expected)


# -- errors ----------------------------------------------------------------------------------------------------------


# what a rank does, and what the error says after "rank R, "
MISTAKES = [
    (
        lambda: tp.ColumnParallelLinear(8, 10, name="fc1"),
        "ColumnParallelLinear 'fc1' with tensor_model_parallel_size 4: output_size 10",
    ),
    (lambda: tp.RowParallelLinear(10, 8), "RowParallelLinear with tensor_model_parallel_size 4: input_size 10"),
    (lambda: tp.VocabParallelEmbedding(50, 8), "VocabParallelEmbedding.*num_embeddings 50"),
    (
        lambda: tp.ColumnParallelLinear(8, 8)(torch.ones(2, 7)),
        r"expected input \[..., 8\], found \(2, 7\); weight is \(2, 8\)",
    ),
    (lambda: tp.RowParallelLinear(8, 8, input_is_parallel=True)(torch.ones(2, 8)), r"expected input \[..., 2\]"),
    (
        lambda: tp.ColumnParallelLinear(8, 8)(torch.ones(2, 8).half()),
        "input is torch.float16, weight is torch.float32",
    ),
    (
        lambda: tp.vocab_parallel_cross_entropy(torch.ones(2, 8), torch.ones(3).long()),
        r"target must be \(2,\); found \(3,\)",
    ),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_partition_errors_name_rank_layer_and_sizes(make, words):
    with pytest.raises(SpawnException, match=rf"rank \d.*{words}") as caught:
        simulated(4, make)
    assert isinstance(caught.value.errors[0], tp.PartitionError)
    assert isinstance(caught.value.errors[0], AssertionError)  # what Megatron-Core raises


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gather_output": True, "sequence_parallel": True}, "exclude each other"),
        ({"activation": "relu", "skip_bias_add": True}, "needs the bias added"),
        ({"activation": "sin"}, "expected None or one of"),
    ],
)
def test_arguments_that_exclude_each_other(arguments, words):
    with pytest.raises(SpawnException, match=words) as caught:
        simulated(2, lambda: tp.ColumnParallelLinear(8, 8, **arguments))
    assert isinstance(caught.value.errors[0], ConfigError)


# -- memory and other kinds of ranks ---------------------------------------------------------------------------------


def test_reused_addresses_do_not_bring_old_values_back():
    """A gemm, an all-reduce of its result, and the same addresses again at once: each result is its own."""

    def body() -> list[torch.Tensor]:
        rank, size = tp.get_tensor_model_parallel_rank(), tp.get_tensor_model_parallel_world_size()
        layer = tp.RowParallelLinear(16 * size, 32, bias=False, input_is_parallel=True)
        fill(layer.weight, fixed(32, 16 * size, seed=1), 1)
        scratch = torch.empty(8, 16)
        results = []
        with torch.no_grad():
            for step in range(4):
                scratch.copy_(fixed(8, 16 * size, seed=step)[:, 16 * rank : 16 * rank + 16])
                output = layer(scratch)[0]
                scratch.fill_(float("nan"))
                results.append(output.clone())
                output.fill_(float("nan"))
        return results

    for results in zip(*simulated(4, body), strict=True):
        assert_equal_everywhere(list(results))
    for step, found in enumerate(simulated(4, body)[0]):
        expected = fixed(8, 64, seed=step).double() @ fixed(32, 64, seed=1).double().t()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_forward_only_on_greenlet_ranks_with_tensors_of_the_context(size):
    """No autograd, no carrier, no init_process_group: the fast mode."""
    results: dict[int, torch.Tensor] = {}

    def worker(rank: int, ctx: kernbench.RuntimeContext) -> None:
        tp.initialize_model_parallel(size)
        tp.model_parallel_manual_seed(SEED)
        layer = tp.ParallelMLP(tp.TransformerConfig(cases.FEATURES, 4, init_method_std=0.2))
        assert not any(param.requires_grad for param in layer.parameters())
        results[rank] = torch.from_numpy(layer(ctx.from_numpy(fixed(24, 2, cases.FEATURES).numpy())).numpy())

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=size, isolation="greenlet")
        assert ctx.now() > 0
    assert_equal_everywhere(list(results.values()))
    expected = cases.joined(simulated(1, cases.mlp, False))["y"]
    torch.testing.assert_close(results[0], expected, rtol=2e-6, atol=2e-6)


def test_layers_describe_themselves():
    def body() -> str:
        return repr(tp.ColumnParallelLinear(8, 12))

    assert re.fullmatch(r"ColumnParallelLinear\(8, 12, tp=2, bias=True, .*\)", simulated(2, body)[0])


def test_part_and_chunk_agree():
    """The suite's own helper: parts of a whole, by rank."""
    assert torch.equal(torch.cat(simulated(3, lambda: part(fixed(6, 2), 0))), fixed(6, 2))
