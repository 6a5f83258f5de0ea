"""What goes wrong is said at once, with ranks, calls and lines."""

from __future__ import annotations

import datetime
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.torch_backend.process_groups.flight_recorder import write_flight_record
from tests.torch_backend.conftest import Ranks


def failing(body: Any, world_size: int = 3, **init: Any) -> dict[int, BaseException]:
    """The root causes of ``body(rank)`` in every rank."""

    def worker(rank: int) -> None:
        dist.init_process_group("gloo", **init)
        body(rank)

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=world_size)
    return {rank: error for rank, error in caught.value.errors.items() if error is not None}


def test_a_receive_without_a_send() -> None:
    def body(rank: int) -> None:
        if rank == 0:
            dist.recv(torch.zeros(2), 1)
        else:
            dist.barrier()

    errors = failing(body)
    assert set(errors) == {0, 1, 2}
    text = str(errors[0])
    assert isinstance(errors[0], kernbench.DeadlockError)
    assert "Wait-for cycle: rank 0 -> rank 1 -> rank 0" in text
    assert "rank 1 must send to rank 0" in text
    assert re.search(r"rank 0: waits in recv from rank 1 .*test_explanations\.py:\d+ in body", text)


def test_a_collective_in_one_branch() -> None:
    def body(rank: int) -> None:
        dist.all_reduce(torch.ones(2))
        if rank != 2:
            dist.all_reduce(torch.ones(3))

    errors = failing(body)
    assert set(errors) == {0, 1}
    assert "rank 2 must call all_reduce(shape (3,)" in str(errors[0])
    assert "Rank 2 never will: it has ended" in str(errors[0])


@pytest.mark.parametrize(
    ("calls", "differing"),
    [
        ((lambda: dist.all_reduce(torch.ones(2)), lambda: dist.all_reduce(torch.ones(3))), "shape"),
        ((lambda: dist.all_reduce(torch.ones(2, 3)), lambda: dist.all_reduce(torch.ones(3, 2))), "shape"),
        ((lambda: dist.all_reduce(torch.ones(2)), lambda: dist.all_reduce(torch.ones(2).double())), "dtype"),
        (
            (lambda: dist.all_reduce(torch.ones(2)), lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX)),
            "reduction",
        ),
        ((lambda: dist.broadcast(torch.ones(2), 0), lambda: dist.broadcast(torch.ones(2), 1)), "root"),
        ((lambda: dist.all_reduce(torch.ones(2)), lambda: dist.broadcast(torch.ones(2), 0)), "op"),
    ],
    ids=["shape", "layout", "dtype", "reduction", "root", "op"],
)
def test_mismatches_name_both_sides(calls: Any, differing: str) -> None:
    errors = failing(lambda rank: calls[rank](), world_size=2)
    assert {type(error) for error in errors.values()} == {kernbench.CollectiveMismatchError}
    assert differing in str(errors[0]).splitlines()[0]
    assert "rank 0:" in str(errors[0])
    assert "rank 1:" in str(errors[0])


def test_axes_of_one_element_need_not_agree(ranks: Ranks) -> None:
    """A norm that a member has as a number, and another one as a list of one, as pipelines do that clip gradients."""

    def body() -> list[object]:
        rank = dist.get_rank()
        norm = torch.full((1,) if rank else (), rank + 1.0)
        dist.all_reduce(norm)
        table = torch.full((3, 1) if rank else (1, 3), float(rank))
        dist.broadcast(table, 1)
        parts = [torch.empty(()) for _ in range(2)]
        dist.all_gather(parts, torch.full((), rank + 1.0) if rank else torch.ones(1))
        return [norm.tolist(), table.tolist(), [part.item() for part in parts]]

    assert ranks(body, 2) == [
        [3.0, [[1.0, 1.0, 1.0]], [1.0, 2.0]],
        [[3.0], [[1.0], [1.0], [1.0]], [1.0, 2.0]],
    ]


def test_messages_that_do_not_fit() -> None:
    def body(rank: int) -> None:
        dist.send(torch.ones(2), 1) if rank == 0 else dist.recv(torch.ones(3), 0)

    errors = failing(body, world_size=2)
    assert {type(error) for error in errors.values()} == {kernbench.CollectiveMismatchError}


def test_timeouts_run_on_the_virtual_clock() -> None:
    def body(rank: int) -> None:
        begin = time.monotonic()
        if rank == 0:
            time.sleep(3600.0)
        try:
            dist.barrier()
        finally:
            if rank == 1:
                assert time.monotonic() - begin == pytest.approx(2.0, abs=1e-3)

    errors = failing(body, timeout=datetime.timedelta(seconds=2))
    assert set(errors) == {1, 2}
    assert "Timed out waiting 2000ms" in str(errors[1])
    assert "rank 0: waits for sleep" in str(errors[1])


def test_monitored_barrier_names_the_rank_that_is_in_a_collective_instead() -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 1:
            dist.barrier()
        else:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in str(caught.value.errors[0])


def test_a_monitored_barrier_between_collectives_changes_nothing_for_them(ranks: Ranks) -> None:
    def body() -> float:
        value = torch.ones(1)
        work = dist.all_reduce(value, async_op=True)
        dist.monitored_barrier()
        dist.all_reduce(torch.ones(1))
        work.wait()
        return value.item()

    assert ranks(body, 3) == [3.0] * 3


def test_monitored_barrier_names_the_missing_rank() -> None:
    def body(rank: int) -> None:
        if rank != 1:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))

    errors = failing(body)
    assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in str(errors[0])
    assert "Please check rank 0 logs" in str(errors[2])


def test_flight_recorder_files(tmp_path: Path) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2))
        if rank:
            dist.all_reduce(torch.ones(4))

    with kernbench.simulate() as ctx:
        with pytest.raises(kernbench.SpawnException):
            ctx.multiprocessing.spawn(worker, nprocs=2)
        files = write_flight_record(ctx.simulation, tmp_path)
    dumps = [pickle.loads(file.read_bytes()) for file in files]
    assert [len(dump["entries"]) for dump in dumps] == [1, 2]
    assert dumps[0]["entries"][0]["state"] == "completed"
    assert dumps[1]["entries"][1]["state"] == "scheduled"
    assert dumps[1]["entries"][1]["input_sizes"] == [[4]]
    assert Path(dumps[1]["entries"][1]["frames"][0]["filename"]).name == "test_explanations.py"
