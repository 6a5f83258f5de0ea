"""Atomic updates: where they go is found with values and without, and few addresses take longer than many."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import kernbench
from kernbench.triton_engine.duration import device_of, estimate
from kernbench.triton_engine.launching import sampled_launches


@triton.jit
def add_up_kernel(x, out, n, distinct, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + offsets % distinct, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def histogram_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + offsets, mask=offsets < n, other=0), 1, mask=offsets < n)


@triton.jit
def rows_kernel(x, weight, out, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.load(x + at) * tl.load(weight + tl.arange(0, n)))


def sampled(launch):
    with sampled_launches(device_of("cuda", "90")) as records:
        launch()
    return records[0]


def added_up(distinct, dtype, n=1 << 24):
    x, out = torch.zeros(n, dtype=dtype), torch.zeros(distinct, dtype=dtype)
    record = sampled(lambda: add_up_kernel[(n // 1024,)](x, out, n, distinct, BLOCK=1024))
    assert not out.any()
    return estimate(record.counts, None, device_of("cuda", "90"), kernel=record.kernel)


@pytest.mark.parametrize(
    ("distinct", "dtype", "measured"),
    [  # milliseconds on one H100 80GB HBM3, Triton 3.6
        (1, torch.int32, 0.404),  # the compiler adds up what a warp has for one word
        (32, torch.int32, 6.147),
        (1024, torch.int32, 0.889),
        (1 << 20, torch.int32, 0.172),
        (1, torch.float32, 29.472),
        (32, torch.float32, 1.242),  # vectors of four
        (1024, torch.float32, 0.192),
        (1 << 20, torch.float32, 0.057),
    ],
)
def test_updates_as_measured(distinct, dtype, measured):
    found = added_up(distinct, dtype)
    assert found.seconds * 1e3 == pytest.approx(measured, rel=0.25)
    assert found.algorithm == "atomics"


@pytest.mark.parametrize("bins", [16, 4096])
def test_places_by_values_are_those_of_the_values(bins):
    n = 1 << 18
    times = []
    for spread in (bins, 2):
        x, out = torch.arange(n) * 40503 % spread, torch.zeros(bins, dtype=torch.int32)
        record = sampled(lambda: histogram_kernel[(n // 1024,)](x, out, n, BLOCK=1024))  # noqa: B023
        times.append(estimate(record.counts, None, device_of("cuda", "90"), kernel=record.kernel).seconds)
    assert times[1] > 1.2 * times[0]


def times(body, *, data):
    """Seconds of the kernels of one rank, and what the summary says."""
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        found = [
            op.end - op.start for op in ctx.engine.op_log.operations if op.name.startswith(("add_up", "histogram"))
        ]
        return found, ctx.simulation.op_costs.unmodelled.sentences


def test_with_data_and_without():
    n = 1 << 20

    def known(rank):
        for distinct in (1, 32, 4096):
            x = torch.ones(n, device="cuda")
            add_up_kernel[(n // 1024,)](x, torch.zeros(distinct, device="cuda"), n, distinct, BLOCK=1024)

    def by_values(rank):
        x = torch.randint(4096, (n,), device="cuda")
        histogram_kernel[(n // 1024,)](x, torch.zeros(4096, device="cuda", dtype=torch.int32), n, BLOCK=1024)

    (real, said), (hollow, assumed) = times(known, data=True), times(known, data=False)
    assert hollow == pytest.approx(real, rel=0.05)
    assert len(set(real)) == 3
    assert not any("atomic" in sentence for sentence in (*said, *assumed))
    (real, said), (hollow, assumed) = times(by_values, data=True), times(by_values, data=False)
    assert hollow == pytest.approx(real, rel=0.2)  # random numbers are spread evenly, as is assumed
    assert not any("atomic" in sentence for sentence in said)
    assert [s for s in assumed if "histogram_kernel" in s and "spread evenly" in s]


def test_what_all_programs_read_is_counted_once_in_a_sample():
    rows, n = 4096, 1024
    x, weight, out = torch.zeros(rows, n), torch.zeros(n), torch.zeros(rows, n)
    counts = sampled(lambda: rows_kernel[(rows,)](x, weight, out, n)).counts
    assert counts.unique_bytes_read == 4 * n * (rows + 1)


def test_adding_to_a_signalling_nan_warns_of_nothing(recwarn):
    out = torch.full((1,), 0x7FA00000, dtype=torch.int32).view(torch.float32)  # as memory that is unwritten
    add_up_kernel[(1,)](torch.ones(1), out, 1, 1, BLOCK=16)
    assert out.isnan()
    assert not [each for each in recwarn if "invalid value" in str(each.message)]
