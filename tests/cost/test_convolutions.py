"""Convolutions beside an H100's readings, and their parts one by one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from importlib.resources import files

import pytest

import kernbench
from kernbench.cost.convolution_shapes import Convolution
from kernbench.cost.convolutions import convolution_time
from kernbench.cost.devices import resolve_device
from kernbench.programs.gpu_cases.layers import CONVOLUTIONS

H100 = resolve_device("h100_sxm")
READINGS = json.loads((files("kernbench.validation.data") / "h100_kernels.json").read_text())["cases"]


def ratios() -> Iterator[tuple[str, float]]:
    """Of each reading, what the model makes of it in units of it."""
    for case in READINGS:
        if case["set"] != "convolutions":
            continue
        shape = CONVOLUTIONS[case["name"].rsplit(" ", 1)[0]]
        padding = 0 if shape.width == shape.stride else shape.width // 2
        side = (shape.size + 2 * padding - shape.width) // shape.stride + 1
        narrow = "bf16" in case["group"]
        what = Convolution.of(
            (64, shape.channels, shape.size, shape.size),
            (shape.out, shape.channels // shape.groups, shape.width, shape.width),
            (64, shape.out, side, side), narrow,
        )  # fmt: skip
        assert what is not None
        passes = ("image", "weight") if "backward" in case["group"] else ("result",)
        took = convolution_time(H100, what, "bf16" if narrow else "tf32", passes).seconds
        yield f"{case['group']} {case['name']}", took / case["seconds"]


def test_an_h100_s_readings() -> None:
    found = dict(ratios())
    assert len(found) == 40
    assert statistics.median(abs(ratio - 1) for ratio in found.values()) < 0.15
    assert {name: ratio for name, ratio in found.items() if not 0.6 < ratio < 1.6} == {}


def test_pixels_are_read_once_however_many_filters_see_them() -> None:
    """A filter of 3 x 3 has nine times the multiply-adds of one pixel's, not nine times the bytes."""
    image, few = (64, 64, 112, 112), 16
    small, large = (Convolution.of(image, (few, 64, width, width), (64, few, 112, 112), True) for width in (1, 3))
    assert small is not None
    assert large is not None
    taken = [convolution_time(H100, what, "bf16").seconds for what in (small, large)]
    assert taken[1] < 3 * taken[0]


def test_channels_first_are_copied_there_and_back_unless_filters_are_of_one_pixel() -> None:
    def slower(width: int) -> float:
        first, last = (
            Convolution.of((32, 256, 56, 56), (256, 256, width, width), (32, 256, 56, 56), there)
            for there in (False, True)
        )
        assert first is not None
        assert last is not None
        return convolution_time(H100, first, "bf16").seconds - convolution_time(H100, last, "bf16").seconds

    nbytes = 2 * 32 * 256 * 56 * 56
    assert slower(3) > 2 * 2 * nbytes / H100.hbm_copy_bandwidth * 0.9
    assert slower(1) < slower(3) / 2


def test_a_transposed_one_is_the_gradient_of_the_other_s_image() -> None:
    there = Convolution.of((8, 64, 32, 32), (128, 64, 3, 3), (8, 128, 32, 32), True)
    back = Convolution.of((8, 128, 32, 32), (128, 64, 3, 3), (8, 64, 32, 32), True)
    assert there == back
    assert Convolution.of((8, 64), (128, 64), (8, 128), True) is None


@pytest.mark.parametrize("data", [True, False])
def test_the_layout_of_a_program_s_tensors_counts(data: bool) -> None:
    """Also for plans: the same shapes come first with one layout, then with the other."""

    def body(rank: int) -> None:
        import torch

        for form in (torch.contiguous_format, torch.channels_last) * 2:
            x = torch.randn(8, 32, 24, 24, device="cuda").to(memory_format=form)
            weight = torch.randn(32, 32, 3, 3, device="cuda").to(memory_format=form)
            torch.nn.functional.conv2d(x, weight, padding=1)

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        took = [op.end - op.start for op in ctx.engine.op_log.operations if op.kind == "gemm"]  # type: ignore[operator]
    assert took[2:] == pytest.approx(took[:2])
    assert took[0] > took[1]
