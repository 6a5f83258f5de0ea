"""Bags of embeddings on a GPU: the first begins with the first index, whatever the first offset is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import kernbench


@pytest.mark.parametrize("last", [False, True], ids=["", "last offset"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_first_offset_is_taken_for_zero(mode: str, last: bool) -> None:
    def results(first: int) -> tuple[torch.Tensor, ...]:
        weight = torch.linspace(-1, 1, 40, device="cuda").view(10, 4).requires_grad_()
        indices = torch.tensor([1, 2, 3, 4, 5, 2], device="cuda")
        offsets = torch.tensor([first, 3, *([6] if last else [])], device="cuda")
        found = F.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=last)
        found.backward(torch.arange(8.0, device="cuda").view(2, 4))
        with torch.no_grad():
            again = F.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=last)
        assert weight.grad is not None
        return found.detach(), weight.grad, again

    with kernbench.simulated_gpu("dgx_h100"):
        for expected, found in zip(results(0), results(2), strict=True):
            assert torch.equal(expected, found)
