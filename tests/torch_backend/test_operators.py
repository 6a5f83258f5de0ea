"""Every operator that torch's own tests describe: of operands on a simulated GPU the result is there, and it is the CPU's."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from kernbench import simulated_gpu
from tests import torch_samples

NOT_OF_THE_CPU = {
    "_softmax_backward_data": "its result of fp16 is CUDA's alone",
    "torch._scaled_mm_v2": "the first sample's scaling is of other hardware",
    "torch.ops.aten._flash_attention_forward": "called past the functions that call it",
    "torch.ops.aten._efficient_attention_forward": "called past the functions that call it",
    "jiterator_unary": "compiles CUDA C++",
    "jiterator_binary": "compiles CUDA C++",
    "jiterator_4inputs_with_extra_args": "compiles CUDA C++",
    "jiterator_binary_return_by_ref": "compiles CUDA C++",
    "jiterator_2inputs_2outputs": "compiles CUDA C++",
    "histogram": "for CPUs alone",
    "histogramdd": "for CPUs alone",
    "linalg.matrix_rank": "the function of before the simulation",
    "triu_indices": "the function of before the simulation",
    "tril_indices": "the function of before the simulation",
}
"""Operators that are not tried, and why."""
NOT_EQUAL = frozenset((
    "as_strided", "as_strided_copy", "as_strided_scatter",
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_",
    "bernoulli", "multinomial", "normal", "uniform", "cauchy", "exponential", "geometric", "log_normal", "rand_like",
    "randn", "randn_like", "randint", "randint_like", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward", "pca_lowrank",
    "svd_lowrank",
))  # fmt: skip
"""Random, unwritten memory, or beyond the operand in its storage."""


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def on_host(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf, tree)


@pytest.mark.long  # two thousand calls
@pytest.mark.parametrize("part", range(4))
def test_results_are_on_the_gpu_and_the_cpus(part: int) -> None:
    operators = torch_samples.operators()
    wrong, tried = [], 0
    with warnings.catch_warnings(), simulated_gpu("dgx_h100"):
        warnings.simplefilter("ignore")
        for operator in operators[part::4]:
            if operator.name in NOT_OF_THE_CPU:
                continue
            dtypes = sorted(operator.dtypes, key=str) or [torch.bfloat16]
            dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
            for sample in itertools.islice(operator.sample_inputs("cuda", dtype, requires_grad=False), 3):
                name = f"{operator.name} {operator.variant_test_name}".strip()
                given = on_host((sample.input, sample.args, sample.kwargs))
                found = operator(sample.input, *sample.args, **sample.kwargs)
                tried += 1
                if tensors_of((sample.input, sample.args, sample.kwargs)) and not all(
                    each.is_cuda for each in tensors_of(found)
                ):
                    wrong.append(f"{name}: on the host")
                if operator.name in NOT_EQUAL or "cuda" in str(given):
                    continue
                expected = operator(given[0], *given[1], **given[2])
                for mine, its in zip(tensors_of(on_host(found)), tensors_of(expected), strict=True):
                    if not torch.allclose(
                        mine.to_dense().to(torch.complex128), its.to_dense().to(torch.complex128), 1e-4, 1e-5, True
                    ):
                        wrong.append(f"{name}: other values")
    assert tried > 300
    assert not wrong, "\n".join(sorted(set(wrong)))
