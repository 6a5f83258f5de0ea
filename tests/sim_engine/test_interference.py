"""Kernels beside collectives: how much longer they take, and that nothing else is disturbed."""

from __future__ import annotations

import pytest
import torch

import kernbench
from kernbench.sim_engine.interference import NO_LOAD, Interference, Load, load
from kernbench.sim_engine.operation import Operation


def kernel(kind="gemm", sip=0):
    """What interference asks of a kernel: its SIP and its kind."""
    return sip, kind


def launched():
    return Operation("kernel", "gemm", 0, 0, "compute", 0.0, 1.0)


def collective(enqueue=0.0, sip=0):
    return Operation("all_reduce", "collective", 0, sip, "comm", enqueue)


def test_a_load_takes_a_pe_for_each_channel_and_the_bandwidth_of_its_operands():
    found = load(1e-3, channels=12, pes=132, traffic=0.5e9, bandwidth=3e12)
    assert found == Load(1e-3, pytest.approx(0.1), pytest.approx(0.5e12 / 2.5e12))
    assert load(1e-3, channels=8, pes=8, traffic=1e12, bandwidth=1e12)[1:] == (0.5, 0.5)


@pytest.mark.parametrize(
    ("start", "seconds", "took"),
    [
        (0.0, 1.0, 1.0),  # over before it begins
        (2.0, 1.0, 1.25),  # inside
        (1.0, 2.0, 2.25),  # the second half
        (5.0, 1.6, 1.85),  # the first 1.25 s, in which it does what takes 1 s
        (1.0, 10.0, 11.0),  # all of it: 5 s, in which it does what takes 4 s
        (8.0, 1.0, 1.0),  # after it
    ],
)
def test_a_kernel_is_slower_as_long_as_a_collective_runs(start, seconds, took):
    """A collective from 2 s to 7 s, beside which products take a quarter longer; the fourth kernel meets its last 2 s."""
    beside = Interference()
    beside.expect(collective(2.0), (), Load(5.0 if start != 5.0 else 4.25, 0.25, 0.5))
    assert beside.stretched(*kernel(), start, seconds) == pytest.approx(took)


@pytest.mark.parametrize(
    ("start", "seconds", "took"),
    [
        (3.0, 1.0, 2.0),  # inside: the blocks without a PE begin when the others have ended
        (6.0, 2.0, 3.0),  # they begin when the collective ends, a second later
        (1.0, 2.0, 2.25),  # it has all PEs when the collective begins, which takes its share
        (7.0, 1.0, 1.0),  # after it
    ],
)
def test_a_persistent_product_does_not_spread_over_the_pes_that_are_left(start, seconds, took):
    """A collective from 2 s to 7 s."""
    beside = Interference()
    beside.persistent = True
    beside.expect(collective(2.0), (), Load(5.0, 0.25, 0.5))
    assert beside.stretched(*kernel(), start, seconds) == pytest.approx(took)
    if start < 7:
        assert beside.stretched(*kernel("attention"), start, seconds) == pytest.approx(seconds * 1.25, rel=0.3)


def test_what_is_bound_by_memory_has_a_share_of_its_own_and_other_sips_none():
    beside = Interference()
    beside.expect(collective(), (), Load(10.0, 0.25, 0.5))
    assert beside.stretched(*kernel("math"), 0.0, 1.0) == pytest.approx(1.5)
    assert beside.stretched(*kernel(sip=1), 0.0, 1.0) == 1.0
    beside.clear()
    assert beside.stretched(*kernel("math"), 0.0, 1.0) == 1.0


def test_a_collective_begins_when_what_it_waits_for_has_ended():
    beside = Interference()
    first, second, before = collective(), collective(1.0), launched()
    beside.expect(first, (before,), Load(2.0, 0.5, 0.5))
    beside.expect(second, (first,), Load(2.0, 0.1, 0.1))
    assert beside.stretched(*kernel(), 4.0, 1.0) == 1.0  # not known yet
    before.resolve(0.0, 3.0)  # so they run from 3 to 5 and from 5 to 7 s
    assert beside.stretched(*kernel(), 3.0, 1.0) == pytest.approx(1.5)
    assert beside.stretched(*kernel(), 5.5, 1.0) == pytest.approx(1.1)
    assert beside.stretched(*kernel(), 7.0, 1.0) == 1.0
    beside.expect(collective(8.0), (), NO_LOAD)
    assert beside.stretched(*kernel(), 8.0, 1.0) == 1.0


def test_a_host_that_has_posted_thousands_ahead():
    beside, before = Interference(), launched()
    posted = [collective() for _ in range(3000)]
    for op, waited in zip(posted, [before, *posted], strict=False):
        beside.expect(op, (waited,), Load(1.0, 0.25, 0.25))
    assert beside.stretched(*kernel(), 0.0, 1.0) == 1.0
    before.resolve(0.0, 1.0)
    for second in range(1, 3000):
        assert beside.stretched(*kernel(), float(second), 1.0) == pytest.approx(1.25)
    assert beside.stretched(*kernel(), 3000.0, 1.0) == pytest.approx(1.2)  # its last part is alone
    assert beside.stretched(*kernel(), 3001.0, 1.0) == 1.0


def steps(beside: bool, system: str, ranks: int = 8):
    """Seconds of products beside, or after, an all-reduce of 128 MiB, of each rank."""
    found = {}

    def worker(rank):
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl")
        x = torch.empty(1 << 26, dtype=torch.bfloat16, device="cuda")
        a = torch.empty(2048, 4096, dtype=torch.bfloat16, device="cuda")
        work = torch.distributed.all_reduce(x, async_op=True)
        if not beside:
            work.wait()
        for _ in range(3):
            a @ a.t()
        work.wait()

    with kernbench.simulate(system, enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        for op in ctx.engine.op_log.operations:
            if op.kind == "gemm":
                found.setdefault(op.rank, []).append(op.duration)
    return found


@pytest.mark.parametrize(("system", "longer"), [("dgx_h100", 2.0), ("dgx_a100", 108 / (108 - 24))])
def test_products_beside_an_all_reduce_have_the_pes_that_its_channels_leave(system, longer):
    """Those of an H100 are persistent and need a second wave; those of an A100 have 84 of 108 PEs."""
    alone, beside = steps(False, system), steps(True, system)
    assert alone == {rank: [alone[0][0]] * 3 for rank in range(8)}
    for rank in range(8):
        assert beside[rank] == [pytest.approx(alone[0][0] * longer)] * 3


def test_collectives_that_have_ended_are_not_kept_where_no_kernel_runs():
    """What a later kernel meets is what it would have met."""
    beside = Interference()
    for at in range(10_000):
        op = collective(float(at))
        beside.expect(op, (), Load(0.75, 0.25, 0.5))
        op.end = at + 0.5  # it was quicker than expected
    assert len(beside.posted[0]) < 100
    assert len(beside._by_operation) < 100
    assert beside.stretched(*kernel(), 9999.0, 1.0) == pytest.approx(1.15)


def test_of_collectives_that_have_not_ended_none_is_forgotten():
    """A host has posted many, one behind the other, before the first one runs."""
    beside = Interference()
    ops = [collective(0.0)]
    beside.expect(ops[0], (), Load(1.0, 0.25, 0.5))
    for _ in range(200):
        ops.append(collective(0.0))
        beside.expect(ops[-1], (ops[-2],), Load(1.0, 0.25, 0.5))
    assert len(beside.posted[0]) == len(ops)
    for at, op in enumerate(ops[:100], 1):
        op.end = float(at)
    late = collective(100.0)
    beside.expect(late, (ops[-1],), Load(1.0, 0.25, 0.5))
    assert len(beside.posted[0]) == 102
    assert beside.stretched(*kernel(), 100.5, 1.0) == pytest.approx(1.25)
