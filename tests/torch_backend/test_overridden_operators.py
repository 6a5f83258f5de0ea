"""Kernels for CUDA that a program gives torch's own operators are called for tensors on simulated GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

import kernbench


def product_and(more: float) -> Any:
    """A kernel for ``mm`` that tells it from torch's."""

    def mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left.unsqueeze(2) * right.unsqueeze(0)).sum(1) + more

    return mm


@pytest.mark.parametrize("enable_data", [True, False])
def test_on_the_gpu_and_in_backward_but_not_on_the_host(enable_data: bool) -> None:
    calls: list[torch.device] = []

    def mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        calls.append(left.device)
        return product_and(1.0)(left, right)

    with kernbench.simulated_gpu("dgx_h100", enable_data=enable_data):
        library = torch.library.Library("aten", "IMPL")
        library.impl("mm", mm, "CUDA")
        host = torch.ones(2, 2)
        assert (host @ host).tolist() == [[2.0, 2.0], [2.0, 2.0]]
        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        y = x @ x
        y.sum().backward()
        assert calls == [torch.device("cuda:0")] * 3
        assert y.is_cuda
        if enable_data:
            assert y.tolist() == [[3.0, 3.0], [3.0, 3.0]]
            assert x.grad is not None
            assert x.grad.tolist() == [[6.0, 6.0], [6.0, 6.0]]
        library._destroy()
        assert (x @ x).shape == (2, 2)
        assert len(calls) == 3


def test_one_known_before_and_the_newest_of_several() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(2, 2, device="cuda")

        def product() -> float:
            return float((x @ x)[0, 0])

        assert product() == 2.0
        older, newer = (torch.library.Library("aten", "IMPL") for _ in range(2))
        older.impl("aten::mm", product_and(1.0), "CUDA")
        newer.impl(torch.ops.aten.mm.default, product_and(5.0), "CUDA")
        assert product() == 7.0
        newer._destroy()
        assert product() == 3.0
        older._destroy()
        assert product() == 2.0


def test_factories_and_overloads_are_told_apart() -> None:
    def twos(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
        return torch.full(size, 2.0, dtype=dtype, device=device)

    def add(keys: torch.DispatchKeySet, left: torch.Tensor, right: torch.Tensor, *, alpha: float = 1) -> torch.Tensor:
        assert keys.has(torch._C.DispatchKey.CUDA)
        return torch.sub(left, right, alpha=alpha)

    with kernbench.simulated_gpu("dgx_h100"):
        library = torch.library.Library("aten", "IMPL")
        library.impl("ones", twos, "CUDA")
        library.impl("add.Tensor", add, "CUDA", with_keyset=True)
        assert torch.ones(2).tolist() == [1.0, 1.0]
        x = torch.ones(2, device="cuda")
        assert x.tolist() == [2.0, 2.0]
        assert (x + x).tolist() == [0.0, 0.0]
        assert x.add_(x).tolist() == [4.0, 4.0]


def test_ranks_have_their_own_and_the_next_simulation_has_none() -> None:
    found: dict[int, float] = {}

    def worker(rank: int) -> None:
        libraries.append(torch.library.Library("aten", "IMPL"))
        if rank:
            libraries[-1].impl("mm", product_and(10.0 * rank), "CUDA")
        torch.distributed.init_process_group("nccl", rank=rank, world_size=3)
        torch.distributed.barrier()
        x = torch.ones(2, 2, device="cuda")
        found[rank] = float((x @ x)[0, 0])

    libraries: list[torch.library.Library] = []  # outlive the simulation
    with kernbench.simulate("dgx_h100", world_size=3) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert found == {0: 2.0, 1: 12.0, 2: 22.0}
    with kernbench.simulated_gpu("dgx_h100"):
        x = torch.ones(2, 2, device="cuda")
        assert float((x @ x)[0, 0]) == 2.0
    for each in libraries:
        each._destroy()


def test_a_program_keeps_its_own_while_ranks_run_that_it_spawns() -> None:
    found = []

    def worker(rank: int) -> None:
        x = torch.ones(2, 2, device="cuda")
        found.append(float((x @ x)[0, 0]))

    with kernbench.simulated_gpu("dgx_h100"):
        library = torch.library.Library("aten", "IMPL")
        library.impl("mm", product_and(1.0), "CUDA")
        worker(0)
        mp.spawn(worker, nprocs=2)
        worker(0)
        library._destroy()
        worker(0)
    assert found == [3.0, 2.0, 2.0, 3.0, 2.0]


def test_it_takes_the_time_of_what_it_launches() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            kernbench_double[(1,)](x, x.numel(), BLOCK=64)
        return x

    triton = pytest.importorskip("triton", reason="kernels need Triton, which exists for Linux only")
    tl = triton.language

    @triton.jit  # type: ignore[untyped-decorator]
    def kernbench_double(x, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, BLOCK)
        tl.store(x + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)

    globals()["tl"] = tl

    with kernbench.simulated_gpu("dgx_h100") as ctx:
        library = torch.library.Library("aten", "IMPL")
        library.impl("relu_", double, "CUDA")
        x = torch.full((48,), -1.0, device="cuda")
        assert torch.relu_(x).tolist() == [-4.0] * 48
        names = [op.name for op in ctx.engine.op_log.operations]
        library._destroy()
    assert names.count("kernbench_double") == 2
    assert not any("relu" in name for name in names)


def test_one_that_torch_composes_of_others() -> None:
    """Its kernel is called above autograd, as below CUDA's, which has no formula for it."""
    calls = []

    def vstack(tensors: Any) -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        return torch.cat(list(tensors)) * 3

    stock = torch.vstack((torch.ones(1, 2), torch.zeros(1, 2)))
    with kernbench.simulated_gpu("dgx_h100"):
        library = torch.library.Library("aten", "IMPL")
        library.impl("vstack", vstack, "CUDA")
        host = torch.ones(1, 2, requires_grad=True)
        torch.vstack((host, host)).sum().backward()
        assert host.grad is not None
        assert host.grad.tolist() == [[2.0, 2.0]]
        x = torch.ones(1, 2, device="cuda", requires_grad=True)
        torch.vstack((x, x)).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [[6.0, 6.0]]
        with torch.inference_mode():
            assert torch.vstack((x, x)).tolist() == [[3.0, 3.0]] * 2
        assert calls == [True, False]
        library._destroy()
        assert torch.vstack((x, x)).tolist() == [[1.0, 1.0]] * 2
        library = torch.library.Library("aten", "IMPL")
        library.impl("vstack", vstack, "CUDA")
    assert torch.vstack((torch.ones(1, 2), torch.zeros(1, 2))).equal(stock)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::vstack", "AutogradCPU")
    library._destroy()


def test_what_is_not_called_is_said() -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("called")

    with kernbench.simulated_gpu("dgx_h100") as ctx:
        library = torch.library.Library("aten", "IMPL")
        library.impl("mm", never, "AutogradCUDA")
        library.impl("no_such_operator", never, "CUDA")  # as torch, which lets programs be for several of its versions
        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        assert (x @ x).shape == (2, 2)
        library._destroy()
        said = [each for each in ctx.simulation.remarks if "is not called" in each]
    assert [each.split(" for ")[0].rpartition(" ")[2] for each in said] == ["aten::mm"]
