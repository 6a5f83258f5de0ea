"""``deep_ep``: tokens reach the ranks of their experts once each, and come back as sums; bytes, memory, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.stand_ins import standing_in

Tensor = torch.Tensor
EXPERTS, HIDDEN, WORLD = 8, 16, 4


def on_gpus(body: Any, *, ranks: int = WORLD) -> tuple[list[Any], Any]:
    """What ``body(rank, deep_ep)`` gives in each rank of a node, and the log's collectives."""
    found: list[Any] = [None] * ranks

    def worker(rank: int) -> None:
        import deep_ep

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        found[rank] = body(rank, deep_ep)

    with standing_in(["deep_ep"]), kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        log = [each for each in ctx.simulation.engine.op_log.operations if each.kind == "collective"]
    return found, log


def tokens_of(seed: int, rank: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, the two experts of each (some have one, or none) and their weights."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    x = torch.randn(count, HIDDEN, generator=generator)
    experts = torch.stack([torch.randperm(EXPERTS, generator=generator)[:2] for _ in range(count)])
    experts[torch.rand(count, 2, generator=generator) < 0.2] = -1
    return x, experts, torch.rand(count, 2, generator=generator)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 99), counts=st.lists(st.integers(1, 6), min_size=WORLD, max_size=WORLD), narrow=st.booleans()
)
def test_tokens_go_to_their_experts_and_back(seed: int, counts: list[int], narrow: bool) -> None:
    """Each expert multiplies by its own number; the result is the sum of the weighted products."""

    def body(rank: int, deep_ep: Any) -> Any:
        buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 10)
        x, experts, weights = (each.cuda() for each in tokens_of(seed, rank, counts[rank]))
        given: Any = (x.to(torch.float8_e4m3fn), torch.full((len(x), 1), 2.0, device="cuda")) if narrow else x
        per_rank, nodes, per_expert, here, event = buffer.get_dispatch_layout(experts, EXPERTS, async_finish=True)
        came, indices, shares, numbers, handle, event = buffer.dispatch(
            given, num_tokens_per_rank=per_rank, is_token_in_rank=here, num_tokens_per_expert=per_expert, topk_idx=experts,
            topk_weights=weights, previous_event=event, async_finish=True, expert_alignment=1,
        )  # fmt: skip
        event.current_stream_wait()
        plain = came[0].float() * came[1] if narrow else came
        first = rank * EXPERTS // WORLD
        factors = torch.where(indices < 0, 0, indices + first + 1) * shares
        made, back, _ = buffer.combine(plain * factors.sum(-1, keepdim=True), handle, topk_weights=shares)
        again = buffer.dispatch(x, handle=handle)[0]
        assert nodes is None
        return made.cpu(), back.cpu(), numbers, indices.cpu(), per_rank.tolist(), len(again), len(plain)

    found, _ = on_gpus(body)
    everyone = [tokens_of(seed, rank, count) for rank, count in enumerate(counts)]
    every_expert = torch.cat([experts for _, experts, _ in everyone]).flatten().tolist()
    for rank, (made, back, numbers, indices, per_rank, again, came) in enumerate(found):
        x, experts, weights = everyone[rank]
        used = x.to(torch.float8_e4m3fn).float() * 2 if narrow else x
        expected = used * (torch.where(experts < 0, 0, experts + 1) * weights).sum(-1, keepdim=True)
        assert torch.allclose(made, expected, atol=1e-4)
        assert torch.allclose(back, torch.where(experts < 0, torch.zeros(()), weights))
        mine = range(rank * 2, rank * 2 + 2)
        assert numbers == [every_expert.count(each) for each in mine]
        assert sorted(indices[indices >= 0].tolist()) == sorted(
            each - rank * 2 for each in every_expert if each in mine
        )
        goes = [{each // 2 for each in row.tolist() if each >= 0} for row in experts]
        assert per_rank == [sum(to in each for each in goes) for to in range(WORLD)]
        assert again == came


def test_a_token_goes_once_to_a_rank_and_buffers_take_memory() -> None:
    def body(rank: int, deep_ep: Any) -> Any:
        before = torch.cuda.memory_allocated()
        config = deep_ep.Buffer.get_dispatch_config(2)
        nbytes = config.get_nvl_buffer_size_hint(2 * HIDDEN, 2)
        buffer = deep_ep.Buffer(dist.group.WORLD, nbytes, config.get_rdma_buffer_size_hint(2 * HIDDEN, 2))
        taken = torch.cuda.memory_allocated() - before
        x = torch.ones(64, HIDDEN, device="cuda", dtype=torch.bfloat16)
        experts = torch.tensor([[0, 1]] * 64, device="cuda")  # both are rank 0's
        per_rank, _, per_expert, here, _ = buffer.get_dispatch_layout(experts, 4)
        came, *_ = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=here, num_tokens_per_expert=per_expert, topk_idx=experts
        )
        return taken, nbytes, len(came)

    found, _ = on_gpus(body, ranks=2)
    assert [each[2] for each in found] == [128, 0]
    for taken, nbytes, _ in found:
        exact = 10 * 2 * (4 * 5 + 256 * (2 * HIDDEN + 128 * 16 + 8))
        assert exact <= nbytes < exact + 128
        assert nbytes <= taken <= nbytes + 512


def test_what_is_not_there_says_so() -> None:
    def latency(rank: int, deep_ep: Any) -> None:
        deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True)

    def latency_later(rank: int, deep_ep: Any) -> None:
        deep_ep.Buffer(dist.group.WORLD).low_latency_dispatch()

    for body in (latency, latency_later):
        with pytest.raises(Exception, match=r"stand-in for deep_ep has no low.latency"):
            on_gpus(body, ranks=2)
