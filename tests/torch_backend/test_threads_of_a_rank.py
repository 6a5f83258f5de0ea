"""Threads of a rank take turns as ranks do: whichever can go on does, in the same order in every isolation."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import multiprocessing
import pickle
import pkgutil
import queue
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kernbench
from kernbench.errors import DeadlockError

Found = tuple[list[Any], list[Any]]
Run = Callable[[Callable[[], Any]], Found]


@pytest.fixture
def both(tmp_path: Path) -> Run:
    """What ``body()`` gives in each of two ranks, which is the same, at the same times, whatever keeps ranks apart."""

    def run(isolation: str, body: Callable[[], Any]) -> Found:
        def worker(rank: int) -> None:
            dist.init_process_group("nccl")
            torch.cuda.set_device(rank)
            (tmp_path / f"{isolation}-{rank}").write_text(json.dumps(body()))

        with kernbench.simulate("dgx_h100") as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
            ends = [(op.name, op.rank, op.start, op.end) for op in ctx.engine.op_log.operations]
        return [json.loads((tmp_path / f"{isolation}-{rank}").read_text()) for rank in range(2)], ends

    def compare(body: Callable[[], Any]) -> Found:
        found = run("carrier", body)
        assert run("process", body) == found
        return found

    return compare


def _gathered(what: Any, group: Any) -> list[Any]:
    out: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(out, what, group=group)
    return out


def _reduced(value: float) -> float:
    x = torch.full((4,), value, device="cuda")
    dist.all_reduce(x)
    return x[0].item()


def test_a_rank_goes_on_while_its_thread_waits_in_a_collective(both: Run) -> None:
    """The other rank needs the rank's own thread first: as a trainer that keeps books beside its steps does."""

    def body() -> Any:
        rank, group, began = dist.get_rank(), dist.new_group(backend="gloo"), threading.Event()

        def save() -> list[Any]:
            began.set()
            return _gathered(10 * rank, group)

        with ThreadPoolExecutor(1) as pool:
            if rank == 0:
                saved = pool.submit(save)
                began.wait()
                return [_reduced(rank + 1.0), saved.result()]
            return [_reduced(rank + 1.0), pool.submit(save).result()]

    assert both(body)[0] == [[3.0, [0, 10]]] * 2


def test_more_calls_than_a_pool_has_threads(both: Run) -> None:
    def body() -> Any:
        group = dist.new_group(backend="gloo")
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(_gathered, (dist.get_rank(), number), group) for number in range(5)]
            total = _reduced(1.0)
            return [total, *(call.result() for call in calls)]

    assert both(body)[0] == [[2.0, *([[0, number], [1, number]] for number in range(5))]] * 2


def test_a_lock_is_held_over_a_collective(both: Run) -> None:
    def body() -> Any:
        group, lock, order = dist.new_group(backend="gloo"), threading.Lock(), list[Any]()

        def work(number: int) -> None:
            with lock:
                order.append(_gathered(number, group))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        _reduced(1.0)
        with lock:
            order.append("own")
        for thread in threads:
            thread.join()
        return order

    first, second = both(body)[0]
    assert first == second
    assert [each for each in first if each != "own"] == [[number] * 2 for number in range(3)]


def test_conditions_and_barriers_between_threads(both: Run) -> None:
    def body() -> Any:
        group, meets, condition, done = dist.new_group(backend="gloo"), threading.Barrier(3), threading.Condition(), []

        def work(number: int) -> None:
            meets.wait()
            with condition:
                condition.wait_for(lambda: len(done) == number)
                done.append(_gathered((dist.get_rank(), number), group))
                condition.notify_all()

        for number in (2, 1, 0):
            threading.Thread(target=work, args=(number,)).start()
        with condition:
            condition.wait_for(lambda: len(done) == 3)
        return done

    assert both(body)[0] == [[[[0, number], [1, number]] for number in range(3)]] * 2


def test_limits_of_waits_are_virtual(both: Run) -> None:
    def body() -> Any:
        came: queue.Queue[str] = queue.Queue()
        begin, found = time.monotonic(), []

        def late() -> None:
            time.sleep(3000.0)
            came.put("late")

        threading.Thread(target=late).start()
        for _ in range(2):
            try:
                found.append(came.get(timeout=2000.0))
            except queue.Empty:
                found.append("empty")
            found.append(round(time.monotonic() - begin, 3))
        return found

    assert both(body)[0] == [["empty", 2000.0, "late", 3000.0]] * 2


@pytest.mark.parametrize("starts", ["calls of a pool", "threads"])
def test_a_daemon_that_has_others_work(both: Run, starts: str) -> None:
    """A generator that a daemon walks gives work away (bettermap's): it takes turns from then on, as what it starts does."""

    def body() -> Any:
        found: queue.Queue[Any] = queue.Queue(maxsize=2)

        def work(number: int) -> float:
            return torch.full((2,), float(number), device="cuda").sum().item()

        def in_a_thread(number: int) -> Any:
            held: queue.Queue[float] = queue.Queue()
            threading.Thread(target=lambda: held.put(work(number)), daemon=False).start()
            return held.get

        def fill(pool: ThreadPoolExecutor) -> None:
            for number in range(6):
                found.put(in_a_thread(number) if starts == "threads" else pool.submit(work, number).result)
            found.put(None)

        got = []
        for _ in range(3):
            with ThreadPoolExecutor(2) as pool:
                threading.Thread(target=fill, args=(pool,), daemon=True).start()
                got.append([result() for result in iter(found.get, None)])
        return got

    assert both(body)[0] == [[[2.0 * number for number in range(6)]] * 3] * 2


def test_a_daemon_that_asks_nothing_and_one_that_only_waits(both: Run) -> None:
    def body() -> Any:
        asked: queue.Queue[int] = queue.Queue()
        answers: queue.Queue[int] = queue.Queue()

        def serve() -> None:
            while True:
                answers.put(asked.get() + 1)

        def watch() -> None:
            while not threading.Event().wait(10.0):
                pass

        for each in (serve, watch):
            threading.Thread(target=each, daemon=True).start()
        found = []
        for number in range(3):
            asked.put(number)
            found.append(answers.get())
        return [*found, _reduced(1.0)]

    assert both(body)[0] == [[1, 2, 3, 2.0]] * 2


def _after(seconds: float, call: Callable[..., Any], *args: object) -> threading.Timer:
    timer = threading.Timer(seconds, call, args)
    timer.daemon = True
    timer.start()
    return timer


def _event() -> bool:
    happened = threading.Event()
    _after(5, happened.set)
    return happened.wait()


def _event_with_a_limit() -> list[bool]:
    happened = threading.Event()
    _after(5, happened.set)
    return [happened.wait(3), happened.wait(30)]


def _canceled() -> bool:
    happened = threading.Event()
    _after(2, happened.set).cancel()
    return happened.wait(5)


def _queue() -> int:
    asked: queue.Queue[int] = queue.Queue()
    _after(5, asked.put, 7)
    return asked.get()


def _notified() -> bool:
    condition = threading.Condition()

    def notify() -> None:
        with condition:
            condition.notify()

    _after(5, notify)
    with condition:
        return condition.wait(20)


def _locked() -> bool:
    lock = threading.Lock()
    lock.acquire()
    _after(5, lock.release)
    return lock.acquire()


def _joined() -> bool:
    timer = _after(5, list)
    timer.join()
    return timer.is_alive()


def _polled() -> int:
    happened = threading.Event()
    _after(4.9, happened.set)
    looks = 0
    while not happened.wait(0.5):
        looks += 1
    time.sleep(0.1)
    return looks


def _repeated() -> int:
    beats: list[int] = []

    beat = _Beat(0.9, lambda: beats.append(1))
    beat.daemon = True
    beat.start()
    time.sleep(5)
    beat.cancel()
    return len(beats)


def _loop_woken() -> bool:
    async def wait() -> bool:
        happened, loop = asyncio.Event(), asyncio.get_running_loop()
        _after(5, loop.call_soon_threadsafe, happened.set)
        return await happened.wait()

    return asyncio.run(wait())


def _torchs_future() -> int:
    promised: torch.futures.Future[int] = torch.futures.Future()
    _after(5, promised.set_result, 7)
    return promised.wait()


def _loop_of_a_daemon() -> int:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    found = asyncio.run_coroutine_threadsafe(asyncio.sleep(5, 7), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    return found


TIMED: dict[Callable[[], Any], Any] = {
    _event: True, _event_with_a_limit: [False, True], _canceled: False, _queue: 7, _notified: True, _locked: True,
    _joined: False, _polled: 9, _repeated: 5, _loop_woken: True, _loop_of_a_daemon: 7, _torchs_future: 7,
}  # fmt: skip


def test_timers_and_event_loops_of_daemons_go_by_the_ranks_time(both: Run) -> None:
    def body() -> Any:
        found = []
        for wait in TIMED:
            began = time.monotonic()
            given = wait()
            found.append([wait.__name__, given, round(time.monotonic() - began, 2)])
        return found

    assert both(body)[0] == [[[wait.__name__, given, 5.0] for wait, given in TIMED.items()]] * 2


class _Beat(threading.Timer):
    def run(self) -> None:
        while not self.finished.wait(self.interval):
            self.function()


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr("kernbench.simulation.time.limits._MOST_IDLE", 50)
    return []


def test_a_heartbeat_hides_no_deadlock(beats: list[float]) -> None:
    def body(rank: int) -> None:
        beat = _Beat(1.0, lambda: beats.append(time.monotonic()))
        beat.daemon = True
        beat.start()
        threading.Event().wait()

    with kernbench.simulate("dgx_h100") as ctx, pytest.raises(kernbench.SpawnException, match="deadlock"):
        ctx.multiprocessing.spawn(body, nprocs=1)
    assert 40 < len(beats) < 60


def test_what_many_looks_wait_for_is_waited_for(beats: list[float]) -> None:
    def body(rank: int) -> None:
        happened = threading.Event()
        _after(2, lambda: _after(3, happened.set))
        while not happened.wait(0.01):
            beats.append(time.monotonic())

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    assert 490 < len(beats) < 510


@pytest.mark.parametrize("sleeps", [True, False])
def test_a_daemon_has_the_ranks_time(both: Run, sleeps: bool) -> None:
    def body() -> Any:
        beats, over = [], threading.Event()

        def beat() -> None:
            while True:
                beats.append(round(time.monotonic(), 3))
                time.sleep(0.5) if sleeps else over.wait(0.5)

        begin = round(time.monotonic(), 3)
        threading.Thread(target=beat, daemon=True).start()
        time.sleep(1.2)
        dist.barrier()
        time.sleep(1.0)
        return [round(each - begin, 3) for each in beats]

    assert both(body)[0] == [[0.0, 0.5, 1.0, 1.5, 2.0]] * 2


def test_a_daemon_goes_on_at_once_where_it_is_given_work(both: Run) -> None:
    def body() -> Any:
        work: queue.SimpleQueue[float] = queue.SimpleQueue()
        done = []

        def works() -> None:
            while True:
                time.sleep(work.get())
                done.append(round(time.monotonic() - begin, 3))

        begin = time.monotonic()
        threading.Thread(target=works, daemon=True).start()
        for seconds in (0.25, 0.5):
            time.sleep(0.1)
            work.put(seconds)
        time.sleep(2.0)
        return done

    assert both(body)[0] == [[0.35, 0.85]] * 2


@pytest.mark.parametrize("sleeps", [True, False])
def test_a_daemon_that_beats_hears_of_no_deadlock(both: Run, sleeps: bool) -> None:
    def body() -> Any:
        heard, over, gloo = [], threading.Event(), dist.new_group(backend="gloo")

        def beat() -> None:
            try:
                while True:
                    time.sleep(0.5) if sleeps else over.wait(0.5)
            except BaseException as error:
                heard.append(type(error).__name__)
                raise

        threading.Thread(target=beat, daemon=True).start()
        with pytest.raises(DeadlockError):
            dist.recv(torch.zeros(1), 1 - dist.get_rank(), group=gloo)
        time.sleep(2.0)
        return heard

    assert both(body)[0] == [[], []]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_server_that_looks_whether_it_is_to_end_hides_no_deadlock(isolation: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        dist.recv(torch.zeros(1), 1 - rank)

    with (
        kernbench.simulate("dgx_h100") as ctx,
        pytest.raises(kernbench.SpawnException, match="rank 0 -> rank 1 -> rank 0"),
    ):
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)


def test_a_sleep_beside_a_server_ends(both: Run) -> None:
    def body() -> Any:
        server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        woken = threading.Event()
        threading.Thread(target=lambda: (time.sleep(0.01), woken.set()), daemon=True).start()
        begin = time.monotonic()
        woken.wait()
        return round(time.monotonic() - begin, 3)

    assert both(body)[0] == [0.01, 0.01]


def test_asynchronous_checkpoints(both: Run, tmp_path: Path) -> None:
    def body() -> Any:
        group, rank = dist.new_group(backend="gloo"), dist.get_rank()
        place = tmp_path / ("a" if threading.current_thread() is threading.main_thread() else "b")  # each run's own
        found = {f"w{rank}": torch.zeros(4)}
        for step in range(2):
            weight = {f"w{rank}": torch.full((4,), 7.0 + rank + step)}
            written: Any = dcp.async_save(weight, checkpoint_id=place / str(step), process_group=group)
            _reduced(1.0)
            dist.barrier()
            written.result()
        dcp.load(found, checkpoint_id=place / "1")
        return found[f"w{rank}"].tolist()

    assert both(body)[0] == [[8.0] * 4, [9.0] * 4]


def test_a_manager_of_multiprocessing_serves_a_rank(both: Run) -> None:
    """Its server is a process that is started with the kinds of locks that it makes."""

    def body() -> Any:
        with multiprocessing.get_context("spawn").Manager() as manager:
            results, lock, again = manager.Queue(), manager.Lock(), manager.RLock()
            with lock, again, again:
                results.put(dist.get_rank())
                return _reduced(results.get())

    assert both(body)[0] == [1.0] * 2


@pytest.mark.parametrize("name", ["threading:Lock", "threading:RLock", "queue:SimpleQueue"])
def test_a_kind_of_lock_is_pickled_as_pythons(name: str) -> None:
    stock = pkgutil.resolve_name(name)
    kinds = []
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda _: kinds.append(pkgutil.resolve_name(name)), nprocs=1)
    assert kinds != [stock]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(kinds[0], protocol)) is stock


def test_a_loader_pins_what_its_workers_send(both: Run) -> None:
    def body() -> Any:
        data = TensorDataset(torch.arange(32.0).reshape(16, 2))
        loader = DataLoader(data, batch_size=4, num_workers=1, pin_memory=True, persistent_workers=True)
        return [_reduced(batch.cuda(non_blocking=True).sum().item()) for _ in range(2) for (batch,) in loader]

    sums = [2.0 * sum(range(first, first + 8)) for first in range(0, 32, 8)]
    assert both(body)[0] == [sums * 2] * 2


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_deadlock_names_the_thread(isolation: str) -> None:
    over = threading.Event()

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        group, done = dist.new_group(), queue.Queue[int]()

        def save() -> None:
            if rank == 0:
                dist.barrier(group)
            done.put(1)

        threading.Thread(target=save, name="saver").start()
        threading.Thread(target=over.wait, args=(10.0,), daemon=True).start()
        done.get()
        dist.barrier()

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
    over.set()
    report = str(caught.value.errors[1])
    assert "rank 0: waits for another thread (condition)" in report
    assert "its thread 'saver' waits in barrier #0 on group 1 [0, 1]" in report
    assert "rank 0 -> rank 1 -> rank 0" in report


class _Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(257) + number, torch.arange(257)


@pytest.mark.long
def test_the_workers_of_a_loader_end_with_their_rank_and_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Also while they send batches to a thread that pins them, and also if the rank fails."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        loader = DataLoader(_Rows(), batch_size=4, num_workers=1, persistent_workers=True, pin_memory=True)
        for number, (rows, _) in enumerate(loader):
            workers[rank] = loader._iterator._workers  # type: ignore[union-attr]
            _reduced(rows.cuda().sum().item())
            if number == 2 and fails:
                raise ValueError("as planned")

    workers: dict[int, Any] = {}
    for fails in (False, True):
        with kernbench.simulate("dgx_h100") as ctx, pytest.raises(kernbench.SpawnException) if fails else nullcontext():
            ctx.multiprocessing.spawn(worker, nprocs=3)
        for each in itertools.chain.from_iterable(workers.values()):
            each.join(30)
            assert each.exitcode == 0
        assert sorted(workers) == [0, 1, 2]
    gc.collect()
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    assert "Exception ignored" not in said.err


def test_what_a_rank_prints_of_an_exception_has_its_number_once(capsys: pytest.CaptureFixture[str]) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        sys.excepthook(ValueError, ValueError(f"of {rank}"), None)

    before = sys.excepthook
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert sys.excepthook is before
    lines = [line for line in capsys.readouterr().err.splitlines() if "ValueError: of" in line]
    assert sorted(lines) == [f"[rank{rank}]: ValueError: of {rank}" for rank in range(3)]
