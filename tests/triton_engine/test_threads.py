"""Large matrix products use several threads; their values are the same bits for any number of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import kernbench
from kernbench.benches.kernels.matmul import matmul
from kernbench.triton_engine import threads
from kernbench.triton_engine.ops.dot import contract, product


@contextmanager
def _product_threads(count: int) -> Iterator[None]:
    """As inside ranks: torch has one thread, large products ``count``."""
    torch_threads = torch.get_num_threads()
    before = threads.set_product_threads(count)
    threads._pace.alone = math.inf  # several threads always pay off
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        threads.set_product_threads(before)


def _numbers(*shape: int, transposed: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if transposed:
        return torch.randn(*shape[:-2], shape[-1], shape[-2], generator=generator).transpose(-1, -2)
    return torch.randn(*shape, generator=generator)


# rows that make equal parts, that leave a rest, that make one part; columns that are no multiple of a vector
_SHAPES = [(1024, 512, 32), (1000, 170, 64), (1537, 1000, 16), (512, 512, 300), (300, 2048, 64), (2048, 256, 64)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), _SHAPES)
def test_products_are_the_same_bits_for_one_two_and_three_threads(m: int, n: int, k: int, transposed: bool) -> None:
    a, b, acc = _numbers(m, k, transposed=transposed), _numbers(k, n, transposed=transposed), _numbers(m, n)
    results = []
    for count in (1, 2, 3):
        with _product_threads(count):
            total = acc.clone()
            product(a, b, total, total)
            results.append((total, product(a, b)))
    exact = acc.double() + a.double() @ b.double()
    assert torch.allclose(results[0][0].double(), exact, atol=1e-3)
    for total, fresh in results[1:]:
        assert torch.equal(total, results[0][0])
        assert torch.equal(fresh, results[0][1])


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_batches_of_products_are_the_same_bits_for_any_number_of_threads(batch: int) -> None:
    a, b, acc = _numbers(batch, 256, 64), _numbers(batch, 64, 512), _numbers(batch, 256, 512)
    results = []
    for count in (1, 2):
        with _product_threads(count):
            results.append(contract(a, b, 0, torch.float32, acc, False))
    assert torch.equal(*results)


def test_a_kernel_of_ranks_gives_the_same_bits_for_any_number_of_threads() -> None:
    def run(count: int) -> tuple[list[torch.Tensor], int]:
        out: dict[int, torch.Tensor] = {}
        seen = []

        def worker(rank: int) -> None:
            a, b = _numbers(1024, 64) + rank, _numbers(64, 512)
            out[rank] = matmul(a, b, tile=(128, 128, 32))
            seen.append(torch.get_num_threads())

        torch_threads = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            with kernbench.simulate() as ctx:
                ctx.multiprocessing.spawn(worker, nprocs=2)
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(torch_threads)
        assert set(seen) == {1}
        return [out[0], out[1]], threads._count

    one, left = run(1)
    two, left_after_two = run(2)
    assert left == left_after_two == 1
    for rank in range(2):
        assert torch.equal(one[rank], two[rank])
        assert torch.allclose(one[rank], (_numbers(1024, 64) + rank) @ _numbers(64, 512), atol=1e-3)


def test_threads_rest_while_they_do_not_pay_off_and_come_back() -> None:
    pace, flops = threads.Pace(), 1 << 24
    assert not pace.several()  # what one thread takes is not known yet
    pace.took(False, 1.0, flops)
    for _ in range(3):
        assert pace.several()
        pace.took(True, 0.55, flops)
    pace.took(True, 20.0, flops)  # the other core was taken
    resting = 0
    while not pace.several():
        pace.took(False, 1.0, flops)
        resting += 1
    assert resting == 8
    pace.took(True, 20.0, flops)
    while not pace.several():
        pace.took(False, 1.0, flops)
        resting += 1
    assert resting == 8 + 16
    pace.took(True, 0.55, flops)
    for _ in range(200):
        assert pace.several()
        pace.took(True, 0.55, flops)
