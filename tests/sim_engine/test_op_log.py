"""The op log: what it keeps, and what it says about the rest."""

from __future__ import annotations

import gc

import pytest
import torch

import kernbench
from kernbench.errors import ConfigError
from kernbench.sim_engine import Operation
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


def test_what_is_over_is_no_object_and_says_the_same():
    with kernbench.simulate() as ctx:

        def worker(rank):
            x, y = torch.ones(8), ctx.ones(8)
            for _ in range(20):
                ctx.distributed.all_reduce(x)  # the host waits, as for all of the host
                ctx.distributed.all_reduce(y)
                ctx.sleep(1e-6 * rank)

        ctx.multiprocessing.spawn(worker, nprocs=2, isolation="greenlet")
    log = ctx.engine.op_log
    assert not any(type(entry) is tuple for entry in log.operations.recent if entry.kind == "collective")
    fields = ("name", "kind", "rank", "sip", "stream", "enqueue", "start", "end", "duration", "host", "nbytes", "spread",
              "detail", "interval", "done")  # fmt: skip
    before = [({name: getattr(op, name) for name in fields}, tuple(op.operands)) for op in log.operations]
    waits = [(rank, begin, end, what.name, what.kind, sip) for rank, begin, end, what, sip in log.waits.recent]
    assert waits
    log.fold()
    assert all(type(entry) is tuple for entry in log.operations.entries())
    assert [({name: getattr(op, name) for name in fields}, tuple(op.operands)) for op in log.operations] == before
    assert [(rank, begin, end, what.name, what.kind, sip) for rank, begin, end, what, sip in log.waits] == waits
    assert log.waits[-1][:3] == log.waits[len(waits) - 1][:3] == waits[-1][:3]


def operations_alive() -> list[Operation]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Operation]


@pytest.mark.long  # seconds
def test_a_long_log_keeps_no_objects_alive():
    before = operations_alive()  # of simulations that other tests keep
    ctx = run(5000)
    assert len(ctx.engine.op_log.operations) >= 10_000
    ctx.engine.op_log.fold()
    others = {id(each) for each in before}
    kept = [each for each in operations_alive() if id(each) not in others]
    assert len(kept) < 10_000 / 4  # what has come since the log's waits were folded, and the ranks' last calls


def test_what_columns_refer_to_goes_with_the_last_that_refers_to_it():
    operations = run(100, log_limit=40).engine.op_log.operations
    operations.fold()
    assert len(operations._by_number) < 60  # a title for each collective that is kept, and what all have in common
    everything = run(100, log_limit=None).engine.op_log.operations
    assert [op.detail for op in operations] == [op.detail for op in everything[-len(operations) :]]
