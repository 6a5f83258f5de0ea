"""Products of tiles in kernels of one's own, beside times of Triton 3.6 on one H100 80GB HBM3 (programs.gpu_steps)."""

from __future__ import annotations

from math import ceil

import pytest

from kernbench.cost.kernel_time import kernel_time, suggested_resources
from kernbench.cost.tile_products import TileProduct, product_seconds
from kernbench.topology import load_device

from .test_kernel_time import Launch

WIDTH = {"f16": 2, "f32": 4, "f8E4M3FN": 1, "i8": 1}


def seconds(device, size, elem, tile, *, turned=False, left=False, precision="tf32", out=0):
    """Of a product of ``size``, whose right operand has K along its rows where it is ``turned``."""
    bm, bn, bk, warps = tile
    programs, trips, width = ceil(size / bm) * ceil(size / bn), ceil(size / bk), WIDTH[elem]
    one = TileProduct(1, elem, bm, bn, bk, 32 * warps, precision, (2, 3), (False, False), False)
    out = out or max(width, 2)
    counts = Launch(
        programs,
        bytes_read=programs * trips * (bm + bn) * bk * width,
        bytes_written=size * size * out,
        unique_bytes_read=2 * size * size * width,
        unique_bytes_written=size * size * out,
        flops={(elem, "tensor"): programs * trips * one.flops},
        trips={"product.py:1": programs * trips},
        products={one: programs * trips},
        contiguous={2: 0 if left else 1, 3: 0 if turned else 1},
        waiting=((bm + bn) * bk * width, 0),
    )
    spec = load_device(device)
    return kernel_time(spec, counts, suggested_resources(counts, spec, num_warps=warps)).seconds


@pytest.mark.parametrize(
    ("size", "elem", "tile", "how", "measured"),
    [
        (4096, "f16", (128, 256, 64, 8), {}, 0.188),
        (4096, "f16", (64, 64, 32, 4), {}, 0.503),
        (4096, "f16", (64, 64, 64, 4), {}, 0.401),
        (4096, "f16", (64, 128, 64, 4), {}, 0.306),
        (4096, "f16", (128, 128, 64, 4), {}, 0.216),
        (4096, "f16", (128, 128, 32, 8), {}, 0.243),
        (4096, "f16", (32, 64, 64, 4), {}, 0.706),
        (4096, "f16", (16, 128, 64, 4), {}, 1.075),
        (4096, "f16", (64, 64, 64, 2), {}, 0.463),
        (4096, "f16", (128, 256, 64, 4), {}, 1.371),  # sums do not fit into the registers
        (4096, "f16", (128, 128, 64, 2), {}, 1.547),
        (2048, "f32", (128, 128, 32, 8), {}, 0.211),
        (4096, "f32", (128, 128, 32, 8), {}, 1.656),
        (2048, "f32", (128, 128, 32, 8), {"turned": True}, 0.059),
        (2048, "f32", (64, 64, 32, 4), {"turned": True}, 0.103),
        (2048, "f32", (64, 64, 32, 4), {"turned": True, "precision": "ieee"}, 1.242),
        (2048, "f32", (64, 64, 32, 4), {"turned": True, "precision": "tf32x3"}, 0.232),
        (4096, "f8E4M3FN", (128, 256, 128, 8), {}, 1.283),
        (4096, "f8E4M3FN", (128, 128, 128, 4), {}, 0.714),
        (4096, "f8E4M3FN", (128, 128, 128, 4), {"turned": True, "left": True}, 0.708),
        (4096, "f8E4M3FN", (128, 256, 128, 8), {"turned": True}, 0.127),
        (4096, "f8E4M3FN", (128, 128, 128, 4), {"turned": True}, 0.112),
        (4096, "i8", (128, 128, 64, 4), {"turned": True, "out": 4}, 0.147),
    ],
)
def test_products_as_measured(size, elem, tile, how, measured):
    assert seconds("h100_sxm", size, elem, tile, **how) * 1e3 == pytest.approx(measured, rel=0.2)


def test_operands_of_16_bits_may_lie_either_way_those_of_eight_not():
    way = [seconds("h100_sxm", 4096, "f16", (128, 128, 64, 4), turned=turned) for turned in (False, True)]
    assert way[0] == pytest.approx(way[1], rel=0.01)
    eight = [seconds("h100_sxm", 4096, "f8E4M3FN", (128, 128, 128, 4), turned=turned) for turned in (False, True)]
    assert eight[0] > 5 * eight[1]


@pytest.mark.parametrize("device", ["a100_sxm", "b200"])
def test_what_was_not_measured_is_not_told_apart(device):
    """Of other generations it is not known what an operand costs that lies the other way."""
    way = [seconds(device, 4096, "f16", (128, 128, 64, 4), turned=turned) for turned in (False, True)]
    assert way[0] == way[1]


def test_full_precision_is_for_the_vector_units_of_nvidia_alone():
    one = TileProduct(1, "f32", 64, 64, 32, 128, "ieee", (2, 3), (False, False), False)
    nvidia, amd = load_device("a100_sxm"), load_device("mi300x")
    rate = one.flops * nvidia.pes / product_seconds(one, nvidia, 1.0, (True, True))
    assert 0.1 * nvidia.vector_rate("fp32") < rate < 0.5 * nvidia.vector_rate("fp32")
    assert one.flops * amd.pes / product_seconds(one, amd, 1.0, (True, True)) > 0.5 * amd.matrix_rate("fp32")


def attention(heads, length, width, *, causal):
    """Blocks of 128 queries and 64 keys, four warps: the counts of a plain kernel in Triton."""
    blocks = length // 128
    turns = [(block + 1) * 2 if causal else length // 64 for _ in range(heads) for block in range(blocks)]
    trips, scores, tensor = sum(turns), sum(turns) * 128 * 64, 2 * heads * length * width
    first = TileProduct(1, "f16", 128, 64, width, 128, "tf32", (-1, 3), (False, False), True)
    second = TileProduct(2, "f16", 128, width, 64, 128, "tf32", (-1, 4), (False, False), True)
    counts = Launch(
        heads * blocks,
        bytes_read=trips * 64 * width * 4 + tensor,
        bytes_written=tensor,
        unique_bytes_read=3 * tensor,
        unique_bytes_written=tensor,
        flops={
            ("f16", "tensor"): trips * (first.flops + second.flops),
            ("f32", "vector"): scores * (5 + 2 * causal) + trips * 128 * (width + 4),
            ("f32", "special"): scores + trips * 128,
        },
        trips={"attention.py:1": trips},
        products={first: trips, second: trips},
        contiguous={3: 0, 4: 1},
        waiting=(64 * width * 4, 128 * width * 2),
        turns=tuple(turns) if causal else None,
    )
    spec = load_device("h100_sxm")
    return kernel_time(spec, counts, suggested_resources(counts, spec)).seconds


@pytest.mark.parametrize(
    ("heads", "length", "width", "causal", "measured"),
    [
        (64, 1024, 128, False, 0.096),
        (64, 8192, 128, False, 5.046),
        (132, 512, 128, False, 0.0645),
        (64, 4096, 64, False, 0.671),
        (64, 1024, 128, True, 0.084),
        (64, 8192, 128, True, 3.042),
        (64, 4096, 64, True, 0.443),
    ],
)
def test_attention_as_measured(heads, length, width, causal, measured):
    assert attention(heads, length, width, causal=causal) * 1e3 == pytest.approx(measured, rel=0.22)


def test_the_longest_program_last_is_waited_for():
    """As many trips in all; one program has most of them, and begins first or last."""
    spec = load_device("h100_sxm")
    one = TileProduct(1, "f16", 128, 256, 64, 256, "tf32", (2, 3), (False, False), False)
    found = {}
    for name, turns in {
        "even": (100,) * 264, "first": (5340, *(80,) * 263), "last": (*(80,) * 263, 5340),
    }.items():  # fmt: skip
        trips = sum(turns)
        counts = Launch(
            264, bytes_read=trips * 49152, unique_bytes_read=1 << 20, flops={("f16", "tensor"): trips * one.flops},
            trips={"x.py:1": trips}, products={one: trips}, waiting=(49152, 0),
            turns=None if name == "even" else turns,
        )  # fmt: skip
        found[name] = kernel_time(spec, counts, suggested_resources(counts, spec, num_warps=8)).seconds
    assert found["even"] * 20 < found["first"] < found["last"]
