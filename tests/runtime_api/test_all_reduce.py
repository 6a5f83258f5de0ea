"""All-reduce of simulated ranks, bit for bit against an oracle that folds in the ring's own order."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.ccl.config import load_ccl_config

OPS = {
    "sum": torch.add, "avg": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum,
}  # fmt: skip
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int32, torch.int64)


def ring_oracle(inputs, op):
    """Chunk c (of n, the first ``count % n`` one longer) is folded as ((x_c . x_c+1) . x_c+2) ... around the ring."""
    world = len(inputs)
    count = inputs[0].numel()
    flat = [each.reshape(-1) for each in inputs]
    result = torch.empty_like(flat[0])
    begin = 0
    for chunk in range(world):
        end = begin + count // world + (1 if chunk < count % world else 0)
        total = flat[chunk][begin:end].clone()
        for step in range(1, world):
            total = OPS[op](total, flat[(chunk + step) % world][begin:end])
        if op == "avg":
            total = total / world if total.is_floating_point() else torch.div(total, world, rounding_mode="trunc")
        result[begin:end] = total
        begin = end
    return result.reshape(inputs[0].shape)


def make(dtype, *shape, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    return torch.randint(-7, 8, shape, generator=generator, dtype=dtype)


def assert_same_bits(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    as_bytes = [each.contiguous().view(torch.uint8) if each.numel() else each for each in (found, expected)]
    assert torch.equal(*as_bytes)


def all_reduce(inputs, op, *, ccl=None, nodes=None, in_place=True, plain=False):
    outputs = {}

    def worker(rank, ctx):
        source = inputs[rank].clone() if plain else ctx.tensor(inputs[rank])
        out = None if in_place else torch.full_like(source, 3)
        ctx.distributed.all_reduce(source, op=op, out=out)
        outputs[rank] = (source if in_place else out).clone()
        if not in_place:
            assert_same_bits(source.cpu(), inputs[rank])

    with kernbench.simulate(nodes=nodes, ccl=ccl) as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=len(inputs), isolation="greenlet")
    return [outputs[rank].as_subclass(torch.Tensor) for rank in range(len(inputs))]


@pytest.mark.parametrize("world", [*range(1, 10), 16, 64])
@pytest.mark.parametrize("count", [0, 1, 5, 64, 1000])
def test_world_sizes_and_counts(world, count):
    inputs = [make(torch.float32, count, seed=rank) for rank in range(world)]
    for found in all_reduce(inputs, "sum", nodes=-(-world // 8)):
        assert_same_bits(found, ring_oracle(inputs, "sum"))


@pytest.mark.long
def test_thousands_of_ranks_with_a_gpu_each():
    world, found = 4096, set()

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(256, device="cuda")
        dist.all_reduce(x)
        found.add(float(x.sum()))

    with kernbench.simulate("dgx_h100", nodes=world // 8) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world)
    assert found == {256.0 * world}


@pytest.mark.parametrize(("dtype", "op"), list(itertools.product(FLOATS + INTEGERS, OPS)))
@pytest.mark.parametrize("in_place", [True, False])
def test_dtypes_and_ops(dtype, op, in_place):
    inputs = [make(dtype, 7, 11, seed=rank) for rank in range(5)]
    for found in all_reduce(inputs, op, in_place=in_place):
        assert_same_bits(found, ring_oracle(inputs, op))


@pytest.mark.parametrize("count", [300_000, 300_001])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_long_buffers_take_another_way_to_the_same_bits(world, count):
    inputs = [make(torch.float32, count, seed=rank) for rank in range(world)]
    for found in all_reduce(inputs, "sum"):
        assert_same_bits(found, ring_oracle(inputs, "sum"))


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("backpressure", ["sleep", "poll"])
def test_queues_do_not_change_values(kind, slots, backpressure):
    config = load_ccl_config()
    entry = config.algorithms["ring_allreduce"].model_copy(
        update={"buffer_kind": kind, "n_slots": slots, "backpressure": backpressure, "slot_size": 64}
    )
    config = config.model_copy(update={"algorithms": {**config.algorithms, "ring_allreduce": entry}})
    inputs = [make(torch.bfloat16, 777, seed=rank) for rank in range(4)]
    for found in all_reduce(inputs, "sum", ccl=config):
        assert_same_bits(found, ring_oracle(inputs, "sum"))


def test_what_is_not_contiguous_is_refused_by_nccl_and_reduced_by_gloo():
    inputs = [make(torch.float32, 6, 10, seed=rank) for rank in range(4)]
    expected = ring_oracle([each.t().contiguous() for each in inputs], "sum").t()
    outputs = []

    def worker(rank, ctx):
        x = ctx.tensor(inputs[rank]).t()
        with pytest.raises(ValueError, match=r"Tensors must be contiguous.*shape \(10, 6\) and strides \(1, 10\)"):
            ctx.distributed.all_reduce(x)
        ctx.distributed.all_reduce(x, group=ctx.distributed.new_group(backend="gloo"))
        outputs.append(x.t().clone().as_subclass(torch.Tensor))

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=4)
    assert len(outputs) == 4
    for found in outputs:
        assert_same_bits(found.cpu(), expected)


def test_plain_cpu_tensors_are_reduced_in_place():
    inputs = [make(torch.float32, 33, seed=rank) for rank in range(4)]
    for found in all_reduce(inputs, "max", plain=True):
        assert_same_bits(found, ring_oracle(inputs, "max"))


def test_leaves_that_require_grad():
    leaves = [torch.full((4,), float(rank), requires_grad=True) for rank in range(4)]

    def worker(rank, ctx):
        ctx.distributed.all_reduce(leaves[rank])

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=4)
    for leaf in leaves:
        assert leaf.requires_grad
        assert leaf.is_leaf
        assert leaf.tolist() == [6.0] * 4


def test_a_scalar_and_an_argument_that_equals_a_dimension():
    """A fill value, a count and a world size that are all 4 must not be taken for one another."""
    with kernbench.simulate() as ctx:

        def worker(rank):
            x = ctx.full((4, 4), 4)
            ctx.distributed.all_reduce(x)
            scalar = ctx.tensor(4.0)
            ctx.distributed.all_reduce(scalar)
            assert x.tolist() == [[16] * 4] * 4
            assert scalar.item() == 16.0

        ctx.multiprocessing.spawn(worker, nprocs=4)


def test_sub_groups_and_several_in_flight(ctx):
    results = {}

    def worker(rank):
        halves = [ctx.distributed.new_group([0, 1, 2]), ctx.distributed.new_group([3, 4, 5])]
        parity = [ctx.distributed.new_group([0, 2, 4]), ctx.distributed.new_group([1, 3, 5])]
        x, y, z = (ctx.full((10,), float(10**power * rank)) for power in range(3))
        works = [
            ctx.distributed.all_reduce(x, group=halves[rank // 3], async_op=True),
            ctx.distributed.all_reduce(y, group=parity[rank % 2], async_op=True),
            ctx.distributed.all_reduce(z, async_op=True),
        ]
        for work in reversed(works):
            assert work.wait()
        ctx.synchronize()  # the streams wait, the host does not
        assert all(work.is_completed() for work in works)
        results[rank] = (x[0].item(), y[0].item(), z[0].item())

    ctx.multiprocessing.spawn(worker, nprocs=6)
    expected = {rank: (3.0 if rank < 3 else 12.0, 90.0 if rank % 2 else 60.0, 1500.0) for rank in range(6)}
    assert results == expected


def test_group_queries(ctx):
    def worker(rank):
        group = ctx.distributed.new_group([3, 1])
        assert ctx.distributed.get_process_group_ranks(group) == [1, 3]
        assert ctx.distributed.get_rank(group) == {1: 0, 3: 1}.get(rank, -1)
        assert ctx.distributed.get_world_size(group) == (2 if rank in (1, 3) else -1)
        if rank not in (1, 3):
            with pytest.raises(kernbench.KernbenchError, match=f"rank {rank} called all_reduce on group 1 "):
                ctx.distributed.all_reduce(ctx.ones(1), group=group)

    ctx.multiprocessing.spawn(worker, nprocs=4)


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_broadcast(ctx, root, world):
    root %= world
    results = []

    def worker(rank):
        x = ctx.arange(21) * (rank + 1)
        ctx.distributed.broadcast(x, src=root)
        results.append(x.tolist())

    ctx.multiprocessing.spawn(worker, nprocs=world)
    assert results == [[(root + 1) * each for each in range(21)]] * world


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sum", 5.0), ("SUM", 5.0), ("prod", 6.0), ("product", 6.0), ("mean", 2.5), (torch.distributed.ReduceOp.MAX, 3.0)],
)
def test_reductions_by_any_name(ctx, name, expected):
    def worker(rank):
        x = ctx.full((3,), rank + 2.0)
        ctx.distributed.all_reduce(x, op=name)
        assert x.tolist() == [expected] * 3

    ctx.multiprocessing.spawn(worker, nprocs=2)


def test_unknown_reductions_say_what_there_is(ctx):
    with pytest.raises(kernbench.SpawnException, match="unknown reduction 'median': expected one of sum, product"):
        ctx.multiprocessing.spawn(lambda rank: ctx.distributed.all_reduce(ctx.ones(3), op="median"), nprocs=1)


def test_a_small_all_reduce_takes_few_calls_of_python(ctx):
    """Each call of ours is a tenth of a microsecond for each rank: what is the same for all calls is found out once."""
    ranks, repeats = 8, 10
    tensors = [torch.zeros(256) for _ in range(ranks)]
    counts = []
    counting = [False]

    def count(frame, event, arg):
        if event == "call" and counting[0]:
            counts.append(frame.f_code.co_name)

    def worker(rank):
        sys.setprofile(count)
        for _ in range(3):
            ctx.distributed.all_reduce(tensors[rank])
        counting[0] = True
        for _ in range(repeats):
            ctx.distributed.all_reduce(tensors[rank])
        counting[0] = False
        sys.setprofile(None)

    sys.setprofile(count)  # main runs what the ranks have called
    try:
        ctx.multiprocessing.spawn(worker, nprocs=ranks, isolation="greenlet")
    finally:
        sys.setprofile(None)
    assert 20 < len(counts) / ranks / repeats <= 85
