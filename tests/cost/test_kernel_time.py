"""kernel_time: launches of known counts and resources, against the library's model, measured tables and common sense."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from importlib.resources import files
from math import ceil, inf
from statistics import median

import pytest

from kernbench.cost.contention import Contention
from kernbench.cost.gemm import gemm_time
from kernbench.cost.kernel_time import Resources, kernel_time, suggested_resources
from kernbench.cost.tile_products import TileProduct
from kernbench.topology import load_device

TABLES = files("kernbench.validation") / "data" / "tables"


@dataclass
class Launch:
    """Counts, as the executor reports them."""

    programs: int
    bytes_read: int = 0
    bytes_written: int = 0
    unique_bytes_read: int = 0
    unique_bytes_written: int = 0
    flops: dict[tuple[str, str], int] = field(default_factory=dict)
    wave_read: tuple[int, int] | None = None
    atomics: int = 0
    trips: dict[str, int] = field(default_factory=dict)
    contention: Contention | None = None
    products: dict[TileProduct, int] = field(default_factory=dict)
    contiguous: dict[int, int] = field(default_factory=dict)
    waiting: tuple[int, int] | None = None
    turns: tuple[int, ...] | None = None


def product(m, n, k, bm=128, bn=128, bk=64):
    """A GEMM of fp16 in tiles, one program each."""
    programs, trips = ceil(m / bm) * ceil(n / bn), ceil(k / bk)
    return Launch(
        programs,
        bytes_read=2 * programs * trips * bk * (bm + bn),
        bytes_written=2 * m * n,
        unique_bytes_read=2 * (m * k + k * n),
        unique_bytes_written=2 * m * n,
        flops={("f16", "tensor"): 2 * programs * trips * bm * bn * bk},
        trips={"gemm.py:1": programs * trips},
    )


def plain(nbytes, programs):
    """A kernel that reads and writes ``nbytes`` in all."""
    half = nbytes // 2
    return Launch(programs, half, half, half, half)


def tiled(m, n, k, bm, bn, bk, warps, stages, device="h100_sxm"):
    registers = min(40 + bm * bn // (warps * 32), 255)
    needs = Resources(registers, 0, stages * 2 * bk * (bm + bn), warps, stages)
    return kernel_time(device, product(m, n, k, bm, bn, bk), needs).seconds


@pytest.mark.parametrize("device", ["a100_sxm", "h100_sxm", "b200", "mi300x"])
@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192])
def test_good_tiles_come_near_the_library(device, size):
    """The best of the tiles that people write is within 30 % of the library's own."""
    bk = 32 if device == "mi300x" else 64
    best = min(
        tiled(size, size, size, bm, bn, bk, warps, 2 if device == "mi300x" else 3, device)
        for bm, bn, warps in ((64, 64, 4), (128, 64, 4), (128, 128, 8), (128, 256, 8), (256, 256, 8))
    )
    assert best / gemm_time(device, size, size, size).seconds == pytest.approx(1, abs=0.3)


def test_bad_tiles_are_far_from_it():
    library = gemm_time("h100_sxm", 4096, 4096, 4096).seconds
    tiny, small, good = (tiled(4096, 4096, 4096, size, size, 32, 4, 3) for size in (16, 32, 128))
    assert good < 1.2 * library < 2 * library < small < tiny


def test_one_stage_waits_for_every_load():
    counts = product(4096, 4096, 4096)
    one, two, three = (
        kernel_time("a100_sxm", counts, Resources(160, 0, 98_304, 8, stages)).seconds for stages in (1, 2, 3)
    )
    assert one > 1.3 * three
    assert one >= two >= three


def test_a_program_more_than_a_wave_costs_a_wave():
    needs = Resources(128, 0, 120_000, 8, 3)
    full, over = (
        kernel_time("h100_sxm", product(128 * rows, 128 * columns, 8192), needs).seconds
        for rows, columns in ((12, 11), (7, 19))  # 132 and 133 programs
    )
    assert over > 1.7 * full


def test_what_a_pe_holds_limits_a_kernel():
    counts = replace(product(4096, 4096, 4096), wave_read=None)
    lean, fat = (kernel_time("a100_sxm", counts, Resources(regs, 0, 50_000, 4, 3)) for regs in (128, 255))
    assert int(lean.protocol) > int(fat.protocol)
    assert lean.seconds <= fat.seconds
    too_much = kernel_time("a100_sxm", counts, Resources(64, 0, 1 << 20, 4, 3))
    assert too_much.seconds == inf
    assert "shared memory" in too_much.algorithm
    spilling = kernel_time("a100_sxm", counts, Resources(255, 1024, 50_000, 4, 3))
    assert spilling.seconds > fat.seconds


def test_reading_again_costs_memory_traffic_once_the_cache_is_full():
    counts = product(16384, 16384, 4096, 64, 64)
    wave = 132 * 4
    needs = Resources(64, 0, 49_152, 4, 3)
    shared = kernel_time("h100_sxm", replace(counts, wave_read=(wave * 2 * 4096 * 16, wave)), needs)
    apart = kernel_time("h100_sxm", replace(counts, wave_read=(wave * 2 * 4096 * 128, wave)), needs)
    assert apart.algorithm == "memory"
    assert apart.seconds > 2 * shared.seconds


@pytest.mark.parametrize("factor", [2, 8, 64])
def test_more_work_never_takes_less(factor):
    for smaller, larger in (
        (plain(1 << 20, 64), plain(factor << 20, 64 * factor)),
        (product(512, 512, 512), product(512, 512, 512 * factor)),
        (product(512, 512, 512), product(512 * factor, 512, 512)),
    ):
        few, many = kernel_time("h100_sxm", smaller), kernel_time("h100_sxm", larger)
        assert few.seconds <= many.seconds
        assert few.low < few.seconds < few.high


def rows_of(name):
    with (TABLES / name).open() as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_vector_addition_as_published():
    """Triton's first tutorial on an A100: 1024 elements per program, timed alone with cold caches."""
    errors = []
    for row in rows_of("triton_tut01_vecadd_a100.csv"):
        nbytes, programs = 4 * int(row["elements"]), int(row["elements"]) // 1024
        counts = Launch(programs, 2 * nbytes, nbytes, 2 * nbytes, nbytes)
        errors.append(kernel_time("a100_sxm", counts, cold=True).seconds * 1e6 / float(row["triton_us"]) - 1)
    assert median(map(abs, errors)) < 0.08
    assert max(map(abs, errors)) < 0.25


def test_softmax_as_published():
    """Triton's second tutorial on an A100: persistent programs of eight warps, a row at a time."""
    errors = []
    for row in rows_of("triton_tut02_softmax_a100.csv"):
        m, n = int(row["M"]), int(row["N"])
        programs = 108 * (8 if n <= 2048 else 4 if n <= 4096 else 2)
        nbytes = 4 * m * n
        counts = Launch(programs, nbytes, nbytes, nbytes, nbytes, trips={"softmax.py:1": m})
        needs = Resources(32, 0, 0, 8, 2)
        errors.append(kernel_time("a100_sxm", counts, needs, cold=True).seconds * 1e6 / float(row["triton_us"]) - 1)
    assert median(map(abs, errors)) < 0.08


def attention(batch, heads, length, width, bm, bn):
    """FlashAttention-2 forward, fp16: per score one exponential and six plain operations, of which the counts tell."""
    scores, blocks = batch * heads * length**2, ceil(length / bm)
    tensor = 2 * batch * heads * length * width
    return Launch(
        batch * heads * blocks,
        bytes_read=tensor + 2 * blocks * tensor,
        bytes_written=tensor,
        unique_bytes_read=3 * tensor,
        unique_bytes_written=tensor,
        flops={
            ("f16", "tensor"): 4 * scores * width,
            ("f32", "vector"): 6 * scores + scores * width // bn,
            ("f32", "special"): scores,
        },
        trips={"attention.py:1": batch * heads * blocks * ceil(length / bn)},
    )


@pytest.mark.parametrize(
    ("device", "shape", "measured"),
    [  # TFLOP/s of Triton's tutorial kernel: triton-lang/triton#1917, facebookexperimental/triton#205
        ("a100_sxm", (4, 48, 1024, 64), 122.5),
        ("a100_sxm", (4, 48, 4096, 64), 143.0),
        ("a100_sxm", (4, 48, 16384, 64), 146.8),
        ("h100_sxm", (4, 32, 1024, 128), 406.8),
        ("h100_sxm", (4, 32, 4096, 128), 459.6),
        ("h100_sxm", (4, 32, 16384, 128), 487.0),
    ],
)
def test_flash_attention_as_published(device, shape, measured):
    counts = attention(*shape, bm=128, bn=64)
    seconds = kernel_time(device, counts, Resources(200, 0, 65_536, 4 if shape[3] == 64 else 8, 3)).seconds
    assert counts.flops["f16", "tensor"] / seconds / 1e12 == pytest.approx(measured, rel=0.2)


def test_what_the_compiler_would_say():
    device = load_device("h100_sxm")
    needs = suggested_resources(product(4096, 4096, 4096), device, num_warps=8, num_stages=3)
    assert needs.shared == 3 * 2 * 64 * 256  # three trips of operands
    assert 90 < needs.registers < 130  # 64 for the result
    huge = suggested_resources(product(4096, 4096, 4096, 512, 512), device)
    assert huge.shared <= device.pe.tcm_per_block
    assert kernel_time(device, product(4096, 4096, 4096, 512, 512)).seconds < inf


@pytest.mark.parametrize("device", ["a100_sxm", "h100_sxm", "b200"])
def test_what_reads_weights_is_no_faster_than_its_memory(device):
    """A vector by matrices that a last cache would hold: nothing has read them since the step before."""
    spec = load_device(device)
    nbytes = spec.l2.size // 2
    launch = Launch(4096, nbytes, 8192, nbytes, 8192)
    assert nbytes / kernel_time(device, launch).seconds < spec.hbm_copy_bandwidth
    beside = plain(nbytes, 4096)  # as many bytes of a kernel whose operands have just been written
    assert kernel_time(device, beside).seconds < kernel_time(device, launch).seconds
