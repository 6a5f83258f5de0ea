"""Operators that torch has for GPUs alone, called by their names: values and gradients of those composed for any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kernbench

aten = torch.ops.aten


def made(device: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    made = {
        "x": torch.randn(2, 4, 6, 6, dtype=torch.float64),
        "w": torch.randn(4, 4, 3, 3, dtype=torch.float64),
        "each": torch.randn(4, 1, 3, 3, dtype=torch.float64),
        "b": torch.randn(4, dtype=torch.float64),
        "grid": torch.rand(2, 5, 5, 2, dtype=torch.float64) - 0.5,
        "theta": torch.randn(2, 2, 3, dtype=torch.float64),
    }
    return {name: each.to(device).requires_grad_() for name, each in made.items()}


ONE, NONE = (1, 1), (0, 0)
SAME: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "convolution": (
        lambda x, w, **_: torch.cudnn_convolution(x, w, ONE, ONE, ONE, 1, False, True, True),
        lambda x, w, **_: F.conv2d(x, w, padding=1),
    ),
    "transposed": (
        lambda x, w, **_: torch.cudnn_convolution_transpose(x, w, ONE, ONE, (2, 2), ONE, 1, False, True, True),
        lambda x, w, **_: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
    ),
    "norm": (
        lambda x, b, **_: torch.cudnn_batch_norm(x, b, b, None, None, True, 0.1, 1e-5)[0],
        lambda x, b, **_: F.batch_norm(x, None, None, b, b, True),
    ),
    "sampler": (
        lambda x, grid, **_: torch.cudnn_grid_sampler(x, grid),
        lambda x, grid, **_: F.grid_sample(x, grid, align_corners=True),
    ),
    "grid": (
        lambda theta, **_: torch.cudnn_affine_grid_generator(theta, 2, 4, 6, 6),
        lambda theta, **_: F.affine_grid(theta, [2, 4, 6, 6], align_corners=True),
    ),
}
FORWARD: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "depthwise": (
        lambda x, each, b, **_: aten._conv_depthwise2d(x, each, [3, 3], b, ONE, ONE, ONE),
        lambda x, each, b, **_: F.conv2d(x, each, b, padding=1, groups=4),
    ),
    "convolution and relu": (
        lambda x, w, b, **_: torch.cudnn_convolution_relu(x, w, b, ONE, ONE, ONE, 1),
        lambda x, w, b, **_: F.conv2d(x, w, b, padding=1).relu(),
    ),
    "convolution, sum and relu": (
        lambda x, w, b, **_: torch.cudnn_convolution_add_relu(x, w, x, 0.5, b, ONE, ONE, ONE, 1),
        lambda x, w, b, **_: (F.conv2d(x, w, b, padding=1) + 0.5 * x).relu(),
    ),
    "scaled": (
        lambda x, **_: torch._masked_scale(x, (x > 0).byte(), 2.0),
        lambda x, **_: 2 * x.relu(),
    ),
    "in three dimensions": (
        lambda x, each, **_: aten.conv_depthwise3d(
            x[:, :, None], each[:, :, None], [1, 3, 3], None, [1] * 3, [0, 1, 1], [1] * 3
        ),
        lambda x, each, **_: F.conv2d(x, each, padding=1, groups=4)[:, :, None],
    ),
}


def gradients(function: Callable[..., Tensor], device: str) -> tuple[Tensor, list[Tensor | None]]:
    given = made(device)
    found = function(**given)
    (found * torch.arange(found.numel(), device=found.device, dtype=found.dtype).view_as(found).cos()).sum().backward()
    return found, [each.grad for each in given.values()]


@pytest.mark.parametrize("name", SAME)
def test_values_and_gradients_are_the_composed_ones(name):
    vendors, composed = SAME[name]
    expected, expected_gradients = gradients(composed, "cpu")
    with kernbench.simulated_gpu("dgx_h100"):
        found, found_gradients = gradients(vendors, "cuda")
        assert {str(each.device) for each in (found, *found_gradients) if each is not None} == {"cuda:0"}
        torch.testing.assert_close(found.cpu(), expected)
        for one, other in zip(found_gradients, expected_gradients, strict=True):
            assert (one is None) == (other is None)
            if other is not None:
                torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize("name", FORWARD)
def test_values_are_the_composed_ones(name):
    vendors, composed = FORWARD[name]
    with torch.no_grad():
        expected = composed(**made("cpu"))
        with kernbench.simulated_gpu("dgx_h100"):
            torch.testing.assert_close(vendors(**made("cuda")).cpu(), expected)


def test_dropout_with_a_mask_of_bytes():
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(1000, device="cuda", requires_grad=True)
        kept, mask = torch._fused_dropout(x, 0.75)
        kept.sum().backward()
        assert mask.dtype is torch.uint8
        assert 600 < int(mask.sum()) < 900
        assert torch.equal(kept, mask / 0.75)
        assert torch.equal(x.grad, mask / 0.75)


def test_statistics_of_ranks_with_as_many_elements():
    mean, variance, x = torch.randn(3, 4), torch.rand(3, 4) + 0.5, torch.randn(2, 4, 6, 6)
    with kernbench.simulated_gpu("dgx_h100"):
        given = [each.cuda() for each in (x, mean, variance.rsqrt())]
        counts = torch.full((3,), 72.0, device="cuda")
        found = torch.batch_norm_gather_stats(*given, None, None, 0.1, 0.0, 72)
        expected = torch.batch_norm_gather_stats_with_counts(*given, None, None, 0.1, 0.0, counts)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
        torch.testing.assert_close(found[0].cpu(), mean.mean(0))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("targets_on", ["cpu", "cuda"])
def test_lengths_of_the_host_in_a_ctc_loss(reduction, targets_on):
    scores = torch.randn(5, 2, 4)
    targets, lengths, of_targets = torch.ones(4, dtype=torch.int32), torch.tensor([5, 4]), torch.tensor([2, 1])
    expected = F.ctc_loss(scores.log_softmax(-1), targets[:3], lengths, of_targets, reduction=reduction)
    with kernbench.simulated_gpu("dgx_h100"):
        on_gpu = scores.cuda().requires_grad_()
        found = F.ctc_loss(on_gpu.log_softmax(-1), targets[:3].to(targets_on), lengths, of_targets, reduction=reduction)
        found.sum().backward()
        assert found.is_cuda
        assert on_gpu.grad.is_cuda
        torch.testing.assert_close(found.detach().cpu(), expected)


@pytest.mark.parametrize("enable_data", [True, False])
def test_without_data_they_have_the_same_shapes_and_times(enable_data):
    def run(**options: Any) -> tuple[list[Any], float]:
        with kernbench.simulated_gpu("dgx_h100", **options) as ctx:
            found = [calls[0](**made("cuda")) for calls in (*SAME.values(), *FORWARD.values())]
            torch.cuda.synchronize()
            return [(each.shape, each.dtype, each.stride()) for each in found], ctx.now()

    assert run(enable_data=enable_data) == run()
