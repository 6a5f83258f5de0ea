"""What Triton asks of torch's GPU, and what ``do_bench`` measures, in ranks."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import kernbench


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 256)], key=["n"])
@triton.jit
def gather_rows(rows, out, n, BLOCK: tl.constexpr):
    """Doubles rows whose addresses are in memory."""
    row = tl.load(rows + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        tl.store(out + tl.program_id(0) * n + at, 2 * tl.load(row + at, mask=at < n), mask=at < n)


@pytest.fixture
def gpu():
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        yield ctx


def test_triton_s_device_is_the_simulated_gpu(gpu):
    active = triton.runtime.driver.active
    assert active.get_active_torch_device() == torch.device("cuda", 0)
    assert active.get_device_interface().get_device_name() == "NVIDIA H100 80GB HBM3"


def test_memory_is_as_fast_as_the_device_says(gpu):
    """``triton.testing.get_dram_gbps`` and programs that divide by a GPU's peak go by clock and width of the memory's bus."""
    gpu_memory = torch.cuda.get_device_properties("cuda")
    assert triton.testing.get_dram_gbps() == pytest.approx(3350, rel=1e-5)
    assert gpu_memory.memory_clock_rate * gpu_memory.memory_bus_width * 2 / 8 / 1e6 == pytest.approx(3350, rel=1e-5)


def test_outside_ranks_it_is_the_cpu():
    with kernbench.simulate("dgx_h100"):
        assert triton.runtime.driver.active.get_active_torch_device() == torch.device("cpu")


def test_do_bench_gives_the_modelled_time_of_kernels_and_operations(gpu):
    n, runs = 1 << 22, []
    x, y = torch.ones(n, device="cuda"), torch.ones(n, device="cuda")
    out = torch.empty_like(x)

    def launch():
        runs.append(1)
        add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)

    kernel = triton.testing.do_bench(launch)
    assert len(runs) == 8  # once by itself, five to estimate, one to warm up and one that is timed
    operation = triton.testing.do_bench(lambda: torch.add(x, y, out=out))
    least = 3 * x.nbytes / 3.35e12 * 1e3  # ms, at the memory's peak
    assert least < operation < 2 * least
    assert kernel == pytest.approx(operation, rel=0.25)
    assert triton.testing.do_bench(launch, quantiles=[0.5, 0.2, 0.8]) == pytest.approx([kernel] * 3)
    assert triton.testing.do_bench(launch, return_mode="all") == pytest.approx([kernel])


def test_a_cleared_cache_is_cold_and_only_then(gpu):
    """16 MiB fit the last-level cache, where operations find them that follow each other."""
    x = torch.ones(1 << 22, device="cuda")

    def timed():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        x.add_(1)
        start.record()
        x.add_(1)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    before = timed()
    assert triton.testing.do_bench(lambda: x.add_(1)) > 1.3 * before
    assert timed() == pytest.approx(before, rel=1e-6)


def test_what_the_host_takes_longer_to_enqueue_shows(gpu):
    x = torch.ones(8, device="cuda")
    few, many = (triton.testing.do_bench(lambda: [x.add_(1) for _ in range(count)]) for count in (1, 100))  # noqa: B023
    assert many > 50 * few


def test_tuning_follows_addresses_that_are_in_memory(gpu):
    parts = [torch.full((300,), float(at), device="cuda") for at in range(5)]
    rows = torch.tensor([part.data_ptr() for part in parts], device="cuda")
    out = torch.empty(5, 300, device="cuda")
    gather_rows[(5,)](rows, out, 300)
    assert out.tolist() == [[2.0 * at] * 300 for at in range(5)]


@triton.autotune([triton.Config({"BLOCK": size}) for size in (16, 32)], key=["width"])
@triton.jit
def of_sequences(x, out, ends, width: tl.constexpr, BLOCK: tl.constexpr):
    """The products of each sequence's rows with themselves; where sequences end is in memory."""
    begin, end = tl.load(ends + tl.program_id(0)).to(tl.int32), tl.load(ends + tl.program_id(0) + 1).to(tl.int32)
    at = tl.arange(0, BLOCK)
    inside = (begin + at)[:, None] < end
    rows = tl.load(x + (begin + at)[:, None] * width + tl.arange(0, width)[None, :], mask=inside, other=0.0)
    product = tl.dot(rows, tl.trans(rows))
    tl.store(out + (begin + at)[:, None] * BLOCK + at[None, :], product, mask=inside)


def test_configurations_are_compared_where_a_kernel_reads_its_bounds(gpu):
    """What a wave of programs shares is looked at, too, where their bounds are on the GPU."""
    x = torch.randn(24, 32, device="cuda", dtype=torch.float16)
    ends = torch.tensor([0, 16, 24], device="cuda", dtype=torch.int32)
    out = torch.zeros(24, 32, device="cuda", dtype=torch.float32)
    of_sequences[(2,)](x, out, ends, 32)
    rows = out.view(-1)[: 24 * of_sequences.best_config.kwargs["BLOCK"]].view(24, -1)
    expected = x[16:].float() @ x[16:].float().T
    torch.testing.assert_close(rows[16:, :8], expected, atol=1e-3, rtol=1e-3)
