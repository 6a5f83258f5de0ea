"""What a user reads when ranks do not fit together: at once, with ranks, operations and the user's own lines."""

from __future__ import annotations

import contextlib
import os
import re

import pytest

import kernbench
from kernbench import CollectiveMismatchError, DeadlockError, SpawnException

each_isolation = pytest.mark.parametrize("isolation", ["greenlet", "carrier"])


def failures(ctx, worker, nprocs=2, isolation="greenlet"):
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=nprocs, isolation=isolation)
    assert ctx._pending_worker_waits == []
    assert ctx._pending_collectives == []
    return caught.value.errors


def line_of(text):
    """Number of the line of this file that holds ``text`` as a comment."""
    with open(__file__) as lines:
        return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}"))


@each_isolation
def test_opposite_orders_show_the_cycle(ctx, isolation):
    def worker(rank):
        groups = [ctx.distributed.new_group([0, 1]), ctx.distributed.new_group([0, 1])]
        ctx.distributed.all_reduce(ctx.ones(4, 2), group=groups[rank])  # the blocked line
        ctx.distributed.all_reduce(ctx.ones(4, 2), group=groups[1 - rank])

    errors = failures(ctx, worker, isolation=isolation)
    assert set(errors) == {0, 1}
    assert all(isinstance(error, DeadlockError) for error in errors.values())
    text = str(errors[0])
    assert "Wait-for cycle: rank 0 -> rank 1 -> rank 0" in text
    for rank in (0, 1):
        assert (
            f"rank {rank}: waits in all_reduce #0 on group {rank + 1} [0, 1]: all_reduce(shape (4, 2), float32" in text
        )
        assert f"To go on: rank {1 - rank} must call all_reduce(shape (4, 2)" in text
    assert f"{os.path.relpath(__file__)}:{line_of('the blocked line')} in worker" in text


@each_isolation
def test_a_rank_that_ended_early_is_named(ctx, isolation):
    def worker(rank):
        if rank != 1:
            ctx.distributed.barrier()

    errors = failures(ctx, worker, nprocs=3, isolation=isolation)
    assert set(errors) == {0, 2}
    assert "rank 1: has ended (its function returned)" in str(errors[0])
    assert "To go on: rank 1 must call barrier" in str(errors[0])
    assert "Rank 1 never will" in str(errors[0])


def test_a_collective_in_one_branch_only(ctx):
    def worker(rank):
        if rank == 0:
            ctx.distributed.broadcast(ctx.ones(2), src=0)
        ctx.distributed.all_reduce(ctx.ones(2))

    errors = failures(ctx, worker, nprocs=3)
    assert set(errors) == {0, 1}  # rank 2 had not arrived
    assert all(isinstance(error, CollectiveMismatchError) for error in errors.values())
    text = str(errors[0])
    assert "collective #0 on the default group does not match between ranks 0 and 1" in text
    assert re.search(r"rank 0: broadcast\(shape \(2,\), float32, root 0.*\) at .*test_reports.py:\d+ in worker", text)
    assert re.search(r"rank 1: all_reduce\(shape \(2,\), float32, op sum.*\) at ", text)
    assert "No data has moved" in text


@pytest.mark.parametrize(
    ("call", "differing"),
    [
        (lambda ctx, rank: ctx.distributed.all_reduce(ctx.ones(2 + rank)), "shape"),
        (lambda ctx, rank: ctx.distributed.all_reduce(ctx.ones(2, dtype=("f16", "f32")[rank])), "dtype"),
        (lambda ctx, rank: ctx.distributed.all_reduce(ctx.ones(2), op=("sum", "max")[rank]), "reduction"),
        (lambda ctx, rank: ctx.distributed.broadcast(ctx.ones(2), src=rank), "root"),
    ],
)
def test_what_differs_is_named_and_no_data_moves(ctx, call, differing):
    seen = {}

    def worker(rank):
        try:
            call(ctx, rank)
        except CollectiveMismatchError as error:
            seen[rank] = str(error)

    ctx.multiprocessing.spawn(worker, nprocs=2)
    assert set(seen) == {0, 1}
    assert f"({differing} differ)" in seen[0]


def test_a_mismatch_that_nobody_waits_for_still_fails(ctx):
    def worker(rank):
        if rank == 0:
            ctx.distributed.all_reduce(ctx.ones(3), async_op=True)
        else:
            with pytest.raises(CollectiveMismatchError):
                ctx.distributed.all_reduce(ctx.ones(4))

    assert set(failures(ctx, worker)) == {0}


def test_an_asynchronous_collective_left_alone_is_the_failure_of_who_left_it(ctx):
    def worker(rank):
        if rank == 1:
            ctx.distributed.all_reduce(ctx.ones(4), async_op=True)

    errors = failures(ctx, worker)
    assert set(errors) == {1}
    assert isinstance(errors[1], DeadlockError)
    assert "To go on: rank 0 must call all_reduce" in str(errors[1])


@each_isolation
def test_a_polling_loop_that_cannot_end(ctx, isolation):
    def worker(rank):
        if rank == 0:
            work = ctx.distributed.all_reduce(ctx.ones(4), async_op=True)
            while not work.is_completed():
                pass

    errors = failures(ctx, worker, isolation=isolation)
    assert set(errors) == {0}
    assert isinstance(errors[0], DeadlockError)
    assert "whether 'all_reduce' is complete" in str(errors[0])


def test_a_polling_loop_outlasts_a_long_wait(ctx):
    """The others may take far longer than the polls that are granted to a loop that cannot end."""
    looks = []

    def worker(rank):
        if rank == 1:
            ctx.sleep(1.0)
        work = ctx.distributed.all_reduce(ctx.ones(4), async_op=True)
        while not work.is_completed():
            looks.append(rank)
        assert ctx.now() > 1.0

    ctx.multiprocessing.spawn(worker, nprocs=2)
    assert len(looks) < 1000


def test_a_rank_may_catch_its_deadlock_and_go_on(ctx):
    finished = []

    def worker(rank):
        if rank == 0:
            with pytest.raises(DeadlockError):
                ctx.distributed.barrier()
        finished.append(rank)

    ctx.multiprocessing.spawn(worker, nprocs=2)
    assert sorted(finished) == [0, 1]


def test_exceptions_are_not_shared_between_ranks(ctx):
    errors = failures(
        ctx, lambda rank: ctx.distributed.barrier(ctx.distributed.new_group([0, 1, 2])) if rank < 2 else None, 3
    )
    assert errors[0] is not errors[1]


def test_a_long_list_of_ranks_is_cut():
    with kernbench.simulate(nodes=16) as ctx:
        errors = failures(ctx, lambda rank: ctx.distributed.barrier() if rank else None, nprocs=128)
        assert "... and 64 more ranks" in str(errors[1])
        assert len(errors) == 127


def test_the_place_of_a_rank_with_anothers_report_is_a_line_of_the_program():
    def body(rank):
        with contextlib.ExitStack() as at_the_end:
            if rank != 2:
                at_the_end.callback(ctx.distributed.barrier)

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(body, nprocs=3, isolation="greenlet")
    place = r"-- Process 1: DeadlockError, in the report of process 0 above; at .*test_reports\.py:\d+ in body$"
    assert re.search(place, str(caught.value), re.MULTILINE)


def test_a_report_of_many_ranks_is_shown_once():
    def body(rank):
        if rank != 2:
            ctx.distributed.barrier()

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(body, nprocs=8, isolation="greenlet")
    text = str(caught.value)
    assert text.count("no rank can run and nothing is in flight") == 1
    assert text.count("-- Process ") == 2  # whose report it is, and the others, whose tracebacks are equal
    assert text.count("-- Process 1, 3, 4, 5, 6, 7: DeadlockError, in the report of process 0 above; at ") == 1
    assert all("no rank can run" in str(error) for error in caught.value.errors.values())
