"""What ranks share by multiprocessing, main's too: queues, pipes, locks, events and their kind, in both isolations."""

from __future__ import annotations

import multiprocessing
import queue
import subprocess
import threading
import time
from multiprocessing.connection import wait
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench

CONTEXT = multiprocessing.get_context("fork")
WORLD = 3
BIG = 300_000

pytestmark = pytest.mark.parametrize("isolation", ["carrier", "process"])


_made: list[Any] = []


def queue_of_main() -> Any:
    """A queue whose thread, if it has one, ends with the test."""
    _made.append(CONTEXT.Queue())
    return _made[-1]


@pytest.fixture(autouse=True)
def _no_threads_are_left():
    before, threads = torch.multiprocessing.get_sharing_strategy(), set(threading.enumerate())
    torch.multiprocessing.set_sharing_strategy("file_system")  # the other one has a thread that serves descriptors
    yield
    torch.multiprocessing.set_sharing_strategy(before)
    while _made:
        each = _made.pop()
        each.close()
        each.join_thread()
    assert not [each for each in set(threading.enumerate()) - threads if each.name == "QueueFeederThread"]


def spawn(body: Any, *shared: Any, isolation: str, join: bool = True) -> None:
    """Run ``body(rank, *shared)`` in each rank; where they are not joined, the last of ``shared`` is what main does."""

    def worker(rank: int, *shared: Any) -> None:
        dist.init_process_group("nccl")
        total = torch.ones(2, device=f"cuda:{rank}")
        body(rank, *shared)
        dist.all_reduce(total)
        assert total.tolist() == [WORLD, WORLD]
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100") as ctx:
        ranks = ctx.multiprocessing.spawn(worker, shared, nprocs=WORLD, isolation=isolation, join=join)
        if not join:
            shared[-1](ranks)


def test_a_queue_brings_what_another_rank_puts(isolation):
    def body(rank: int, items: Any, answers: Any, seen: Any) -> None:
        if rank == 0:
            for _ in range(WORLD - 1):
                sender, values = items.get()
                seen.put((sender, values.tolist()))
            for _ in range(WORLD - 1):
                answers.put("done")
        else:
            items.put((rank, torch.full((2,), float(rank))))
            assert answers.get() == "done"

    items, answers, seen = queue_of_main(), CONTEXT.SimpleQueue(), queue_of_main()
    spawn(body, items, answers, seen, isolation=isolation)
    assert sorted(seen.get() for _ in range(WORLD - 1)) == [(1, [1.0, 1.0]), (2, [2.0, 2.0])]


def test_a_limit_of_a_queues_get_passes_in_virtual_time(isolation):
    def body(rank: int, items: Any, seen: Any) -> None:
        if rank == 1:
            time.sleep(12)
            items.put("late")
        if rank == 0:
            begin = time.monotonic()
            with pytest.raises(queue.Empty):
                items.get(timeout=5)
            seen.put(round(time.monotonic() - begin, 3))
            assert items.get(timeout=20) == "late"
            seen.put(round(time.monotonic() - begin, 3))

    items, seen = queue_of_main(), CONTEXT.SimpleQueue()
    spawn(body, items, seen, isolation=isolation)
    assert [seen.get(), seen.get()] == [5.0, 12.0]


def test_a_lock_is_held_across_waits_for_the_simulation(isolation):
    def body(rank: int, lock: Any, count: Any) -> None:
        with lock:
            before = count.value
            torch.cuda.synchronize()  # the others go on, up to the lock
            count.value = before + 1

    lock, count = CONTEXT.Lock(), CONTEXT.Value("i", 0, lock=False)
    spawn(body, lock, count, isolation=isolation)
    assert count.value == WORLD


def test_events_conditions_and_barriers(isolation):
    def body(rank: int, event: Any, barrier: Any, condition: Any, count: Any) -> None:
        if rank == 0:
            event.wait()
        elif rank == 1:
            event.set()
        barrier.wait()
        with condition:
            count.value += 1
            if count.value == WORLD:
                condition.notify_all()
            else:
                condition.wait()

    count = CONTEXT.Value("i", 0)
    spawn(body, CONTEXT.Event(), CONTEXT.Barrier(WORLD), CONTEXT.Condition(), count, isolation=isolation)
    assert count.value == WORLD


def test_pipes_that_are_full_and_several_at_once(isolation):
    def body(rank: int, pipes: Any) -> None:
        if rank == 0:
            left = [ours for ours, _ in pipes[1:]]
            while left:
                for each in wait(left):
                    assert len(each.recv()) == BIG
                    left.remove(each)
            for ours, _ in pipes[1:]:
                ours.send("thanks")
        else:
            pipes[rank][1].send(b"x" * BIG)
            assert pipes[rank][1].recv() == "thanks"

    spawn(body, [CONTEXT.Pipe() for _ in range(WORLD)], isolation=isolation)


def test_what_no_rank_brings_is_a_deadlock(isolation):
    def body(rank: int, items: Any) -> None:
        if rank == 0:
            items.get()

    with pytest.raises(kernbench.SpawnException) as raised:
        spawn(body, queue_of_main(), isolation=isolation)
    assert "rank 0: waits for a message" in str(raised.value)


def test_main_waits_for_ranks_that_it_has_not_joined_and_they_for_main(isolation):
    def body(rank: int, items: Any, stop: Any, main: Any) -> None:
        items.put(rank)
        stop.wait()

    came: list[int] = []

    def main(ranks: Any) -> None:
        came.extend(items.get(timeout=30) for _ in range(WORLD))
        with pytest.raises(queue.Empty):
            items.get(timeout=30)
        stop.set()
        while not ranks.join():
            pass

    items, stop = queue_of_main(), CONTEXT.Event()
    spawn(body, items, stop, main, isolation=isolation, join=False)
    assert sorted(came) == list(range(WORLD))


def test_what_a_rank_fails_with_is_told_where_main_waits_for_it(isolation):
    def body(rank: int, items: Any, main: Any) -> None:
        if rank == 1:
            raise ValueError("no message of mine")
        items.put(rank)

    def main(ranks: Any) -> None:
        with pytest.raises(kernbench.SpawnException, match="no message of mine"):
            [items.get() for _ in range(WORLD)]

    items = queue_of_main()
    spawn(body, items, main, isolation=isolation, join=False)


IN_VAIN = """
import multiprocessing, queue, sys, kernbench

context = multiprocessing.get_context("fork")
items = context.Queue()

def body(rank):
    items.put(rank)

with kernbench.simulate("dgx_h100") as ctx:
    ranks = ctx.multiprocessing.spawn(body, nprocs=3, isolation=sys.argv[1], join=False)
    print(sorted(items.get() for _ in range(3)))
    while ranks.processes[0].is_alive():
        pass
    try:
        items.get()
    except kernbench.DeadlockError as error:
        print(error)
    print(ranks.join())
"""


def test_main_does_not_wait_for_what_no_rank_has_left(isolation, warm_python):
    found = subprocess.run(  # a process in which nothing else could bring it
        [warm_python, "-c", IN_VAIN, isolation], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == [
        "[0, 1, 2]", "main waits for a message, and all ranks have ended: nothing is left that could bring it.", "True",
    ]  # fmt: skip


def test_a_limit_of_main_runs_out_when_no_rank_is_left(isolation):
    def body(rank: int, items: Any, main: Any) -> None:
        items.put(rank)

    def main(ranks: Any) -> None:
        assert sorted(items.get(timeout=30) for _ in range(WORLD)) == list(range(WORLD))
        with pytest.raises(queue.Empty):
            items.get(timeout=0.2)

    items = queue_of_main()
    spawn(body, items, main, isolation=isolation, join=False)


@pytest.mark.parametrize("polls", ["is_alive", "exitcode", "join", "sleep"])
def test_main_that_looks_again_and_again_sees_them_end(isolation, polls):
    def body(rank: int, stop: Any, main: Any) -> None:
        time.sleep(1.5)
        stop.wait()

    looks: list[int] = []

    def main(ranks: Any) -> None:
        assert all(process.is_alive() for process in ranks.processes)
        if polls == "sleep":
            time.sleep(2)
        else:
            assert ranks.join(timeout=2) is False
        stop.set()
        while {
            "is_alive": lambda: any(process.is_alive() for process in ranks.processes),
            "exitcode": lambda: any(process.exitcode is None for process in ranks.processes),
            "join": lambda: not ranks.join(timeout=0),
            "sleep": lambda: time.sleep(0) or any(process.is_alive() for process in ranks.processes),
        }[polls]():
            looks.append(1)
            assert len(looks) < 5000
        assert [process.exitcode for process in ranks.processes] == [0] * WORLD

    stop = CONTEXT.Event()
    spawn(body, stop, main, isolation=isolation, join=False)


def test_what_main_that_looks_has_not_heard_of_is_raised_where_it_joins(isolation):
    def body(rank: int, joins: bool, main: Any) -> None:
        raise ValueError("in every rank")

    def main(ranks: Any) -> None:
        while any(process.is_alive() for process in ranks.processes):
            pass
        assert ranks.processes[0].exitcode == 1
        if joins:
            with pytest.raises(kernbench.SpawnException, match="in every rank"):
                ranks.join()

    joins = True
    spawn(body, joins, main, isolation=isolation, join=False)
    joins = False
    with pytest.raises(kernbench.SpawnException, match="in every rank"):
        spawn(body, joins, main, isolation=isolation, join=False)


def test_a_rank_that_looks_without_waiting_sees_what_another_has_done(isolation):
    def body(rank: int, ends: Any, items: Any, event: Any, semaphore: Any) -> None:
        def looks(done: Any) -> float:
            while not done():
                pass
            return round(time.perf_counter(), 3)

        def is_taken() -> bool:
            try:
                return items.get_nowait() == 2
            except queue.Empty:
                return False

        if rank == 0:
            assert looks(ends[0].poll) == 0.25
            assert ends[0].recv() == 1
            assert looks(lambda: not items.empty()) == 0.5
            assert items.get() == 1
            assert looks(is_taken) == 0.75
            assert looks(event.is_set) == 1.0
            assert looks(lambda: semaphore.acquire(block=False)) == 1.25
        elif rank == 1:
            acts = (lambda: ends[1].send(1), lambda: items.put(1), lambda: items.put(2), event.set, semaphore.release)
            for act in acts:
                time.sleep(0.25)
                act()

    spawn(body, CONTEXT.Pipe(), queue_of_main(), CONTEXT.Event(), CONTEXT.Semaphore(0), isolation=isolation)
