"""Collectives on the clock: optimistic evaluation, sharing, demotion, and the traps of such simulators."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl.algorithms import direct_gather, pairwise_alltoall, ring_allreduce, ring_broadcast
from kernbench.ccl.config import load_ccl_config
from kernbench.ccl.lower import lower
from kernbench.sim_engine import GraphEngine, Operation, evaluate
from kernbench.sim_engine.plan import _run_rounds, member_ends
from kernbench.topology import resolve_topology

TOPOLOGY = resolve_topology().topology_obj


def plan_of(sips, count, schedule=None):
    schedule = schedule or ring_allreduce.build(len(sips))
    config = load_ccl_config().select("ring_allreduce")
    counts = np.diff(schedule.chunk_bounds(count))[schedule.chunk]
    return lower(schedule, TOPOLOGY, sips, config, counts=counts, itemsize=4, dtype="fp32")


def submit(engine, plan, starts, stream="comm"):
    parts = [
        Operation("all_reduce", "collective", rank=m, sip=m, stream=stream, enqueue=float(start))
        for m, start in enumerate(starts)
    ]
    return engine.submit_collective(plan, parts, [()] * len(parts)), parts


def alone(plan, starts):
    engine = GraphEngine(TOPOLOGY)
    run, parts = submit(engine, plan, starts)
    engine.run()
    assert run.alone
    return run, np.array([part.end for part in parts])


def shared(plan, starts):
    """The same plan, transfer by transfer."""
    engine = GraphEngine(TOPOLOGY)
    parts = [Operation("x", "collective", rank=m, sip=m, stream="c", enqueue=0.0) for m in range(plan.members)]
    run = engine.submit_collective(plan, parts, [()] * plan.members)
    engine._start_plan = lambda ready: (engine._sharing.__setitem__(ready, None), ready.start_shared())
    run.member_start[:] = starts
    engine.run()
    return run, np.array([part.end for part in parts])


@settings(max_examples=25, deadline=None)
@given(
    members=st.integers(1, 8),
    count=st.integers(0, 40_000),
    starts=st.lists(st.floats(0, 20e-6), min_size=8, max_size=8),
    broadcast=st.booleans(),
)
def test_evaluation_at_once_equals_flow_by_flow(members, count, starts, broadcast):
    schedule = ring_broadcast.build(members, 0) if broadcast else ring_allreduce.build(members)
    plan = plan_of(tuple(range(members)), count, schedule)
    starts = np.array(starts[:members])
    quick, quick_ends = alone(plan, starts)
    slow, slow_ends = shared(plan, starts)
    np.testing.assert_allclose(quick_ends, slow_ends, rtol=1e-9)
    if len(plan):
        np.testing.assert_allclose(quick.times.arrived, slow.times.arrived, rtol=1e-9)
    np.testing.assert_array_equal(member_ends(plan, starts), quick_ends)
    np.testing.assert_array_equal(_run_rounds(plan, starts, None), quick_ends)


@settings(max_examples=25, deadline=None)
@given(
    members=st.integers(1, 8),
    count=st.integers(0, 40_000),
    start=st.floats(0, 1.0),
    algorithm=st.sampled_from([ring_allreduce, ring_broadcast, pairwise_alltoall, direct_gather]),
)
def test_classes_of_transfers_give_the_same_bits(members, count, start, algorithm):
    root = {"root": members - 1} if "root" in inspect.signature(algorithm.build).parameters else {}
    plan = plan_of(tuple(range(members)), count, algorithm.build(members, **root))
    starts = np.full(members, start)
    expected = _run_rounds(plan, starts, None)
    for _ in range(3):  # the first time it is not worth it
        np.testing.assert_array_equal(member_ends(plan, starts), expected)
    assert "classes" in vars(plan)


def test_a_symmetric_ring_has_one_class_per_round():
    plan = plan_of(tuple(range(8)), 8 * 1000)
    assert len(plan) == 14 * 8
    assert len(plan.classes) == 14


def test_evaluation_is_the_longest_path():
    """Ends computed another way: a longest path over the plan's own graph of conditions, one transfer at a time."""
    plan = plan_of((0, 1, 2, 3, 4), 12_345)
    after_arrival, _, after_sent = plan.dependents
    begin = np.zeros(len(plan))
    for i in range(len(plan)):
        sent = begin[i] + plan.serial[i]
        for j in after_sent[i]:
            begin[j] = max(begin[j], sent)
        for j in after_arrival[i]:
            begin[j] = max(begin[j], sent + plan.latency[i])
    times = evaluate(plan, np.zeros(5))
    np.testing.assert_allclose(times.start, begin, rtol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e-6, 5e-6, 40e-6])
def test_contention_never_helps_and_bytes_are_conserved(offset):
    plan = plan_of(tuple(range(8)), 1 << 18)
    _, free = alone(plan, [0.0] * 8)
    engine = GraphEngine(TOPOLOGY)
    first, ours = submit(engine, plan, [0.0] * 8)
    _, theirs = submit(engine, plan, [offset] * 8, stream="other")
    engine.run()
    ends = np.array([part.end for part in ours])
    others = np.array([part.end for part in theirs])
    assert not first.alone
    assert (ends >= free * (1 - 1e-9)).all()
    assert (others >= (free + offset) * (1 - 1e-9)).all()
    # 2 x the bytes of one ring over each link: never quicker than the link allows
    link_bytes = 2 * plan.nbytes[plan.queue == 0].sum()
    bandwidth = TOPOLOGY.link_bandwidth[list(plan.queue_links[0])].min()
    assert max(ends.max(), others.max()) >= link_bytes / bandwidth
    # and the second half of a bandwidth-bound pair does not wait longer than in turns
    assert max(ends.max(), others.max()) <= 2 * free.max() + offset + 1e-6


def test_two_that_start_together_get_equal_shares():
    plan = plan_of(tuple(range(8)), 1 << 18)
    engine = GraphEngine(TOPOLOGY)
    _, ours = submit(engine, plan, [0.0] * 8)
    _, theirs = submit(engine, plan, [0.0] * 8, stream="other")
    engine.run()
    assert [part.end for part in ours] == pytest.approx([part.end for part in theirs])


def test_disjoint_collectives_do_not_touch():
    left, right = plan_of((0, 1), 1 << 16), plan_of((4, 5), 1 << 16)
    _, free = alone(left, [0.0] * 2)
    engine = GraphEngine(TOPOLOGY)
    first, ours = submit(engine, left, [0.0] * 2)
    second, _ = submit(engine, right, [0.0] * 2, stream="other")
    engine.run()
    assert first.alone
    assert second.alone
    assert [part.end for part in ours] == free.tolist()


def test_a_demoted_plan_keeps_its_past():
    plan = plan_of(tuple(range(8)), 1 << 18)
    free, _ = alone(plan, [0.0] * 8)
    at = 12e-6
    engine = GraphEngine(TOPOLOGY)
    run, _ = submit(engine, plan, [0.0] * 8)
    submit(engine, plan, [at] * 8, stream="other")
    engine.run()
    past = free.times.arrived <= at
    assert past.any()
    np.testing.assert_array_equal(run.times.arrived[past], free.times.arrived[past])
    assert (run.times.arrived[~past] >= free.times.arrived[~past] * (1 - 1e-9)).all()


def test_an_early_member_does_not_move_data_in_the_past():
    """Member 0 is ready at 1 us, but by the time member 3 shows up the clock is at 50 us."""
    plan = plan_of((0, 1, 2, 3), 4096, ring_broadcast.build(4, 0))
    engine = GraphEngine(TOPOLOGY)
    engine.at(50e-6, lambda: submit(engine, plan, [1e-6, 1e-6, 1e-6, 50e-6]))
    ends = []
    while engine.step():
        ends.append(engine.latest_end)
    assert min(end for end in ends if end) >= 50e-6


# -- traps -----------------------------------------------------------------------------------------------------------


def test_trap_a_two_rank_ring_whose_directions_meet_the_same_peer():
    """Rank 0 sends to 1 and 1 to 0, in queues and on links of their own: neither waits for the other's bytes."""
    plan = plan_of((0, 1), 1 << 16)
    assert len(plan.queue_links) == 2
    assert set(plan.queue_links[0]).isdisjoint(plan.queue_links[1])
    times = evaluate(plan, np.zeros(2))
    first_round = slice(0, 2)
    assert times.start[first_round].tolist() == [0.0, 0.0]
    assert times.arrived[0] == times.arrived[1]


def test_trap_a_start_is_stamped_when_the_channel_is_owned():
    """Two copies over one queue: the second starts when the first has left, not when it was asked for."""
    plan = plan_of((0, 1, 2), 1 << 16)
    times = evaluate(plan, np.zeros(3))
    for queue in range(len(plan.queue_links)):
        rows = np.flatnonzero(plan.queue == queue)
        assert (times.start[rows][1:] >= times.sent[rows][:-1]).all()


def test_trap_bandwidth_is_counted_once():
    """A copy of n bytes over a route takes n / bandwidth plus the latency: not once per link, not twice."""
    engine = GraphEngine(TOPOLOGY)
    route = TOPOLOGY.route(0, 2)
    assert len(route.links) > 1
    op = Operation("copy", "dma", rank=0, sip=0, stream="copy", enqueue=0.0)
    engine.submit_transfer(op, route.links, 1 << 20, latency=route.latency)
    engine.run()
    assert op.end == pytest.approx((1 << 20) / route.bandwidth + route.latency, rel=1e-12)


def test_two_copies_on_one_link_share_it():
    route = TOPOLOGY.route(0, 1)

    def ends(starts):
        engine = GraphEngine(TOPOLOGY)
        ops = [Operation("copy", "dma", rank=i, sip=i, stream="copy", enqueue=start) for i, start in enumerate(starts)]
        for op in ops:
            engine.submit_transfer(op, route.links, 1 << 20, latency=0.0)
        engine.run()
        return [op.end for op in ops]

    single = (1 << 20) / route.bandwidth
    assert ends([0.0]) == pytest.approx([single])
    assert ends([0.0, 0.0]) == pytest.approx([2 * single] * 2)
    assert ends([0.0, single / 2]) == pytest.approx([1.5 * single, 2 * single])
