"""Nested tensors on a simulated GPU: those of C++ (strided), which have no shape, and those of Python (jagged)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kernbench
from tests.torch_backend.conftest import Ranks

LENGTHS = (3, 5)


def projected(layout: torch.layout, device: str) -> Any:
    """A sum over what a linear layer makes of sequences of :data:`LENGTHS`, the gradient of its weight, and the sequences."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 6).to(device)
    parts = [torch.arange(4.0 * length).reshape(length, 4).to(device) for length in LENGTHS]
    made = layer(torch.nested.nested_tensor(parts, layout=layout, device=device))
    total = sum(part.square().sum() for part in made.unbind())
    total.backward()
    assert layer.weight.grad is not None
    return made.device, total.detach().cpu(), layer.weight.grad.cpu()


def one_by_one() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(4, 6)
    total = torch.stack([layer(torch.arange(4.0 * n).reshape(n, 4)).square().sum() for n in LENGTHS]).sum()
    total.backward()
    assert layer.weight.grad is not None
    return total.detach(), layer.weight.grad


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_layer_works_on_each_sequence(ranks: Ranks, layout: torch.layout) -> None:
    [(device, total, gradient)] = ranks(lambda: projected(layout, "cuda"), 1)
    assert device == torch.device("cuda", 0)
    torch.testing.assert_close((total, gradient), one_by_one())


def test_a_product_of_a_nested_tensor_is_priced_as_that_of_its_rows(ranks: Ranks) -> None:
    def body() -> tuple[float, float]:
        layer = nn.Linear(512, 512, device="cuda")
        rows = torch.ones(512, 512, device="cuda")
        nested = torch.nested.nested_tensor([rows[:128], rows[128:]])

        def took(x: torch.Tensor) -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            layer(x)
            end.record()
            torch.cuda.synchronize()
            return float(begin.elapsed_time(end))

        with torch.no_grad():
            took(rows)
            return took(rows), took(nested)

    [(flat, nested)] = ranks(body, 1)
    assert nested == pytest.approx(flat, rel=0.3)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_jagged_tensors(ranks: Ranks, causal: bool) -> None:
    def body() -> list[torch.Tensor]:
        parts = [torch.linspace(0.0, 1.0, 8 * length).reshape(length, 2, 4).cuda() for length in LENGTHS]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
        return [
            part.transpose(0, 1).cpu()
            for part in (x + F.scaled_dot_product_attention(x, x, x, is_causal=causal)).unbind()
        ]

    [found] = ranks(body, 1)
    for length, part in zip(LENGTHS, found, strict=True):
        x = torch.linspace(0.0, 1.0, 8 * length).reshape(1, length, 2, 4).transpose(1, 2)
        expected = x + F.scaled_dot_product_attention(x, x, x, is_causal=causal)
        torch.testing.assert_close(part, expected[0].transpose(0, 1))


def test_without_data_strided_ones_are_refused_in_words() -> None:
    def worker(rank: int) -> None:
        torch.nested.nested_tensor([torch.ones(3, 4, device="cuda")])

    with (
        kernbench.simulate("dgx_h100", world_size=1, enable_data=False) as ctx,
        pytest.raises(Exception, match=r"layout=torch\.jagged"),
    ):
        ctx.multiprocessing.spawn(worker, nprocs=1)
