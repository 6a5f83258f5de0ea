"""Schedules: what a builder refuses, what algorithms do to values and to links."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl.algorithms import ring_allreduce, ring_broadcast
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.registry import algorithm_module, build_schedule
from kernbench.ccl.schedule import ScheduleBuilder
from kernbench.ccl.values import run_all_reduce, run_blocks, run_stacked
from kernbench.errors import ConfigError
from tests.ccl.literal import run_rounds


@pytest.mark.parametrize(
    ("transfers", "text"),
    [
        (((0, 1), (1, 0), (0, 5)), "chunk out of range"),
        (((0, 4), (1, 0), (0, 0)), "src out of range"),
        (((0, 1), (1, 1), (0, 1)), "sends to itself"),
        (((0, 0), (1, 1), (0, 1)), "two transfers use one queue"),
        (((0, 2), (1, 1), (0, 0)), "written twice"),
    ],
)
def test_the_builder_refuses_impossible_rounds(transfers, text):
    with pytest.raises(ValueError, match=text):
        ScheduleBuilder("test", members=3, chunks=2).round(*transfers, reduce=False)


def test_two_directions_between_the_same_two_are_two_channels():
    builder = ScheduleBuilder("both ways round", members=2, chunks=2)
    builder.round([0, 0], [1, 1], [0, 1], reduce=True, channel=[0, 1])
    assert len(builder.build()) == 2


@settings(max_examples=60, deadline=None)
@given(members=st.integers(1, 12))
def test_ring_all_reduce_is_optimal_in_bandwidth(members):
    schedule = ring_allreduce.build(members)
    assert len(schedule.rounds) - 1 == 2 * (members - 1)
    assert np.bincount(schedule.src, minlength=members).tolist() == [2 * (members - 1)] * members
    assert ((schedule.dst - schedule.src) % members == (1 % members)).all()
    expected = (np.arange(members)[:, None] + np.arange(members)) % members
    assert np.array_equal(schedule.final_chains, expected)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 500), chunks=st.integers(1, 70))
def test_chunks_partition_the_buffer(count, chunks):
    bounds = ScheduleBuilder("test", members=1, chunks=chunks).build().chunk_bounds(count)
    lengths = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == count
    assert lengths.max() - lengths.min() <= 1
    assert (np.diff(lengths) <= 0).all()


@settings(max_examples=60, deadline=None)
@given(
    members=st.integers(2, 7),
    count=st.integers(1, 90),
    op=st.sampled_from(list(ReduceOp)),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int32]),
    seed=st.integers(0, 99),
)
def test_the_three_ways_to_values_agree_to_the_bit(members, count, op, dtype, seed):
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and dtype.is_floating_point:
        return
    schedule = ring_allreduce.build(members)
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randint(-9, 9, (count,), generator=generator).to(dtype) / (1 if dtype == torch.int32 else 7)
              for _ in range(members)]  # fmt: skip
    inputs = [each.to(dtype) for each in inputs]
    ways = [
        lambda out: run_rounds(schedule, inputs, out, op),
        lambda out: run_blocks(schedule, schedule.final_chains, inputs, out, op),
        lambda out: run_stacked(schedule, inputs, out, op),
        lambda out: run_all_reduce(schedule, inputs, out, op),
    ]
    results = []
    for way in ways:
        outputs = [torch.empty_like(each) for each in inputs]
        way(outputs)
        results.append(torch.stack(outputs))
    for result in results[1:]:
        assert torch.equal(result.view(torch.uint8), results[0].view(torch.uint8))


def test_a_tree_is_not_a_chain_and_runs_round_by_round():
    """Recursive doubling over 4 members folds ((0 1) (2 3)): the values take the general way."""
    builder = ScheduleBuilder("recursive doubling", members=4, chunks=1)
    for distance in (1, 2):
        member = np.arange(4)
        builder.round(member, member ^ distance, 0, reduce=True)
    schedule = builder.build()
    assert schedule.final_chains is None
    inputs = [torch.full((3,), 10.0**power) for power in range(4)]
    outputs = [torch.empty(3) for _ in range(4)]
    run_all_reduce(schedule, inputs, outputs, ReduceOp.SUM)
    assert [each.tolist() for each in outputs] == [[1111.0] * 3] * 4


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("root", [0, 1, 4])
def test_broadcast_reaches_everybody_once_per_chunk(members, root):
    root %= members
    schedule = ring_broadcast.build(members, root)
    arrivals = np.zeros((members, schedule.chunks), dtype=int)
    np.add.at(arrivals, (schedule.dst, schedule.chunk), 1)
    assert (arrivals[root] == 0).all()
    assert (np.delete(arrivals, root, axis=0) == 1).all()


def test_what_is_wrong_with_a_module_is_said():
    with pytest.raises(ConfigError, match="cannot be imported"):
        algorithm_module("kernbench.ccl.algorithms.no_such")
    with pytest.raises(ConfigError, match="has no COLLECTIVE"):
        algorithm_module("kernbench.errors")
    with pytest.raises(ConfigError, match="for a root, and the collective has none"):
        build_schedule("kernbench.ccl.algorithms.ring_broadcast", 2, None)
