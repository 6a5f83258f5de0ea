"""The same program with values and without: the same operations, collectives, bytes, memory and times."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

import kernbench
from tests.parity import moe_programs
from tests.parity.gpu_programs import PROGRAMS

WORLD = 4


class Outcome(NamedTuple):
    """What a run has left: operations by rank and stream, peak bytes by SIP, time at the end."""

    operations: dict[tuple[Any, ...], list[Any]]
    peaks: list[tuple[int, int]]
    end: float


def outcome(program: Callable[..., None], width: int, *, data: bool, world: int = WORLD, **options: Any) -> Outcome:
    with kernbench.simulate("dgx_h100", enable_data=data, log_limit=None, **options) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            program(rank, world, width)
            dist.destroy_process_group()

        ctx.multiprocessing.spawn(worker, nprocs=world)
        found: dict[tuple[Any, ...], list[Any]] = {}
        for op in ctx.engine.op_log.operations:
            seen = (op.name, op.kind, op.nbytes, op.enqueue, op.start, op.end)
            found.setdefault((op.rank, op.sip, op.stream), []).append(seen)
        peaks = [(ledger.sip, ledger.peak) for ledger in ctx.engine.op_log.ledgers]
        return Outcome(found, peaks, ctx.now())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch warns once per process: a rank that does looks at the clock, which takes it time."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


IN_ANY_ORDER = ("zero_bubble", "zero_bubble_v")
"""torch walks sets of autograd's nodes there: gradients of a stage are added in an order that differs from run to run."""

ESTIMATED = ("kernbench_layers", "bags")
"""Triton kernels: without data a few of their programs are looked at, so that bytes and times are estimates. Bags: the GPU's
kernel, which the meta kernel describes, keeps some tens of bytes more than the CPU's."""


SLOW = ("tensor_and_sharded", "hsdp", "dtensor_ops")
"""What takes seconds, and is like another one."""


@pytest.mark.parametrize("width", [pytest.param(16, marks=pytest.mark.long), 128])
@pytest.mark.parametrize(
    "program",
    [pytest.param(each, marks=pytest.mark.long) if each.__name__ in SLOW else each for each in PROGRAMS],
    ids=lambda program: program.__name__,
)
def test_a_program_takes_the_same_with_and_without_data(program, width):
    """16: nearly all is small, and computed; 128: weights and activations are not (64 KiB)."""
    real, hollow = outcome(program, width, data=True), outcome(program, width, data=False)
    assert real.operations.keys() == hollow.operations.keys()
    assert real.operations
    if program.__name__ in ESTIMATED:
        for stream, ops in real.operations.items():
            assert [op[:2] for op in ops] == [op[:2] for op in hollow.operations[stream]], stream
        assert hollow.end == pytest.approx(real.end, rel=0.05)
        return
    for stream, ops in real.operations.items():
        without = hollow.operations[stream]
        if program.__name__ in IN_ANY_ORDER:
            assert Counter(op[:3] for op in ops) == Counter(op[:3] for op in without), stream
            continue
        assert [op[:3] for op in ops] == [op[:3] for op in without], stream
        assert ops == without, f"times on {stream}"
    assert real.peaks == hollow.peaks
    assert real.end == hollow.end


def on_context(ctx: Any, rank: int, width: int) -> None:
    """Tensors of the context: they tell of looks."""
    x = ctx.full((width, width), float(rank + 1))
    for _ in range(2):
        y = (x @ x).relu().softmax(-1)
        ctx.distributed.all_reduce(y)
        gathered = ctx.zeros(WORLD * width, width)
        ctx.distributed.all_gather_into_tensor(gathered, y)
        x = x - 0.1 * gathered[:width]
    x.sum().item()


@pytest.mark.parametrize("isolation", ["greenlet", "carrier"])
@pytest.mark.parametrize("width", [16, 128])
def test_tensors_of_a_context_too(width, isolation):
    found = []
    for data in (True, False):
        with kernbench.simulate("dgx_h100", enable_data=data, log_limit=None) as ctx:
            ctx.multiprocessing.spawn(
                lambda rank, ctx=ctx: on_context(ctx, rank, width), nprocs=WORLD, isolation=isolation
            )
            log = [(op.rank, op.stream, op.name, op.nbytes, op.start, op.end) for op in ctx.engine.op_log.operations]
            found.append((sorted(log), [(each.sip, each.peak) for each in ctx.engine.op_log.ledgers], ctx.now()))
    assert found[0] == found[1]


# -- mixtures of experts: counts are balanced ------------------------------------------------------------------------------


def routed(program: Callable[..., Any], world: int, tokens: int, *, data: bool = False) -> dict[int, Any]:
    found: dict[int, Any] = {}
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            found[rank] = program(rank, world, tokens)

        ctx.multiprocessing.spawn(worker, nprocs=world)
    return found


@pytest.mark.parametrize("tokens", [512, 1024, 4096])
def test_every_expert_of_a_loop_gets_as_many_tokens(tokens):
    """512: indices are small, masks are not; 4096: neither is. Every token has as many experts as it should."""
    sizes = routed(moe_programs.loop_over_experts, 1, tokens)[0]
    assert sizes == [tokens * moe_programs.TOP // moe_programs.EXPERTS] * moe_programs.EXPERTS


@pytest.mark.parametrize("tokens", [64, 512, 1024, 4096])
@pytest.mark.parametrize(
    "program", [moe_programs.routing_map, moe_programs.sorted_by_expert], ids=lambda each: each.__name__
)
def test_what_ranks_send_each_other_agrees_and_is_balanced(program, tokens):
    """64: all is small, and what is drawn at random is known: sizes agree, and are what they are with data."""
    ranks = routed(program, WORLD, tokens)
    for rank, found in ranks.items():
        assert found["rows"] == [sum(found["sent"])] == [tokens * moe_programs.TOP]
        assert found["received"] == [ranks[other]["sent"][rank] for other in range(WORLD)]
        if tokens >= 512:
            assert found["sent"] == [tokens * moe_programs.TOP // WORLD] * WORLD


@pytest.mark.parametrize(
    "program", [moe_programs.routing_map, moe_programs.sorted_by_expert], ids=lambda each: each.__name__
)
def test_small_routers_are_computed(program):
    assert routed(program, WORLD, 64) == routed(program, WORLD, 64, data=True)
