"""Wrappers of tensors on simulated GPUs, functional collectives, and state that ranks get of their own when they change it."""

from __future__ import annotations

import timeit
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import _debug_utils
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils import benchmark

import kernbench
from tests.torch_backend.conftest import Ranks

CALLS = {
    "all_gather": lambda x, group: functional.all_gather_single(x, 0, group),
    "all_gather_autograd": lambda x, group: functional.all_gather_single_autograd(x, 0, group),
    "reduce_scatter": lambda x, group: functional.reduce_scatter_single(x, "sum", 0, group),
    "all_reduce": lambda x, group: functional.all_reduce(x, "sum", group),
    "all_reduce_coalesced": lambda x, group: functional.all_reduce_coalesced([x, x], "sum", group)[1],
    "all_to_all": lambda x, group: functional.all_to_all_single(x, None, None, group),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_functional_collective_gives_is_on_the_gpu(ranks: Ranks, name: str) -> None:
    def body() -> Any:
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        result = CALLS[name](torch.full((4, 3), rank + 1.0, device="cuda"), dist.group.WORLD)
        first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        doubled = result * 2
        second.record()
        assert result.device == doubled.device == torch.device("cuda", rank)
        assert result.is_cuda
        second.synchronize()
        return first.elapsed_time(second), doubled.cpu()

    on_gpu = ranks(body, 2, backend="nccl")
    mean = 6.0 if "reduce" in name else 3.0
    assert all(values.mean() == mean for _, values in on_gpu)
    assert all(took > 0 for took, _ in on_gpu)  # the product is on the stream


def test_a_dtensor_is_where_its_shard_is(ranks: Ranks) -> None:
    def body() -> None:
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        mesh = init_device_mesh("cuda", (2,))
        there = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
        here = torch.device("cuda", rank)
        assert (there.device, there.is_cuda, there.get_device()) == (here, True, rank)
        assert there.full_tensor().device == here
        allocated = torch.cuda.memory_allocated()
        back = there.cpu()
        assert (back.device.type, back.to_local().device.type) == ("cpu", "cpu")
        assert torch.cuda.memory_allocated() == allocated
        again = back.cuda()
        assert again.device == again.to_local().device == here
        assert torch.equal(again.to_local().cpu(), back.to_local())

    ranks(body, 2, backend="nccl")


def test_a_wrapper_without_known_parts_says_what_it_was_told(ranks: Ranks) -> None:
    class Opaque(torch.Tensor):
        @staticmethod
        def __new__(cls) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, (2, 3), device="cuda", requires_grad=True)  # type: ignore[attr-defined]

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.zeros(2, 3)

    def body() -> None:
        allocated = torch.cuda.memory_allocated()
        opaque = Opaque()
        assert opaque.device == torch.device("cuda", dist.get_rank())
        assert torch.cuda.memory_allocated() == allocated
        assert (opaque * 2).grad_fn is not None  # autograd asks for no CUDA runtime

    ranks(body, 2, backend="nccl")


def test_comm_debug_mode_counts_its_own_rank(ranks: Ranks) -> None:
    """It stands on hooks on all modules, and its blocks wait for other ranks."""

    def body() -> Any:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        with CommDebugMode() as mode:
            model(torch.ones(2, 4)).sum().backward()
        return mode.get_total_counts(), set(mode.advanced_module_tracker.module_helper_dict)

    results = ranks(body)
    assert all(result == results[0] for result in results)
    assert results[0][0] == 1
    assert {"Global", "Sequential"} <= results[0][1]
    assert type(nn.modules.module._global_forward_hooks) is OrderedDict
    assert not nn.modules.module._global_forward_hooks


def test_each_rank_records_its_own_warnings(ranks: Ranks) -> None:
    before = (warnings.filters[:], warnings.showwarning)

    def body() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dist.barrier()
            warnings.warn(f"of rank {dist.get_rank()}", stacklevel=1)
            dist.barrier()
        return [str(warning.message) for warning in caught if "of rank" in str(warning.message)]

    assert ranks(body) == [[f"of rank {rank}"] for rank in range(4)]
    assert (warnings.filters, warnings.showwarning) == before


def test_the_debug_level_is_each_ranks_own(ranks: Ranks) -> None:
    before = dist.get_debug_level()

    def body() -> Any:
        if dist.get_rank() == 1:
            dist.set_debug_level(dist.DebugLevel.DETAIL)
        dist.barrier()
        return dist.get_debug_level()

    assert ranks(body) == [before, dist.DebugLevel.DETAIL, before, before]
    assert dist.get_debug_level() == before


def test_uneven_shards_are_redistributed_by_each_rank(ranks: Ranks) -> None:
    """DTensor keeps for the process what a redistribution comes to, and that depends on a rank's place in the mesh."""
    whole = torch.arange(45.0).reshape(9, 5)

    def body() -> torch.Tensor:
        mesh = init_device_mesh("cpu", (2, 2))
        return distribute_tensor(whole, mesh, [Shard(0), Shard(0)]).full_tensor()

    assert all(torch.equal(result, whole) for result in ranks(body))


def test_a_collective_leaves_autograds_version_alone(ranks: Ranks) -> None:
    def body() -> Any:
        x = torch.ones(4, requires_grad=True)
        part = x.chunk(2)[1]  # a view of many, which may not be changed in place
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        distribute_tensor(x, mesh, [Replicate()])
        y = torch.full((3,), float(dist.get_rank()))
        version = y._version
        dist.all_reduce(y)
        assert y._version == version
        return (part * 2).sum().item(), y.tolist()

    assert ranks(body) == [(4.0, [6.0] * 3)] * 4


@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "own"])
def test_what_a_cpu_rank_compiles_is_compiled_and_recorded(backend: str) -> None:
    import torch._dynamo

    graphs: list[int] = []

    def own(graph: Any, inputs: Any) -> Any:
        graphs.append(dist.get_rank())
        return graph.forward

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        chosen = own if backend == "own" else backend
        compiled = torch.compile(lambda x: torch.relu(x @ x).sum(), backend=chosen, fullgraph=True)
        x = torch.full((4, 4), rank + 1.0, requires_grad=True)
        compiled(x).backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((4, 4), 8.0 * (rank + 1)))
        dist.destroy_process_group()

    with kernbench.simulate(seed=1) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        assert any("mm" in record.name for record in ctx.engine.op_log.records())
    assert bool(graphs) == (backend == "own")
    assert (
        torch.compile(lambda x: x + torch.cuda.device_count(), backend="eager")(torch.zeros(1))
        == torch.cuda.device_count()
    )


def test_what_a_gpu_rank_compiles_runs_as_written(ranks: Ranks) -> None:
    def body() -> Any:
        torch.cuda.set_device(dist.get_rank())
        compiled = torch.compile(lambda x: (x * 2).sum(), fullgraph=True)
        return compiled(torch.ones(3, device="cuda")).cpu().item()

    assert ranks(body, 2, backend="nccl") == [6.0, 6.0]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_sharded_heads_and_batches(ranks: Ranks, dim: int, masked: bool) -> None:
    q, k, v = (torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    leaf = q.clone().requires_grad_()
    mask = torch.zeros(1, 1, 8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -1e9) if masked else None
    expected = nn.functional.scaled_dot_product_attention(leaf, k, v, attn_mask=mask, is_causal=not masked)
    expected.square().sum().backward()

    def body() -> Any:
        torch.cuda.set_device(dist.get_rank())
        mesh = init_device_mesh("cuda", (2,))
        sharded = [distribute_tensor(each, mesh, [Shard(dim)]).requires_grad_() for each in (q, k, v)]
        given = None if mask is None else distribute_tensor(mask, mesh, [Replicate()])
        out = nn.functional.scaled_dot_product_attention(*sharded, attn_mask=given, is_causal=mask is None)
        assert out.placements == (Shard(dim),)
        out.square().sum().backward()
        assert all(each.grad.to_local().is_cuda for each in sharded)  # whose memory has another order
        return out.full_tensor().detach().cpu(), sharded[0].grad.full_tensor().cpu()

    for out, grad in ranks(body, 2, backend="nccl"):
        torch.testing.assert_close(out, expected.detach())
        torch.testing.assert_close(grad, leaf.grad)


def test_benchmarks_and_profiles_speak_virtual_time(ranks: Ranks) -> None:
    def body() -> Any:
        torch.cuda.set_device(dist.get_rank())
        a = torch.randn(256, 256, device="cuda")
        a @ a
        measured = benchmark.Timer("a @ a; torch.cuda.synchronize()", globals={"a": a, "torch": torch}).timeit(10).mean
        elsewhere = timeit.timeit(lambda: (a @ a, torch.cuda.synchronize()), number=10) / 10
        with torch.profiler.profile() as profile:
            a @ a
            dist.all_reduce(a)
        names = {event.key for event in profile.key_averages()}
        return measured, elsewhere, "aten::mm" in names, "nccl:all_reduce" in names

    first, again = ranks(body, 2, backend="nccl"), ranks(body, 2, backend="nccl")
    assert first == again  # the wall clock is never the same
    assert all(0 < measured < 1e-3 and found and reduced for measured, _, found, reduced in first)


def test_a_timer_of_torch_runs_a_few_times_and_tells_the_time_of_as_many_as_it_wants(ranks: Ranks) -> None:
    runs = []

    def body() -> Any:
        a = torch.randn(256, 256, device="cuda")

        def product() -> None:
            runs.append(1)
            a @ a

        product()
        torch.cuda.synchronize()
        begin = benchmark.timer()
        for _ in range(50):
            product()
        by_hand = benchmark.timer() - begin
        runs.clear()
        told = benchmark.Timer("product()", globals={"product": product})
        row = told.timeit(50).raw_times[0]
        blocks = told.blocked_autorange()
        return by_hand, row, blocks.mean * blocks.number_per_run, blocks.number_per_run, len(runs)

    [(by_hand, row, block, number, times)] = ranks(body, 1)
    assert row == pytest.approx(by_hand, rel=0.01)
    assert block == pytest.approx(row * number / 50, rel=0.1)  # the wait at the end of a row counts less
    assert times < 30 < number


def test_fsdps_own_profiler_is_each_ranks(ranks: Ranks) -> None:
    def body() -> None:
        profiler = _debug_utils.SimpleProfiler
        with profiler.profile(profiler.Type.ALL):
            dist.barrier()
        profiler.reset()

    ranks(body)


_KNOWN: dict[Any, str] = {torch.Tensor.to: "to", torch.Tensor.cpu: "cpu", torch.Tensor.tolist: "tolist"}
"""A table of functions as a library has one, filled before ranks run."""


class _Named(torch.Tensor):
    """A wrapper that asks itself where it is as it is taken apart, and knows torch's functions by a table."""

    table = _KNOWN
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner
        self.seen: list[tuple[str, bool]] = []

    def __tensor_flatten__(self) -> Any:
        return ["inner"], (self.device, self.is_cuda)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in cls.table:
            args[0].seen.append((cls.table[func], func is getattr(torch.Tensor, cls.table[func])))
            return cls(func(args[0].inner, *args[1:], **(kwargs or {}))) if func != torch.Tensor.tolist else []
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


@pytest.mark.parametrize("filled", ["before", "in a rank"])
def test_a_class_with_functions_of_its_own_is_asked_by_the_name_that_is_called(ranks: Ranks, filled: str) -> None:
    def body() -> None:
        class Own(_Named):
            table = (
                _KNOWN
                if filled == "before"
                else {torch.Tensor.to: "to", torch.Tensor.cpu: "cpu", torch.Tensor.tolist: "tolist"}
            )

        there: Any = Own(torch.arange(4.0, device="cuda"))
        assert (there.device, there.is_cuda) == (torch.device("cuda", 0), True)
        moved, again, half = there.cpu(), there.cpu().to("cuda"), there.to(torch.float16)
        assert [type(each) for each in (moved, again, half)] == [Own] * 3
        assert [each.device.type for each in (moved, again, half)] == ["cpu", "cuda", "cuda"]
        assert (half.dtype, half.inner.dtype, half.inner.tolist()) == (
            torch.float16,
            torch.float16,
            [0.0, 1.0, 2.0, 3.0],
        )
        assert there.tolist() == []
        assert there.seen == [("cpu", True), ("cpu", True), ("to", True), ("tolist", True)]

    ranks(body, 1, backend="nccl")


def test_a_number_is_copied_where_a_batch_of_tensors_is_multiplied_by_it() -> None:
    def body(rank: int) -> list[list[float]]:
        x = torch.ones(4, 9)
        return [torch.vmap(lambda row: 1 - 3.0 / row.norm())(each).tolist() for each in (x, x.cuda())]

    with kernbench.simulate("dgx_h100", world_size=1) as ctx:
        found: list[Any] = []
        ctx.multiprocessing.spawn(lambda rank: found.extend(body(rank)), nprocs=1)
    assert found == [[0.0] * 4] * 2
