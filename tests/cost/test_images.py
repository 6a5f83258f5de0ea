"""Convolutions, batch norms, pools and gradients of tables beside an H100's readings of them, and their laws one by one."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files

import pytest
import torch

from kernbench.cost.attention import attention_time
from kernbench.cost.batch_norms import batch_norm_time
from kernbench.cost.convolution_shapes import Convolution, layout_copies
from kernbench.cost.convolutions import convolution_time
from kernbench.cost.devices import resolve_device
from kernbench.cost.gemm import gemm_time
from kernbench.cost.operands import Operand
from kernbench.cost.pools import pool_time
from kernbench.cost.row_kernels import table_gradient_time
from kernbench.programs.gpu_cases.images import POOLS, Filtered, kinds
from kernbench.programs.gpu_cases.inputs import SHORT

H100 = resolve_device("h100_sxm")
READINGS = {
    (case["group"], case["name"]): case["seconds"]
    for case in json.loads((files("kernbench.validation.data") / "h100_kernels.json").read_text())["cases"]
}
LAYOUTS = {"last": True, "first": False}


def convolution(what: Filtered, last: bool) -> Convolution:
    """Its sizes."""
    image, dims = what.image, len(what.image) - 2
    if what.transposed:
        made = [(size - 1) * what.stride - 2 * what.padding + what.side for size in image[2:]]
    else:
        span = what.dilation * (what.side - 1) + 1
        made = [(size + 2 * what.padding - span) // what.stride + 1 for size in image[2:]]
    filters = (image[1], what.out) if what.transposed else (what.out, image[1] // what.groups)
    found = Convolution.of(
        image, (*filters, *[what.side] * dims), (image[0], what.out, *made), last, spread=what.dilation > 8
    )
    assert found is not None
    return found


def filtered() -> Iterator[tuple[str, float]]:
    """Kinds of convolutions, and the model in units of the reading."""
    for kind, what, dtype, last, directions in kinds():
        for direction in directions:
            back = {"forward": "image", "input": "result", "weight": "weight"}
            there = {"forward": "result", "input": "image", "weight": "weight"}
            wanted = (back if what.transposed else there)[direction]
            title = f"{SHORT[dtype]} {'last' if last else 'first'} {what}"
            read = READINGS[f"{kind} {direction}", title]
            format_ = {"bf16": "bf16", "fp16": "fp16", "fp32": "tf32"}[SHORT[dtype]]
            yield kind, convolution_time(H100, convolution(what, last), format_, (wanted,)).seconds / read


MEDIANS = {
    "depthwise": 0.08,
    "sound": 0.10,
    "volumes": 0.30,
    "small images": 0.45,
    "resnet": 0.15,
    "unet": 0.35,
    "grouped": 1.1,
}
"""How far kinds of convolutions are off in the median, at most."""


def test_convolutions_are_as_an_h100_s_readings_by_kind() -> None:
    found = defaultdict(list)
    for kind, ratio in filtered():
        found[kind].append(ratio)
    assert set(found) == set(MEDIANS)
    off = {kind: statistics.median(abs(ratio - 1) for ratio in ratios) for kind, ratios in found.items()}
    assert {kind: round(value, 2) for kind, value in off.items() if value > MEDIANS[kind]} == {}


def test_a_depthwise_filter_takes_longer_for_each_of_its_taps() -> None:
    def took(side: int, last: bool) -> float:
        return convolution_time(
            H100, convolution(Filtered((64, 192, 28, 28), 192, side, 192, padding=side // 2), last), "bf16"
        ).seconds

    for last in (False, True):
        assert 2.5 < took(7, last) / took(3, last) < 6
    assert took(7, False) > 3 * took(7, True)


def test_the_workspace_of_a_convolution_holds_its_image_result_and_filters() -> None:
    """As read on the H100: 187.9 MiB of 8 x 128 x 16000 in fp32, none with channels last or filters of one pixel."""
    sound = Filtered((8, 128, 16000), 256, 3, padding=1)
    assert sum(layout_copies(convolution(sound, False), 4)) / 2**20 == pytest.approx(187.9, abs=0.1)
    assert layout_copies(convolution(sound, True), 4) == ()
    assert layout_copies(convolution(Filtered((8, 128, 16000), 256, 1), False), 4) == ()


def normed() -> Iterator[tuple[str, float]]:
    """Batch norms, and the model in units of the reading."""
    for (group, name), read in READINGS.items():
        if not group.startswith("batch norm ") or " " not in name or "(" in name:
            continue
        short, layout, sizes = name.split()
        of = Operand.of(tuple(map(int, sizes.split("x"))), {"bf16": "bfloat16", "fp32": "float32"}[short])
        took = batch_norm_time(
            H100, of, gradient="backward" in group, evaluated="evaluated" in group, channels_last=LAYOUTS[layout]
        )
        yield f"{group} {name}", took.seconds / read


def test_batch_norms_are_as_an_h100_s_readings() -> None:
    found = dict(normed())
    assert len(found) == 58
    assert statistics.median(abs(ratio - 1) for ratio in found.values()) < 0.12
    assert {name: round(ratio, 2) for name, ratio in found.items() if not 0.6 < ratio < 1.9} == {}


def test_a_norm_of_few_channels_leaves_pes_idle_with_channels_first() -> None:
    """As many elements in a quarter of the channels take much longer, not with channels last."""

    def took(channels: int, last: bool) -> float:
        of = Operand.of((128, channels, 16384 // channels * 64, 28), "bfloat16")
        return batch_norm_time(H100, of, gradient=True, channels_last=last).seconds

    assert took(32, False) > 3 * took(128, False)
    assert took(32, True) == pytest.approx(took(128, True))


_KINDS = {
    "max": "largest", "largest": "adaptive largest", "average": "average", "nearest": "nearest", "bilinear": "bilinear",
    "bicubic": "bicubic", "trilinear": "trilinear",
}  # fmt: skip


def pooled() -> Iterator[tuple[str, float]]:
    for name, (shape, function) in POOLS.items():
        kind = _KINDS.get(name.split()[0], "")
        if not kind or " of all" in name or "of volumes" in name:
            continue
        if name == "average to 7":
            kind = "adaptive average"
        made = tuple(function(torch.empty(shape, device="meta")).shape)
        for short, layout in (("bf16", "first"), ("fp32", "first"), ("bf16", "last")):
            for direction in ("forward", "backward"):
                read = READINGS.get((f"{name} {direction}", f"{short} {layout} {'x'.join(map(str, shape))}"))
                if read is None:
                    continue
                image, result = (
                    Operand.of(each, "bfloat16" if short == "bf16" else "float32") for each in (shape, made)
                )
                back = direction == "backward"
                given, gives = ([result, image], [image]) if back else ([image], [result])
                took = pool_time(H100, kind, given, gives, gradient=back, channels_last=LAYOUTS[layout])
                yield f"{name} {direction} {short} {layout}", took.seconds / read


def test_pools_and_changes_of_size_are_as_an_h100_s_readings() -> None:
    found = dict(pooled())
    assert len(found) > 60
    assert statistics.median(abs(ratio - 1) for ratio in found.values()) < 0.2
    far = {name: round(ratio, 2) for name, ratio in found.items() if not 0.4 < ratio < 2.5}
    assert set(far) == {
        "bicubic 2 backward bf16 first", "largest to 7 forward bf16 last", "largest to 7 backward bf16 last",
    }, far  # fmt: skip


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, name in READINGS if group in ("rows backward", "bag backward")]
)
def test_gradients_of_tables_are_as_an_h100_s_readings(group: str, name: str) -> None:
    words = name.split()
    rows, width = map(int, words[-1].split("x"))
    bags, each = (int(words[1]), 1) if group == "rows backward" else map(int, words[1].split("x"))
    gradient, indices = Operand.of((bags, width), "float32"), Operand.of((bags * each,), "int64")
    largest = [Operand.of((bags, width), "int64")] if "max" in name else []
    took = table_gradient_time(H100, [gradient, indices, *largest], [Operand.of((rows, width), "float32")])
    assert 0.6 < took.seconds / READINGS[group, name] < 2.0


def test_attention_of_fp32_multiplies_three_times_in_tf32() -> None:
    for (group, name), read in READINGS.items():
        if group not in ("efficient forward", "efficient backward") or "fp32" not in name or "masked" in name:
            continue
        _, how, sizes = name.split()
        batch, heads, length, width = map(int, sizes.split("x"))
        took = attention_time(
            H100, batch, heads, length, length, width, causal=how == "causal", dtype="float32", variant="efficient",
            gradient="backward" in group,
        )  # fmt: skip
        assert 0.65 < took.seconds / read < 1.5, (group, name)


def test_products_of_a_batch_that_are_smaller_than_a_tile_share_the_pes() -> None:
    for (group, name), read in READINGS.items():
        if group == "small bmm":
            short, sizes = name.split()
            batch, m, n, k = map(int, sizes.split("x"))
            took = gemm_time(H100, m, n, k, batch=batch, dtype=short)
            assert 0.5 < took.seconds / read < 2.0, name
