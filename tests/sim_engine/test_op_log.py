"""The op log: what it keeps, and what it says about the rest."""

from __future__ import annotations

import pytest

import kernbench
from kernbench.errors import ConfigError
from kernbench.trace.timeline import Timeline


def run(calls: int, **options):
    with kernbench.simulate(**options) as ctx:

        def worker(rank):
            x = ctx.ones(8)
            for _ in range(calls):
                x += 1
                ctx.distributed.all_reduce(x)

        ctx.multiprocessing.spawn(worker, nprocs=2, isolation="greenlet")
        return ctx


def test_by_default_everything_of_a_short_program_is_kept():
    log = run(20).engine.op_log
    assert log.dropped == 0
    assert log.note == ""
    assert len(log.collectives) == 20


def test_the_last_operations_are_kept_with_what_belongs_to_them():
    full, kept = run(100, log_limit=None), run(100, log_limit=40)
    everything, log = full.engine.op_log, kept.engine.op_log
    assert 40 <= len(log.operations) <= 50
    assert log.dropped + len(log.operations) == len(everything.operations)
    last = everything.operations[log.dropped :]
    assert [(op.name, op.rank, op.start, op.end) for op in log.operations] == [
        (op.name, op.rank, op.start, op.end) for op in last
    ]
    assert kept.now() == full.now()
    # from `begin` on nothing is missing
    assert [trace.name for trace in log.collectives if trace.run.last_start >= log.begin] == [
        trace.name for trace in everything.collectives if trace.run.last_start >= log.begin
    ]
    assert [wait[:3] for wait in log.waits if wait[2] >= log.begin] == [
        wait[:3] for wait in everything.waits if wait[2] >= log.begin
    ]
    note = Timeline.of(kept).note
    assert f"the first {log.dropped} operations" in note
    assert "log_limit" in note


def test_waits_alone_are_bounded_too():
    with kernbench.simulate(log_limit=100) as ctx:
        for _ in range(1000):
            ctx.sleep(1e-6)
        assert len(ctx.engine.op_log.waits) <= 125
        assert ctx.engine.op_log.begin > 0


def test_a_limit_is_a_positive_number():
    with pytest.raises(ConfigError, match="log_limit=0"), kernbench.simulate(log_limit=0):
        pass


@pytest.mark.parametrize("limit", [None, 40])
def test_columns_say_what_the_operations_do(limit):
    operations = run(100, log_limit=limit).engine.op_log.operations
    log = operations.columns()
    assert [
        (log.names[name], log.kinds[kind], rank, start, end, nbytes)
        for name, kind, rank, start, end, nbytes in zip(
            *(column.tolist() for column in (log.name, log.kind, log.rank, log.start, log.end, log.nbytes)), strict=True
        )
    ] == [(op.name, op.kind, -1 if op.rank is None else op.rank, op.start, op.end, op.nbytes) for op in operations]
    assert log.is_kind("collective").sum() == sum(op.kind == "collective" for op in operations)
    assert log.ended.all()
