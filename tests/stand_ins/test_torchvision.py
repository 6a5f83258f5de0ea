"""``torchvision``'s compiled operators: values and gradients by definition, costs, the package where it is installed."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.compiled_operators import torchvision
from kernbench.stand_ins import standing_in
from tests.stand_ins.on_gpu import on_gpu, operations_on_gpu

Tensor = torch.Tensor
SEEDS = st.integers(0, 1 << 30)
OPS = torch.ops.torchvision


@pytest.fixture(scope="module", autouse=True)
def _defined() -> None:
    torchvision.operators.define("torchvision 0.28.0")


def images_and_regions(seed: int, channels: int, *, size: tuple[int, int], inside: int = 0) -> tuple[Tensor, Tensor]:
    """``inside``: pixels from the edges that regions stay away; below zero they may reach outside."""
    make = torch.Generator().manual_seed(seed)
    images = torch.randn(2, channels, *size, generator=make, dtype=torch.float64)
    regions = []
    for at in range(4):
        x, y = (
            inside + (length - 2 * inside - 1) * torch.rand(2, generator=make, dtype=torch.float64).sort().values
            for length in (size[1], size[0])
        )
        regions.append(torch.stack((torch.tensor(at % 2.0), x[0], y[0], x[1], y[1])))
    return images, torch.stack(regions)


def pixel(image: Tensor, y: float, x: float) -> Tensor:
    """Between pixels, as regions are sampled: up to one pixel outside it is the edge, beyond that zero."""
    height, width = image.shape[-2:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return image[:, 0, 0] * 0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    low = (math.floor(y), math.floor(x))
    found = image[:, 0, 0] * 0
    for row, down in ((low[0], 1 - (y - low[0])), (low[0] + 1, y - low[0])):
        for column, across in ((low[1], 1 - (x - low[1])), (low[1] + 1, x - low[1])):
            if down * across:
                found = found + down * across * image[:, row, column]
    return found


def sampled(images: Tensor, rois: Tensor, scale: float, bins: tuple[int, int], ratio: int, aligned: bool) -> Tensor:
    out = torch.zeros(len(rois), images.shape[1], *bins, dtype=torch.float64)
    for at, (image, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (each * scale - 0.5 * aligned for each in corners)
        height, width = bottom - top, right - left
        if not aligned:
            height, width = max(height, 1.0), max(width, 1.0)
        tall, wide = height / bins[0], width / bins[1]
        rows, columns = (ratio, ratio) if ratio > 0 else (math.ceil(tall), math.ceil(wide))
        for i in range(bins[0]):
            for j in range(bins[1]):
                for a in range(rows):
                    for b in range(columns):
                        y, x = top + i * tall + (a + 0.5) * tall / rows, left + j * wide + (b + 0.5) * wide / columns
                        out[at, :, i, j] += pixel(images[int(image)], y, x) / (rows * columns)
    return out


def of_positions(found: Tensor, bins: tuple[int, int]) -> Tensor:
    """Of bins of all channels, each bin of its own ones."""
    whole = found.unflatten(1, (-1, *bins))
    return torch.stack([
        torch.stack([whole[:, :, i, j, i, j] for j in range(bins[1])], -1) for i in range(bins[0])
    ], 2)  # fmt: skip


@settings(max_examples=8)
@given(seed=SEEDS, bins=st.tuples(st.integers(1, 3), st.integers(1, 3)), ratio=st.sampled_from([-1, 0, 1, 2]),
       aligned=st.booleans(), scale=st.sampled_from([0.5, 1.0]), inside=st.sampled_from([-2, 0]))  # fmt: skip
def test_regions_are_sampled_between_pixels(seed, bins, ratio, aligned, scale, inside):
    images, rois = images_and_regions(seed, 2, size=(7, 6), inside=inside)
    found = OPS.roi_align(images, rois, scale, *bins, ratio, aligned)
    torch.testing.assert_close(found, sampled(images, rois, scale, bins, ratio, aligned))
    images, rois = images_and_regions(seed, 2 * bins[0] * bins[1], size=(7, 6), inside=inside)
    found, channels = OPS.ps_roi_align(images, rois, scale, *bins, ratio)
    torch.testing.assert_close(found, of_positions(sampled(images, rois, scale, bins, ratio, True), bins))
    assert channels.dtype == torch.int32
    assert torch.equal(channels[1].flatten(), torch.arange(2 * bins[0] * bins[1], dtype=torch.int32))


@settings(max_examples=15)
@given(seed=SEEDS, bins=st.tuples(st.integers(1, 3), st.integers(1, 3)), ratio=st.sampled_from([-1, 2]),
       kind=st.sampled_from(["roi_align", "ps_roi_align", "ps_roi_pool"]))  # fmt: skip
def test_gradients_of_linear_regions_are_their_transposes(seed, bins, ratio, kind):
    channels = 2 * bins[0] * bins[1]
    images, rois = images_and_regions(
        seed, channels, size=(7, 6), inside=1
    )  # at the edges ps_roi_pool's kernels differ
    given_ratio = () if kind == "ps_roi_pool" else (ratio,)
    forward = getattr(OPS, kind)(images, rois, 1.0, *bins, *given_ratio, *((True,) if kind == "roi_align" else ()))
    made, *mapping = forward if isinstance(forward, tuple) else (forward,)
    grad = torch.randn(made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    size = (2, channels, 7, 6)
    rest = (*size, ratio, True) if kind == "roi_align" else (*given_ratio, *size)
    back = getattr(OPS, f"_{kind}_backward")(grad, rois, *mapping, 1.0, *bins, *rest)
    torch.testing.assert_close((grad * made).sum(), (back * images).sum())


def whole(corners: list[float], scale: float) -> list[int]:
    return [math.floor(each * scale + 0.5) if each >= 0 else -math.floor(-each * scale + 0.5) for each in corners]


@settings(max_examples=20)
@given(seed=SEEDS, bins=st.tuples(st.integers(1, 3), st.integers(1, 3)), inside=st.sampled_from([-2, 0]))
def test_regions_of_whole_pixels(seed, bins, inside):
    images, rois = images_and_regions(seed, 2 * bins[0] * bins[1], size=(7, 6), inside=inside)
    images.requires_grad_()
    best, where = OPS.roi_pool(images.detach(), rois, 1.0, *bins)
    mean, _ = OPS.ps_roi_pool(images.detach(), rois, 1.0, *bins)
    greatest = []
    for at, (image, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = whole(corners, 1.0)
        for i in range(bins[0]):
            for j in range(bins[1]):
                spans = []
                for more, edge in ((1, 0), (0, 1)):
                    span = []
                    for k, begin, end, count, length in (
                        (i, top, bottom, bins[0], 7 - edge), (j, left, right, bins[1], 6 - edge),
                    ):  # fmt: skip
                        step = max(end - begin + more, 1) / count
                        span.append(
                            [
                                min(max(each + begin, 0), length)
                                for each in (math.floor(k * step), math.ceil((k + 1) * step))
                            ]
                        )
                    spans.append(span)
                (rows, columns), (r, c) = spans
                part = images[int(image), :, slice(*rows), slice(*columns)].flatten(1)
                value = part.amax(-1) if part.shape[1] else images.new_zeros(images.shape[1])
                greatest.append(value)
                torch.testing.assert_close(best[at, :, i, j], value.detach())
                places = where[at, :, i, j].long()
                assert torch.equal(places < 0, torch.full(places.shape, not part.shape[1]))
                part = images.detach()[int(image), :, slice(*r), slice(*c)].unflatten(0, (-1, *bins))[:, i, j]
                torch.testing.assert_close(mean[at, :, i, j], part.flatten(1).mean(-1).nan_to_num(0.0))
    made = torch.stack(greatest).unflatten(0, (len(rois), *bins)).permute(0, 3, 1, 2)
    grad = torch.randn(made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    (expected,) = torch.autograd.grad(made, images, grad) if made.requires_grad else (torch.zeros_like(images),)
    found = OPS._roi_pool_backward(grad, rois, where, 1.0, *bins, *images.shape)
    torch.testing.assert_close(found, expected)


def test_a_region_without_area_has_no_samples():
    images, rois = torch.ones(1, 1, 4, 4), torch.tensor([[0.0, 1, 1, 1, 1]])
    assert OPS.roi_align(images, rois, 1.0, 1, 1, -1, True).item() == 0
    assert math.isnan(
        OPS.ps_roi_align(images, rois, 1.0, 1, 1, -1)[0].item()
    )  # none, over none, as the package's kernel
    assert OPS.roi_align(images, rois[:0], 1.0, 2, 2, -1, True).shape == (0, 1, 2, 2)
    assert OPS.ps_roi_pool(images, rois[:0], 1.0, 1, 1)[1].shape == (0, 1, 1, 1)


def test_a_half_is_rounded_away_from_zero():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    found, where = OPS.roi_pool(image, torch.tensor([[0, 0, 0, 0.5, 2.5]]), 1.0, 1, 1)
    assert (found.item(), where.item()) == (13.0, 13)


# -- deformable convolution -----------------------------------------------------------------------------------------------


def convolved(x, weight, offset, mask, bias, stride, pad, dilation, groups, offset_groups):
    """Each tap by ``grid_sample``."""
    (height, width), taps = x.shape[2:], weight.shape[2:]
    size = offset.shape[-2:]
    sampled_taps = []
    for tap in range(taps[0] * taps[1]):
        parts = []
        for group, channels in enumerate(x.chunk(offset_groups, 1)):
            at = group * taps[0] * taps[1] + tap
            y = torch.arange(size[0])[:, None] * stride[0] - pad[0] + tap // taps[1] * dilation[0] + offset[:, 2 * at]
            across = torch.arange(size[1]) * stride[1] - pad[1] + tap % taps[1] * dilation[1] + offset[:, 2 * at + 1]
            grid = torch.stack((2 * across / (width - 1) - 1, 2 * y / (height - 1) - 1), -1)
            part = F.grid_sample(channels, grid, align_corners=True)
            parts.append(part if mask is None else part * mask[:, at, None])
        sampled_taps.append(torch.cat(parts, 1))
    columns = torch.stack(sampled_taps, 2).unflatten(1, (groups, -1))
    matrices = weight.flatten(2).unflatten(0, (groups, -1))
    return torch.einsum("goct,bgctij->bgoij", matrices, columns).flatten(1, 2) + bias[:, None, None]


@settings(max_examples=15)
@given(seed=SEEDS, taps=st.tuples(st.integers(1, 3), st.integers(1, 2)), stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
       pad=st.tuples(st.integers(0, 2), st.integers(0, 1)), dilation=st.integers(1, 2), groups=st.sampled_from([1, 2]),
       offset_groups=st.sampled_from([1, 2, 4]), masked=st.booleans())  # fmt: skip
def test_deformable_convolution(seed, taps, stride, pad, dilation, groups, offset_groups, masked):
    make = torch.Generator().manual_seed(seed)
    size = [
        (length + 2 * pad[at] - dilation * (taps[at] - 1) - 1) // stride[at] + 1 for at, length in enumerate((6, 5))
    ]

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make, dtype=torch.float64).requires_grad_()

    per = offset_groups * taps[0] * taps[1]
    given_tensors = [
        random(2, 4, 6, 5),
        random(6, 4 // groups, *taps),
        random(2, 2 * per, *size),
        random(2, per, *size),
        random(6),
    ]
    x, weight, offset, mask, bias = given_tensors
    how = ((*stride,), (*pad,), (dilation, dilation), groups, offset_groups)
    expected = convolved(x, weight, offset, mask if masked else None, bias, *how)
    flat = (*stride, *pad, dilation, dilation, groups, offset_groups, masked)
    inputs = [each.detach() for each in given_tensors]
    torch.testing.assert_close(OPS.deform_conv2d(*inputs, *flat), expected.detach())
    grad = torch.randn(expected.shape, generator=make, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, given_tensors, grad, allow_unused=True)
    for found, each, one in zip(OPS._deform_conv2d_backward(grad, *inputs, *flat), wanted, inputs, strict=True):
        torch.testing.assert_close(found, torch.zeros_like(one) if each is None else each)


def test_what_does_not_fit_is_refused():
    x, weight, bias = torch.ones(1, 2, 5, 5), torch.ones(2, 2, 3, 3), torch.ones(2)
    offset, mask = torch.zeros(1, 18, 3, 3), torch.ones(1, 9, 3, 3)
    flat = (1, 1, 0, 0, 1, 1, 1, 1, True)
    with pytest.raises(RuntimeError, match="the shape of the offset"):
        OPS.deform_conv2d(x, weight, offset[:, :2], mask, bias, *flat)
    with pytest.raises(RuntimeError, match=r"mask.shape\[1\] is not valid"):
        OPS.deform_conv2d(x, weight, offset, mask[:, :2], bias, *flat)
    with pytest.raises(RuntimeError, match="should have shape"):
        OPS.roi_align(x, torch.zeros(3, 4), 1.0, 2, 2, 2, False)
    with pytest.raises(RuntimeError, match="must be a multiple"):
        OPS.ps_roi_pool(x, torch.zeros(3, 5), 1.0, 2, 2)
    with pytest.raises(RuntimeError, match="scores should be"):
        OPS.nms(torch.zeros(3, 4), torch.zeros(2), 0.5)


# -- boxes ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(seed=SEEDS, count=st.integers(0, 12), threshold=st.sampled_from([0.0, 0.3, 0.7]))
def test_boxes_that_overlap_a_better_one_are_left_out(seed, count, threshold):
    make = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, 2, generator=make).sort(1).values.flatten(1)
    scores = torch.randint(0, 6, (count,), generator=make).float()  # some are equal: the first of them is first

    def overlap(a: list[float], b: list[float]) -> float:
        common = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
        return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)

    kept: list[int] = []
    for at in sorted(range(count), key=lambda each: -scores[each].item()):
        if all(overlap(corners[at].tolist(), corners[other].tolist()) <= threshold for other in kept):
            kept.append(at)
    assert OPS.nms(corners, scores, threshold).tolist() == kept


def clipped(ring: list[tuple[float, float]], other: list[tuple[float, float]]) -> float:
    """The area of a polygon within a convex one, cut at one edge after the other."""
    for (x0, y0), (x1, y1) in zip(other, other[1:] + other[:1], strict=True):
        sides = [(x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) for x, y in ring]
        cut: list[tuple[float, float]] = []
        for at, (point, side) in enumerate(zip(ring, sides, strict=True)):
            following, after = ring[(at + 1) % len(ring)], sides[(at + 1) % len(ring)]
            if side >= 0:
                cut.append(point)
            if side * after < 0:
                share = side / (side - after)
                cut.append(tuple(a + share * (b - a) for a, b in zip(point, following, strict=True)))  # type: ignore[arg-type]
        ring = cut
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(ring, ring[1:] + ring[:1], strict=True))) / 2


ROTATED = st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(1, 4), st.integers(1, 4),
                    st.sampled_from([0, 30, 45, 90, -60, 180, 17.5]))  # fmt: skip


@settings(max_examples=60)
@given(one=ROTATED, two=ROTATED)
def test_turned_boxes(one, two):
    def ring(box: Any) -> list[tuple[float, float]]:
        x, y, width, height, angle = box
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        halves = (
            (-width / 2, -height / 2),
            (width / 2, -height / 2),
            (width / 2, height / 2),
            (-width / 2, height / 2),
        )
        return [(x + cos * a + sin * b, y - sin * a + cos * b) for a, b in halves]

    common = clipped(ring(one), ring(two))
    expected = common / (one[2] * one[3] + two[2] * two[3] - common)
    found = OPS.box_iou_rotated(torch.tensor([one, one]).float(), torch.tensor([two]).float())
    assert found.shape == (2, 1)
    assert found.tolist() == [[pytest.approx(expected, abs=1e-4)]] * 2


# -- on a GPU -------------------------------------------------------------------------------------------------------------


def _calls() -> dict[str, Tensor]:
    x = torch.randn(1, 8, 64, 64, device="cuda", dtype=torch.float16)
    rois = torch.tensor([[0, 1, 2, 30, 40.0]] * 3, device="cuda", dtype=torch.float16)
    found = {"roi_align": OPS.roi_align(x, rois, 1.0, 2, 2, 2, True), "roi_pool": OPS.roi_pool(x, rois, 1.0, 2, 2)[0]}
    found["ps_roi_align"], channels = OPS.ps_roi_align(x, rois, 1.0, 2, 2, 2)
    found["ps_roi_pool"], _ = OPS.ps_roi_pool(x, rois, 1.0, 2, 2)
    size = (1, 8, 64, 64)
    found["_roi_align_backward"] = OPS._roi_align_backward(found["roi_align"], rois, 1.0, 2, 2, *size, 2, True)
    found["_ps_roi_align_backward"] = OPS._ps_roi_align_backward(
        found["ps_roi_align"], rois, channels, 1.0, 2, 2, 2, *size
    )
    weight, offset = x.new_ones(4, 8, 3, 3), x.new_zeros(1, 18, 62, 62)
    found["deform_conv2d"] = OPS.deform_conv2d(
        x, weight, offset, x.new_zeros(1, 1), x.new_zeros(4), 1, 1, 0, 0, 1, 1, 1, 1, False
    )
    return found


@pytest.mark.parametrize("data", [True, False])
def test_each_is_one_kernel_with_a_cost(data):
    shapes: dict[str, Any] = {}

    def worker(rank: int) -> None:
        shapes.update({name: (tuple(each.shape), each.dtype) for name, each in _calls().items()})

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        assert not ctx.simulation.op_costs.unmodelled.operators
        names = [each.name for each in ctx.simulation.engine.op_log.operations if "torchvision" in each.name]
    assert len(names) == 7
    assert shapes["roi_align"] == ((3, 8, 2, 2), torch.float16)
    assert shapes["deform_conv2d"] == ((1, 4, 62, 62), torch.float16)


def test_what_the_samples_cost():
    def body() -> None:
        x = torch.empty(1, 64, 256, 256, device="cuda")
        for count in (8, 4096):
            OPS.roi_align(x, torch.zeros(count, 5, device="cuda"), 1.0, 7, 7, 2, True)

    few, many = (each.nbytes for each in operations_on_gpu(body) if "roi_align" in each.name)
    bins = 4 * 8 * 64 * 49
    assert few == bins + 8 * 20 + 4 * 4 * bins  # four samples of four pixels each
    assert many == 512 * (bins + 8 * 20) + 4 * 64 * 256 * 256  # no more than the image has


def test_values_on_a_gpu_are_those_of_the_host():
    make = torch.Generator().manual_seed(3)
    x, rois = torch.randn(1, 2, 8, 8, generator=make), torch.tensor([[0, 1, 1, 6, 7.0]])
    (found,) = on_gpu(lambda: [OPS.roi_align(x.cuda(), rois.cuda(), 1.0, 3, 3, 2, True)])
    torch.testing.assert_close(found, OPS.roi_align(x, rois, 1.0, 3, 3, 2, True))


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_the_packages_own_python():
    """``pip install --no-deps torchvision``: its Python gives gradients to autograd, and shapes without data."""
    with standing_in(["torchvision"]):

        def body() -> list[Tensor]:
            from torchvision import ops

            x = torch.randn(1, 3, 8, 8, device="cuda", requires_grad=True)
            boxes = torch.tensor([[0, 1, 1, 6, 7.0]], device="cuda")
            conv = ops.DeformConv2d(3, 2, 3).cuda()
            y = (
                ops.roi_align(x, boxes, 2).sum()
                + ops.roi_pool(x, boxes, 2).sum()
                + conv(x, x.new_zeros(1, 18, 6, 6)).sum()
            )
            y.backward()
            assert conv.weight.grad is not None
            with torch.autocast("cuda"):  # computed in float32, and rounded back
                assert ops.roi_pool(x.half(), boxes, 2).dtype == torch.float16
            return [x.grad]

        (found,) = on_gpu(body)
    assert found.abs().sum() > 0
