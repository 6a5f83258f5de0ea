"""Futures of collectives: torch's own, complete in virtual time, and DDP's buckets in flight during backward."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import kernbench
from tests.torch_backend.conftest import Ranks


def test_chains_and_groups_of_futures(ranks: Ranks) -> None:
    def body() -> list[Any]:
        rank = dist.get_rank()
        work = dist.all_reduce(torch.full((3,), rank + 1.0), async_op=True)
        future = work.get_future()
        assert work.get_future() is future
        chained = future.then(lambda done: done.value()[0] / 4).then(lambda done: done.value() + 1)
        several = [dist.all_reduce(torch.ones(1) * n, async_op=True).get_future() for n in range(3)]
        collected = torch.futures.collect_all(several).wait()
        waited = torch.futures.wait_all([each.then(lambda done: done.value()[0].item()) for each in several])
        at_once = dist.all_reduce(torch.ones(1), async_op=True).get_future().value()[0].item()
        last = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        while not last.done():
            pass
        return [chained.wait().tolist(), [each.value()[0].item() for each in collected], waited, at_once, last.done()]

    assert ranks(body) == [[[3.5] * 3, [0.0, 4.0, 8.0], [0.0, 4.0, 8.0], 4.0, True]] * 4


def test_callbacks_run_when_the_rank_looks_and_at_its_end(ranks: Ranks) -> None:
    seen: list[tuple[str, int, float]] = []

    def note(what: str) -> Any:
        rank = dist.get_rank()
        return lambda future: seen.append((what, rank, future.value()[0].item()))

    def body() -> list[str]:
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2)]
        works[0].get_future().add_done_callback(note("first"))
        works[1].wait()  # the first is done by then, too
        before = [what for what, rank, _ in seen if rank == dist.get_rank()]
        dist.all_reduce(torch.ones(1), async_op=True).get_future().add_done_callback(note("last"))
        return before

    assert ranks(body, 2) == [["first"], ["first"]]
    assert sorted(seen) == [(what, rank, 2.0) for what in ("first", "last") for rank in range(2)]


def test_a_failure_reaches_who_waits(ranks: Ranks) -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()

    with pytest.raises(kernbench.SpawnException) as caught:
        ranks(body, 2)
    assert isinstance(caught.value.errors[0], kernbench.DeadlockError)


def _train(rank: int, steps: int = 2, hook: Any = None, recomputed: bool = False, **options: Any) -> list[torch.Tensor]:
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    layers = [nn.Linear(512, 512, bias=False) for _ in range(6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).cuda(), bucket_cap_mb=1, **options)
    if isinstance(hook, dist.BuiltinCommHookType):
        model._register_builtin_comm_hook(hook)
    elif hook is not None:
        model.register_comm_hook(None, hook)
    for _ in range(steps):
        model.zero_grad()
        x = torch.full((64, 512), rank + 1.0, device="cuda", requires_grad=recomputed)
        y = checkpoint(model, x, use_reentrant=True) if recomputed else model(x)
        y.square().mean().backward()  # type: ignore[union-attr]
    return [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]


def test_buckets_are_reduced_during_backward() -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda rank: _train(rank) and None, nprocs=2)
        mine = [op for op in ctx.engine.op_log.operations if op.rank == 0 and op.end is not None]
    gemms = [op for op in mine if op.kind == "gemm"][-12:]  # of the second backward, or its forward's last
    backward_ends = max(op.end for op in gemms if op.end is not None)
    reductions = [op for op in mine if op.name == "all_reduce"][-6:]
    assert len({op.start for op in reductions}) == 6
    overlapping = [op for op in reductions if op.start is not None and op.start < backward_ends]
    assert len(overlapping) >= 4
    for earlier, later in itertools.pairwise(reductions):  # one stream, in order
        assert earlier.end is not None
        assert later.start is not None
        assert earlier.end <= later.start


@pytest.mark.parametrize(
    "variant", ["static", "unused", "fp16", "own hook", "recomputed", "recomputed static", "all-reduce", "fp16 in C++"]
)
def test_every_way_gives_the_mean_of_the_gradients(variant: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    def own_hook(state: Any, bucket: Any) -> Any:
        reduced = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True).get_future()
        return reduced.then(lambda future: future.value()[0])

    own_hook.__annotations__.clear()  # DDP compares them

    options: dict[str, Any] = {
        "static": {"static_graph": True}, "unused": {"find_unused_parameters": True},
        "fp16": {"hook": fp16_compress_hook}, "own hook": {"hook": own_hook},
        "recomputed": {"recomputed": True}, "recomputed static": {"recomputed": True, "static_graph": True},
        "all-reduce": {"hook": dist.BuiltinCommHookType.ALLREDUCE},
        "fp16 in C++": {"hook": dist.BuiltinCommHookType.FP16_COMPRESS},
    }[variant]  # fmt: skip
    found: dict[int, list[torch.Tensor]] = {}
    alone: dict[int, list[torch.Tensor]] = {}

    def body(rank: int, into: dict[int, list[torch.Tensor]], **options: Any) -> None:
        into[rank] = _train(rank, **options)

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(lambda rank: body(rank, found, **options), nprocs=2)
        for offset in range(2):
            ctx.multiprocessing.spawn(lambda rank, offset=offset: alone.update({offset: _train(offset)}), nprocs=1)
    tolerance = 1e-2 if variant.startswith("fp16") else 1e-5
    for index, gradient in enumerate(found[0]):
        mean = (alone[0][index] + alone[1][index]) / 2
        torch.testing.assert_close(gradient, mean, rtol=tolerance, atol=tolerance * mean.abs().max().item())
        assert torch.equal(gradient, found[1][index])
