"""A GPU's view of pinned memory: both sides see the same bytes, which go over the host link."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import kernbench
from kernbench.topology import resolve_topology
from kernbench.torch_backend.gpu.memory.mapped_memory import view_on_gpu

SYSTEM = "dgx_h100"


@triton.jit
def doubled(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def run(worker: Any, *args: Any, data: bool = True) -> Any:
    with kernbench.simulate(SYSTEM, enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, args=args, nprocs=1)
        return list(ctx.simulation.engine.op_log.operations)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16])
def test_both_sides_see_the_same(dtype: torch.dtype) -> None:
    def worker(rank: int) -> None:
        host = torch.zeros(4, 8, dtype=dtype, pin_memory=True)
        part = host[1:, 2:6]
        view = view_on_gpu(part)
        assert view.is_cuda
        assert not host.is_cuda
        assert (view.shape, view.stride(), view.dtype) == (part.shape, part.stride(), dtype)
        assert torch.cuda.memory_allocated() == 0
        host.fill_(3)
        assert (view + 1).cpu().eq(4).all()  # an operator reads what the host has written
        view[0] = 7
        torch.cuda.synchronize()
        assert host[1, 2:6].tolist() == [7] * 4  # and the host what the GPU has
        assert host.sum().item() == 3 * 28 + 7 * 4
        again = view_on_gpu(host)
        assert again[1, 3].item() == 7

    run(worker)


def test_a_kernel_reads_and_writes_it() -> None:
    def worker(rank: int) -> None:
        source, target = (torch.arange(1000, dtype=torch.float32).pin_memory() for _ in range(2))
        doubled[(8,)](view_on_gpu(source), view_on_gpu(target), 1000, BLOCK=128)
        torch.cuda.synchronize()
        assert target.tolist() == [2.0 * at for at in range(1000)]

    run(worker)


def _moved(rank: int, n: int) -> None:
    """The kernel twice, on the same values: in memory of the host, and of the GPU."""
    host = torch.zeros(n, dtype=torch.int32, pin_memory=True)
    out = torch.empty(n, dtype=torch.int32, device="cuda")
    for x in (view_on_gpu(host), host.cuda()):
        doubled[(n // 1024,)](x, out, n, BLOCK=1024)
        torch.cuda.synchronize()


@pytest.mark.parametrize("data", [True, False])
def test_it_takes_the_host_links_time(data: bool) -> None:
    n = 1 << 20
    route = resolve_topology(SYSTEM).topology_obj.host_route(0, "h2d")
    over_link, at_home = (each.end - each.start for each in run(_moved, n, data=data) if "doubled" in each.name)
    assert at_home < 0.2 * over_link
    assert over_link == pytest.approx(route.latency + 4 * n / route.bandwidth, rel=0.05)


def test_what_is_not_pinned_is_refused() -> None:
    def worker(rank: int) -> None:
        for tensor in (torch.ones(2), torch.ones(2, device="cuda")):
            with pytest.raises(RuntimeError, match="in pinned memory of the host"):
                view_on_gpu(tensor)

    run(worker)
    with pytest.raises(kernbench.KernbenchError, match="no simulated GPU here"):
        view_on_gpu(torch.ones(2))


def test_what_a_kernel_has_not_computed_is_not_known_to_the_host() -> None:
    def worker(rank: int) -> None:
        host = torch.zeros(16, dtype=torch.int32, pin_memory=True)
        x = torch.empty(1 << 20, dtype=torch.int32, device="cuda")
        doubled[(1,)](x, view_on_gpu(host), 16, BLOCK=16)
        torch.cuda.synchronize()
        host[0].item()

    with kernbench.simulate(SYSTEM, enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        assert any("item" in each for each in ctx.simulation.assumptions.notes)
