"""Averages of NCCL's: floats are multiplied by 1/N before they are added, integers divided afterwards; and 8-bit floats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench

ISOLATIONS = ("carrier", "greenlet", "process")


def run(body: Any, size: int, *, system: str = "dgx_h100", isolation: str = "carrier", **options: Any) -> list[Any]:
    """What ``body(rank, group)`` gives on each rank of a world of NCCL's."""
    found: dict[int, Any] = {}

    with kernbench.simulate(system, world_size=size, **options) as ctx:

        def worker(rank: int) -> None:
            if isolation == "greenlet":
                ctx.distributed.init_process_group("nccl")
                found[rank] = body(rank, ctx.distributed.group())
                return
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            found[rank] = body(rank, dist.group.WORLD)

        ctx.multiprocessing.spawn(worker, nprocs=size, isolation=isolation)
    return [found[rank] for rank in range(size)]


def checked_everywhere(check: Any, size: int, isolation: str) -> None:
    """Run a body that asserts by itself: what a rank in a process of its own gives does not come back."""
    with kernbench.simulate("dgx_h100", world_size=size) as ctx:

        def worker(rank: int) -> None:
            if isolation == "greenlet":
                ctx.distributed.init_process_group("nccl")
                check(rank, ctx.distributed.group())
                return
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            check(rank, dist.group.WORLD)

        ctx.multiprocessing.spawn(worker, nprocs=size, isolation=isolation)


def average(values: list[torch.Tensor]) -> torch.Tensor:
    """The sum of products rounded to the type, in this order."""
    scale = torch.tensor(1.0 / len(values)).to(values[0].dtype)
    total = values[0] * scale
    for value in values[1:]:
        total = total + value * scale
    return total


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("op", ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_list", "coalesced"])
def test_halves_near_the_limit_stay(op: str, isolation: str) -> None:
    def check(rank: int, group: Any) -> None:
        where = "cpu" if isolation == "greenlet" else "cuda"
        x = torch.full((4,), 40000.0, dtype=torch.half, device=where)
        got = x
        if op == "all_reduce":
            group.allreduce([x], dist.ReduceOp.AVG).wait()
        elif op == "reduce":
            options = dist.ReduceOptions()
            options.reduceOp = dist.ReduceOp.AVG
            group.reduce([x], options).wait()
        elif op == "reduce_scatter":
            got = torch.empty(2, dtype=torch.half, device=where)
            options = dist.ReduceScatterOptions()
            options.reduceOp = dist.ReduceOp.AVG
            group._reduce_scatter_base(got, x, options).wait()
        elif op == "reduce_scatter_list":
            got = torch.empty(2, dtype=torch.half, device=where)
            options = dist.ReduceScatterOptions()
            options.reduceOp = dist.ReduceOp.AVG
            group.reduce_scatter([got], [list(x.split(2))], options).wait()
        else:
            options = dist.AllreduceCoalescedOptions()
            options.reduceOp = dist.ReduceOp.AVG
            y = torch.full((3,), -48000.0, dtype=torch.half, device=where)
            group.allreduce_coalesced([x, y], options).wait()
            assert y.tolist() == [-48000.0] * 3
        assert got.tolist() == [40000.0] * got.numel()

    checked_everywhere(check, 2, isolation)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_factor_and_each_product_are_rounded_to_the_type(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    most = torch.finfo(dtype).max
    brought = [(torch.rand(1, generator=generator, dtype=torch.float64) * most).to(dtype) for _ in range(size)]

    def body(rank: int, group: Any) -> Any:
        x = brought[rank].cuda()
        dist.all_reduce(x, dist.ReduceOp.AVG)
        return x.cpu()

    results = run(body, size)
    # one element is one chunk, and some member's is the first of its chain
    orders = [[*brought[first:], *brought[:first]] for first in range(size)]
    assert torch.isfinite(results[0]).all()
    assert any(torch.equal(results[0], average(order)) for order in orders)
    assert all(torch.equal(result, results[0]) for result in results)


def test_integers_are_summed_and_divided_toward_zero() -> None:
    def body(rank: int, group: Any) -> Any:
        x = torch.tensor([7, -7, 5, -5], dtype=torch.int32, device="cuda") + rank
        dist.all_reduce(x, dist.ReduceOp.AVG)
        return x.tolist()

    assert run(body, 2) == [[7, -6, 5, -4]] * 2  # 15, -13, 11, -9 halved


def test_a_group_of_gloo_divides_the_sum() -> None:
    found = []

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        x = torch.full((2,), 40000.0, dtype=torch.half)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        found.append(x.tolist())

    with kernbench.simulate("dgx_h100", world_size=2) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert found == [[float("inf")] * 2] * 2


def test_a_factor_is_rounded_to_the_type_before_it_multiplies() -> None:
    def body(rank: int, group: Any) -> Any:
        x = torch.full((2,), 60001.0, device="cuda").half()
        dist.all_reduce(x, dist._make_nccl_premul_sum(1 / 3))
        return x.cpu()

    one = torch.tensor(60001.0).half() * torch.tensor(1 / 3).half()
    assert all(torch.equal(found, (one + one).expand(2)) for found in run(body, 2))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_sums_of_eight_bits_are_those_of_halves_and_saturate(dtype: torch.dtype) -> None:
    values = [torch.tensor([448.0, 1.0, -300.0, 0.3]).to(dtype), torch.tensor([448.0, 0.07, -200.0, 0.05]).to(dtype)]

    def body(rank: int, group: Any) -> Any:
        total, most, mine = values[rank].cuda(), values[rank].cuda(), torch.empty(2, dtype=dtype, device="cuda")
        dist.all_reduce(total)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        dist.reduce_scatter_tensor(mine, values[rank].cuda())
        return total.cpu().float(), most.cpu().float(), mine.cpu().float()

    limit = torch.finfo(dtype).max
    total = (values[0].float() + values[1].float()).clamp(-limit, limit).to(dtype).float()
    most = torch.maximum(values[0].float(), values[1].float())
    for rank, (summed, largest, mine) in enumerate(run(body, 2)):
        assert torch.equal(summed, total)
        assert torch.equal(largest, most)
        assert torch.equal(mine, total[2 * rank : 2 * rank + 2])


@pytest.mark.parametrize(("dtype", "large"), [(torch.half, 40000.0), (torch.bfloat16, 2.0**127)], ids=str)
@pytest.mark.parametrize("factor", [None, 2.0])
def test_gradients_of_a_sharded_model_stay_finite(dtype: torch.dtype, large: float, factor: float | None) -> None:
    """FSDP2 asks for ``AVG``, or for ``PREMUL_SUM`` where a divide factor is given; halves it divides itself."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def body(rank: int, group: Any) -> Any:
        model = torch.nn.Linear(4, 2, bias=False, device="cuda", dtype=dtype)
        fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
        if factor is not None:
            model.set_gradient_divide_factor(factor)  # type: ignore[attr-defined]
        model(torch.full((1, 4), large, device="cuda", dtype=dtype)).sum().backward()
        gradient: Any = model.weight.grad
        return gradient.full_tensor().cpu().flatten().tolist()

    assert run(body, 2) == [[large] * 8] * 2


def test_ddp_divides_its_buckets_before_it_sums() -> None:
    from torch.nn.parallel import DistributedDataParallel

    def body(rank: int, group: Any) -> Any:
        model = torch.nn.Linear(4, 2, bias=False, device="cuda", dtype=torch.half)
        wrapped = DistributedDataParallel(model)
        wrapped(torch.full((1, 4), 40000.0, device="cuda", dtype=torch.half)).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad.cpu().flatten().tolist()

    assert run(body, 2) == [[40000.0] * 8] * 2


def test_switches_do_not_average() -> None:
    """NCCL has no NVLS kernel for its averages of floats: they go around a ring, or up a tree."""
    algorithms = []
    for reduction in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):

        def worker(rank: int, reduction: Any = reduction) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            dist.all_reduce(torch.ones(16 << 20, device="cuda"), reduction)

        with kernbench.simulate("dgx_h100", world_size=8, enable_data=False) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=8)
            (run_,) = {each.detail["algorithm"] for each in ctx.engine.op_log.collectives}
            algorithms.append(run_)
    assert algorithms[0] == "nvls_allreduce"
    assert algorithms[1] in ("ring_allreduce", "tree_allreduce")
