"""A kernel on a GPU reaches the host's memory where that is pinned; another tensor of the host is refused in Triton's words."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import kernbench


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@pytest.mark.parametrize("data", [True, False])
def test_what_a_kernel_reaches(data: bool) -> None:
    def worker(rank: int) -> None:
        x, out, host = torch.ones(8, device="cuda"), torch.empty(8, device="cuda"), torch.ones(8)
        with pytest.raises(
            ValueError, match=r"Pointer argument \(at 1\) cannot be accessed from Triton \(cpu tensor\?\)"
        ):
            _add[1,](x, host, out, 8, BLOCK=8)
        _add[1,](x, host.pin_memory(), out, 8, BLOCK=8)
        _add[1,](x, torch.empty(0), out, 0, BLOCK=8)
        assert not data or out.eq(2).all()

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)


def test_tensors_of_the_host_alone() -> None:
    """Kernels of a program without GPUs run on the host's tensors."""
    x, out = torch.ones(8), torch.empty(8)
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda rank: _add[1,](x, x, out, 8, BLOCK=8), nprocs=1)
    assert out.eq(2).all()


@pytest.mark.parametrize("data", [True, False])
def test_tensors_of_the_host_alone_in_a_program_with_a_gpu(data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        torch.ones(1, device="cuda")
        x = torch.ones(8)
        with pytest.raises(ValueError, match=r"at 0\) cannot be accessed from Triton .* a tensor \(8,\) of the host"):
            _add[1,](x, x, x, 8, BLOCK=8)


@pytest.mark.parametrize("data", [True, False])
def test_tensors_of_another_gpu(data: bool) -> None:
    """A kernel is launched on the current GPU; torch's copies to another one give it access to that one's memory."""

    def worker(rank: int) -> None:
        x, out = torch.ones(8, device="cuda:1"), torch.empty(8, device="cuda:1")
        refused = r"at 0\) cannot be accessed from Triton .*with torch.cuda.device\(1\)"
        with pytest.raises(ValueError, match=refused):
            _add[1,](x, x, out, 8, BLOCK=8)
        with torch.cuda.device(1):
            _add[1,](x, x, out, 8, BLOCK=8)
        assert not data or out.eq(2).all()
        here = x.to("cuda:0")  # cuda:1 reaches cuda:0 now
        with pytest.raises(ValueError, match=refused):
            _add[1,](x, x, out, 8, BLOCK=8)
        here.to("cuda:1")
        _add[1,](x, out, out, 8, BLOCK=8)
        assert not data or out.eq(3).all()

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        out = torch.empty_like(gradient)
        _add[1,](gradient, gradient, out, 8, BLOCK=8)
        return out


def test_gradients_on_another_gpu() -> None:
    """Autograd's thread for a GPU has that one as its current."""
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(8, device="cuda:1", requires_grad=True)
        _Scaled.apply(x).backward(torch.ones(8, device="cuda:1"))
        assert x.grad is not None
        assert x.grad.eq(2).all()


def test_a_grid_is_of_whole_numbers() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(8, device="cuda")
        with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
            _add[1.0,](x, x, x, 8, BLOCK=8)
