"""What a launch is counted to have done, against closed forms."""

from __future__ import annotations

import gc
import math
import weakref
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

import kernbench
from kernbench.tp.kernels.gemm import gemm
from kernbench.triton_engine import record_launches, reuse, set_duration_model
from kernbench.triton_engine.counts import Counts
from kernbench.triton_engine.duration import device_of, estimate
from kernbench.triton_engine.introspect import lines_of
from kernbench.triton_engine.launching import sampled_launches
from kernbench.triton_engine.ops import atomics

from .programs import scale_kernel, swizzled_matmul_kernel


def test_elementwise_with_a_tail():
    n = 1000
    x, out = torch.randn(n), torch.empty(n)
    with record_launches() as records:
        scale_kernel[(4,)](x, out, n, 3.0, BLOCK=256)
    (record,) = records
    c = record.counts
    assert (c.programs, c.bytes_read, c.bytes_written) == (4, 4 * n, 4 * n)
    assert (c.unique_bytes_read, c.unique_bytes_written) == (4 * n, 4 * n)
    assert c.flops == {("f32", "vector"): 4 * 256}
    assert c.by_tensor["x_ptr"].read == 4 * n


def test_matmul():
    m, n, k = 64, 48, 32
    a, b, c = torch.randn(m, k).half(), torch.randn(k, n).half(), torch.empty(m, n)
    with record_launches() as records:
        swizzled_matmul_kernel[(12,)](a, b, c, m, n, k, BM=16, BN=16, BK=16, GROUP=4)
    got = records[0].counts
    assert got.flops["f16", "tensor"] == 2 * m * n * k
    assert got.bytes_read == 2 * (m * k * (n // 16) + k * n * (m // 16))
    assert got.unique_bytes_read == 2 * (m * k + k * n)
    assert list(got.trips.values()) == [12 * (k // 16)]


@triton.jit
def mixed_kernel(x_ptr, count_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * N + i)
    tl.store(x_ptr + tl.program_id(0) * N + i, tl.exp(x))
    tl.atomic_add(count_ptr + i % 2, 1)


def test_special_functions_and_atomics():
    x, count = torch.zeros(4, 32), torch.zeros(2, dtype=torch.int32)
    with record_launches() as records:
        mixed_kernel[(4,)](x, count, N=32)
    assert records[0].counts.transcendentals == 4 * 32
    assert records[0].counts.atomics == 4 * 32
    assert count.tolist() == [64, 64]


def test_profile_attributes_time_to_lines():
    x = torch.randn(256)
    with record_launches(profile=True) as records:
        scale_kernel[(1,)](x, x, 256, 3.0, BLOCK=256)
    lines = lines_of(records[0])
    assert {line.number for line in lines} == {13}
    assert lines[0].nbytes == 2 * 4 * 256
    assert lines[0].flops == 256


def test_durations_are_those_of_the_target():
    device = device_of("cuda", "90")
    many = 132 * 1000
    copy = Counts(
        unique_bytes_read=10**9, unique_bytes_written=10**9, bytes_read=10**9, bytes_written=10**9, programs=many
    )
    assert estimate(copy, None, device).seconds == pytest.approx(2e9 / device.hbm_copy_bandwidth, rel=0.02)
    assert device_of("hip", "gfx942").name == "mi300x"


def test_a_sample_counts_stores_without_doing_them():
    n = 1 << 16
    x, out = torch.ones(n), torch.zeros(n)
    with sampled_launches(device_of("cuda", "90")) as records:
        scale_kernel[(n // 256,)](x, out, n, 3.0, BLOCK=256)
    (record,) = records
    assert (record.counts.bytes_read, record.counts.bytes_written) == (4 * n, 4 * n)
    assert not out.any()


def test_programs_in_a_good_order_share_what_a_wave_reads():
    """16 x 16 tiles, 1024 in a row of the result: a wave of whole rows reads all of B, one of groups of rows little of it."""
    m, n, k = 1024, 16384, 64
    a, b, c = torch.empty(m, k).half(), torch.empty(k, n).half(), torch.empty(m, n).half()
    found = {}
    for group in (1, 64):
        with sampled_launches(device_of("cuda", "90")) as records:
            swizzled_matmul_kernel[(m * n // 256,)](a, b, c, m, n, k, BM=16, BN=16, BK=64, GROUP=group)
        nbytes, programs = records[0].counts.wave_read
        found[group] = nbytes / (2 * 16 * k)
        rows, columns = (programs // 1024 + 1, 1024) if group == 1 else (group, programs // group + 1)
        assert rows + columns - 2 <= found[group] <= rows + columns + 2
    assert found[64] < 0.2 * found[1]


@triton.jit
def where_a_float_says_kernel(a, b, c, at, starts, LOOPS: tl.constexpr):
    """A product whose operand begins where a float says, or after as many turns as it takes to add up to 4."""
    row, begin, offs = tl.load(at), 0, tl.arange(0, 16)
    if LOOPS:
        total = 0.0
        while total < 4.0:
            total += tl.load(at)
    else:
        begin = tl.load(starts + row.to(tl.int32) - 1)
    x = tl.load(a + offs[:, None] * 16 + offs[None, :] + begin)
    y = tl.load(b + offs[:, None] * 16 + offs[None, :])
    tl.store(c + tl.program_id(0) * 256 + offs[:, None] * 16 + offs[None, :], tl.dot(x, y))


@pytest.mark.parametrize(("loops", "read"), [(False, None), (True, (2 * 16 * 16 * 2, 64))])
def test_a_wave_does_not_know_addresses_that_floats_say(loops, read):
    """Of a wave floats are not read: 0 in place of 1 is an address before the first, and no turn of a loop adds anything."""
    a, b, c = torch.ones(16, 16).half(), torch.ones(16, 16).half(), torch.zeros(64, 256)
    with sampled_launches(device_of("cuda", "90")) as records:
        where_a_float_says_kernel[(64,)](a, b, c, torch.ones(1), torch.zeros(4, dtype=torch.int32), LOOPS=loops)
    (record,) = records
    assert record.counts.wave_read == read
    assert record.counts.bytes_read > 1.2 * record.counts.unique_bytes_read  # so a wave was looked at
    assert record.counts.programs == 64


@triton.jit
def adds_its_product_kernel(a, b, c):
    offs = tl.arange(0, 16)
    tile = offs[:, None] * 16 + offs[None, :]
    tl.atomic_add(c + tl.program_id(0) * 256 + tile, tl.dot(tl.load(a + tile), tl.load(b + tile)))


def test_a_wave_does_not_follow_updates_of_whole_tiles(monkeypatch):
    """It has all programs of the grid at once, and says nothing of what they write."""
    followed = []
    stock = atomics.flat_elements

    def flat_elements(batch, *rest):
        followed.append(math.prod(batch.lanes))
        return stock(batch, *rest)

    monkeypatch.setattr(atomics, "flat_elements", flat_elements)
    a, b, c = torch.ones(16, 16).half(), torch.ones(16, 16).half(), torch.zeros(64, 256)
    with sampled_launches(device_of("cuda", "90")) as records:
        adds_its_product_kernel[(64,)](a, b, c)
    assert records[0].counts.wave_read == (2 * 16 * 16 * 2, 64)
    assert followed
    assert max(followed) < 64


@pytest.mark.parametrize("error", [TypeError("of ours"), kernbench.KernbenchError("of ours")])
def test_a_fault_of_the_engine_is_no_wave_that_cannot_be_followed(monkeypatch, error):
    class Fails:
        def __init__(self, *given, **named):
            pass

        def run(self):
            raise error

    monkeypatch.setattr(reuse, "Execution", Fails)
    with pytest.raises(type(error), match="of ours"):
        reuse._wave(SimpleNamespace(grid=(1, 1, 1)), 1, None)


def test_benchmarks_are_answered_by_the_model_and_change_nothing():
    x = torch.ones(64)
    bench = triton.runtime.driver.active.get_benchmarker()
    set_duration_model(lambda counts, resources, device: 2e-6 * counts.programs)
    try:
        assert bench(lambda: scale_kernel[(4,)](x, x, 64, 3.0, BLOCK=16), quantiles=(0.5, 0.2)) == pytest.approx(
            [8e-3] * 2
        )
        assert (x == 1).all()
        ms = triton.testing.do_bench(lambda: scale_kernel[(4,)](x, x, 64, 1.0, BLOCK=16))
        assert ms == pytest.approx(8e-3)
    finally:
        set_duration_model(None)


@pytest.mark.long  # seconds
def test_a_wave_of_one_program_is_followed_and_its_tensors_are_not_kept():
    """An error that is not shown must not lead back to what it saw: autograd copies a gradient that something else has."""
    kept = []

    def body(rank: int) -> None:
        torch.cuda.set_device(rank)
        given, other = torch.ones((), device="cuda").expand(4, 16), torch.ones(4, 8, device="cuda")
        result = gemm(given.t(), other)
        found = weakref.ref(result)
        del result
        kept.append(found())

    gc.collect()
    gc.disable()
    try:
        with kernbench.simulate("dgx_h100") as ctx:
            ctx.multiprocessing.spawn(body, nprocs=2)
    finally:
        gc.enable()
    assert kept == [None, None]
