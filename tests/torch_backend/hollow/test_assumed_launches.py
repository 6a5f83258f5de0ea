"""Without data: what kernels write is assumed where what they are given is, and what they only read stays known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import kernbench
from kernbench.torch_backend.hollow.assumed_numbers import AssumedFloat

SIZE = 16


@triton.jit
def statistics(x, labels, most, exps, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The maximum of each row and the sum of its exponentials, of the columns up to its label."""
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + i, mask=i <= tl.load(labels + row), other=-float("inf"))
    m = tl.maximum(tl.load(most + row), tl.max(values, 0))
    tl.store(most + row, m)
    tl.store(exps + row, tl.sum(tl.exp(values - m), 0))


@triton.jit
def logarithm(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.log(tl.load(x + i) - tl.load(x + i)))


@triton.jit
def double(source, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    target.store([0, 0], source.load([0, 0]) * 2)


@triton.jit
def behind(sources, targets, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    source = tl.load(sources + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    target = tl.load(targets + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i) + 1)


@triton.jit
def behind_one(x, targets, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    target = tl.load(targets).to(tl.pointer_type(tl.float32))
    described = tl.make_tensor_descriptor(target, [BLOCK], [1], [BLOCK])
    described.store([0], tl.load(x + tl.arange(0, BLOCK)))


def run(body: Callable[[], Any]) -> Any:
    found: list[Any] = []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.append(body()), nprocs=1)
    return found[0]


def assumed(numbers: list[Any]) -> list[bool]:
    return [isinstance(each, AssumedFloat) for each in numbers]


def described(tensor: torch.Tensor) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(tensor, [SIZE, SIZE])


@pytest.mark.long  # seconds
def test_what_a_kernel_writes_is_assumed_and_finite_whatever_was_there_before():
    def body() -> tuple[Any, ...]:
        x = torch.randn(4096, SIZE, device="cuda")
        most = torch.full((SIZE,), -math.inf, device="cuda")
        exps = torch.zeros(SIZE, device="cuda")
        labels = torch.arange(SIZE, device="cuda")
        statistics[(SIZE,)](x, labels, most, exps, SIZE, BLOCK=SIZE)
        of_all = most + exps.log()
        return labels.tolist(), of_all[:2].tolist(), bool(of_all.isinf().any() | of_all.isnan().any())

    labels, of_all, steers = run(body)
    assert labels == list(range(SIZE))
    assert all(type(each) is int for each in labels)
    assert assumed(of_all) == [True, True]
    assert all(map(math.isfinite, of_all))
    assert not steers


def test_a_kernel_that_is_computed_with_assumed_numbers_gives_finite_ones():
    def body() -> list[float]:
        out = torch.zeros(SIZE, device="cuda")
        logarithm[(1,)](torch.randn(4096, SIZE, device="cuda").exp().mean(0), out, BLOCK=SIZE)
        return out[:2].tolist()

    found = run(body)
    assert assumed(found) == [True, True]
    assert all(map(math.isfinite, found))


def test_what_is_known_is_computed_to_infinity():
    def body() -> list[float]:
        out = torch.zeros(SIZE, device="cuda")
        logarithm[(1,)](torch.ones(SIZE, device="cuda"), out, BLOCK=SIZE)
        return out[:2].tolist()

    assert run(body) == [-math.inf, -math.inf]


@pytest.mark.parametrize("known", [True, False])
def test_descriptors_are_looked_behind(known):
    def body() -> list[float]:
        source = torch.ones(SIZE, SIZE, device="cuda") if known else torch.randn(4096, SIZE, device="cuda")
        out = torch.zeros(SIZE, SIZE, device="cuda")
        double[(1,)](described(source), described(out), BLOCK=SIZE)
        return out[0, :2].tolist()

    found = run(body)
    assert assumed(found) == [not known, not known]
    assert not known or found == [2.0, 2.0]


def test_a_reinterpreted_tensor_is_looked_behind():
    def body() -> list[Any]:
        out = torch.zeros(SIZE, device="cuda")
        logarithm[(1,)](torch.randn(4096, device="cuda"), triton.reinterpret(out, tl.float32), BLOCK=SIZE)
        return out[:2].tolist()

    assert assumed(run(body)) == [True, True]


def addresses(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.tensor([each.data_ptr() for each in tensors], device="cuda")


@pytest.mark.parametrize("known", [True, False])
def test_addresses_in_a_table_are_looked_behind(known):
    def body() -> tuple[list[float], list[float], list[float]]:
        source = torch.ones(SIZE, device="cuda") if known else torch.randn(4096, SIZE, device="cuda")
        kept, of_table, of_one = (torch.ones(SIZE, device="cuda") for _ in range(3))
        behind[(2,)](addresses(source, kept), addresses(of_table, of_table), BLOCK=SIZE)
        behind_one[(1,)](source, addresses(of_one), BLOCK=SIZE)
        return kept[:1].tolist(), of_table[:1].tolist(), of_one[:1].tolist()

    kept, of_table, of_one = run(body)
    assert [assumed(kept), assumed(of_table), assumed(of_one)] == [[False], [not known], [not known]]
    assert kept == [1.0]
    assert not known or (of_table, of_one) == ([2.0], [1.0])


def test_addresses_that_are_not_known_are_refused():
    def body() -> None:
        table = torch.randint(1 << 20, (1 << 20,), device="cuda")
        behind[(1,)](table, table, BLOCK=SIZE)

    with pytest.raises(kernbench.SpawnException, match="make its table on the host"):
        run(body)


def test_a_large_tensor_that_a_kernel_has_written_is_measured():
    """It is no longer what it was made as."""

    def body() -> list[Any]:
        out = torch.zeros(4096, SIZE, device="cuda")
        double[(1,)](described(torch.randn(4096, SIZE, device="cuda")), described(out), BLOCK=SIZE)
        return [out.mean().item(), torch.zeros(4096, SIZE, device="cuda").mean().item()]

    assert run(body) == [1.0, 0.0]


def test_what_had_been_written_into_an_empty_tensor_is_not_known_behind_a_kernel():
    def body() -> list[Any]:
        out = torch.empty(SIZE, device="cuda")
        out[:2] = 3.0
        logarithm[(1,)](torch.randn(4096, device="cuda"), out, BLOCK=SIZE)
        return out[:2].tolist()

    assert assumed(run(body)) == [True, True]
