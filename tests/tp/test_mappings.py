"""Each mapping and its adjoint, against what the definition says about the tensors of all ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernbench import tp
from kernbench.errors import KernbenchError
from kernbench.runtime_api.multiprocessing import SpawnException
from tests.tp.ranks import fixed, simulated

SIZES = [1, 2, 3, 4, 8]


def total(parts: list[np.ndarray]) -> list[np.ndarray]:
    return [np.sum(parts, 0)] * len(parts)


def same(parts: list[np.ndarray]) -> list[np.ndarray]:
    return parts


def gather(axis: int):
    return lambda parts: [np.concatenate(parts, axis)] * len(parts)


def split(axis: int):
    return lambda parts: [np.split(part, len(parts), axis)[rank] for rank, part in enumerate(parts)]


def scatter_sum(axis: int):
    return lambda parts: np.split(np.sum(parts, 0), len(parts), axis)


# mapping: what it does to every rank's tensor, and what its backward does to every rank's gradient
CASES = {
    tp.copy_to_tensor_model_parallel_region: (same, total),
    tp.reduce_from_tensor_model_parallel_region: (total, same),
    tp.scatter_to_tensor_model_parallel_region: (split(-1), gather(-1)),
    tp.gather_from_tensor_model_parallel_region: (gather(-1), split(-1)),
    tp.scatter_to_sequence_parallel_region: (split(0), gather(0)),
    tp.gather_from_sequence_parallel_region: (gather(0), scatter_sum(0)),
    tp.reduce_scatter_to_sequence_parallel_region: (scatter_sum(0), gather(0)),
    tp.all_gather_last_dim_from_tensor_parallel_region: (gather(-1), scatter_sum(-1)),
    tp.reduce_scatter_last_dim_to_tensor_parallel_region: (scatter_sum(-1), gather(-1)),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mapping", CASES, ids=lambda mapping: mapping.__name__)
def test_forward_and_backward(mapping, size):
    forward, backward = CASES[mapping]

    def body() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        rank = tp.get_tensor_model_parallel_rank()
        x = fixed(2 * size, 3, 4 * size, seed=rank).requires_grad_()
        y = mapping(x)
        grad = fixed(*y.shape, seed=100 + rank)
        y.backward(grad)
        return x.detach(), y.detach(), grad, x.grad

    results = simulated(size, body)
    inputs, outputs, grads, input_grads = ([r[i].numpy() for r in results] for i in range(4))
    for found, expected in zip([*outputs, *input_grads], [*forward(inputs), *backward(grads)], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_gradients_that_are_equal_are_split_not_summed():
    def body() -> torch.Tensor:
        x = torch.ones(2, 3, requires_grad=True)
        y = tp.gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=False)
        y.backward(torch.arange(8.0).unsqueeze(1).expand(8, 3))
        return x.grad

    for rank, grad in enumerate(simulated(4, body)):
        assert grad[:, 0].tolist() == [2.0 * rank, 2.0 * rank + 1]


def test_a_reduction_leaves_its_input_alone():
    def body() -> bool:
        x = torch.ones(4)
        return bool((tp.reduce_from_tensor_model_parallel_region(x) == 3).all() and (x == 1).all())

    assert simulated(3, body) == [True] * 3


def test_several_groups_at_once():
    """Four tensor groups of two ranks, each with its own numbers in flight."""

    def body() -> float:
        group = tp.get_data_parallel_rank()
        x = torch.full((1000,), 10.0**group * (1 + tp.get_tensor_model_parallel_rank()))
        return float(tp.reduce_from_tensor_model_parallel_region(x)[-1])

    assert simulated(8, body, tensor=2) == [3.0, 3.0, 30.0, 30.0, 300.0, 300.0, 3000.0, 3000.0]


def test_sizes_that_do_not_divide_name_rank_and_shape():
    def body() -> None:
        tp.scatter_to_sequence_parallel_region(torch.ones(7, 2))

    with pytest.raises(
        SpawnException, match=r"rank 0: first \(sequence\) dimension of \(7, 2\) 7 is not divisible by 2"
    ):
        simulated(2, body)


def test_greenlet_ranks_refuse_autograd_and_say_why():
    def body() -> None:
        tp.reduce_from_tensor_model_parallel_region(torch.ones(4, requires_grad=True))

    with pytest.raises(SpawnException) as caught:
        simulated(2, body, isolation="greenlet")
    assert isinstance(caught.value.errors[0], KernbenchError)
    assert "isolation='carrier'" in str(caught.value)
