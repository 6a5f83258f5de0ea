"""Observers in a process of their own: answers, silence, death."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernbench
from kernbench.plugins import PluginError, PluginWarning, Worker, WorkerPlugin

MODULE = "tests.plugins.recorder"


@pytest.fixture(scope="module")
def odd() -> Iterator[Worker]:
    worker = Worker(f"{MODULE}:Odd")
    yield worker
    worker.close()


def test_a_call_is_answered(odd: Worker) -> None:
    assert odd.call("add", 2, 3) == 5
    assert odd.call("large", 3 << 20) == bytes(3 << 20)


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("fail", "ValueError: no such thing"),
        ("missing", "AttributeError: 'Odd' object has no attribute 'missing'"),
        ("unpicklable", "the answer of unpicklable cannot be pickled"),
    ],
)
def test_a_call_that_fails_is_answered_with_its_error(odd: Worker, method: str, error: str) -> None:
    answer = odd.call(method)
    assert answer["kind"] == "worker_error"
    assert answer["error"].startswith(error)
    assert odd.call("add", 1, 1) == 2


def test_what_is_sent_is_never_answered(capfd: pytest.CaptureFixture[str]) -> None:
    odd = Worker(f"{MODULE}:Odd")
    odd.send("add", 1, 1)
    odd.send("fail")
    odd.send("fail")
    assert odd.call("add", 20, 22) == 42
    odd.close()
    assert capfd.readouterr().err.count("worker: fail: ValueError: no such thing") == 1  # told once, over there


def test_a_late_answer_is_not_taken_for_the_next(odd: Worker) -> None:
    late = odd.call("sleep", 0.3, timeout=0.05)
    assert late == {"error": "no answer to sleep within 0.05 s", "kind": "worker_error"}
    assert odd.call("add", 1, 2) == 3
    assert odd.alive


def test_what_cannot_be_pickled_is_lost_alone(odd: Worker) -> None:
    assert odd.call("add", lambda: None)["error"].startswith("it cannot be pickled")
    with pytest.warns(PluginWarning, match="a message for add is lost"):
        odd.send("add", lambda: None)
    assert odd.call("add", 1, 2) == 3


@pytest.mark.parametrize("how", ["by itself", "killed"])
def test_a_dead_worker_is_noticed_once(how: str) -> None:
    worker = Worker(f"{MODULE}:Odd")
    if how == "killed":
        os.kill(worker.pid, signal.SIGKILL)
        code = -9
    else:
        worker.send("die")
        code = 7
    with pytest.warns(PluginWarning, match=rf"has died \(exit code {code}\); the run goes on without it"):
        answer = worker.call("add", 1, 1)
    assert answer == {"error": f"it has died (exit code {code})", "kind": "worker_error"}
    assert not worker.alive
    worker.send("add", 1, 1)
    assert worker.call("add", 1, 1) == answer
    worker.close()


def test_a_worker_that_takes_nothing_is_ended() -> None:
    worker = Worker(f"{MODULE}:Odd", patience=0.2)
    worker.send("sleep", 60)

    def flood() -> None:
        while worker.alive:
            worker.send("large", bytes(1 << 16))

    with pytest.warns(PluginWarning, match=r"it took no message for 0\.2 s and was ended"):
        flood()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (
            "acme_missing:Handler",
            "worker acme_missing:Handler: PluginError: plugin 'acme_missing:Handler' cannot be imported",
        ),
        (f"{MODULE}:Nothing", "has no 'Nothing'"),
        (f"{MODULE}:refuses", "RuntimeError: not today"),
    ],
)
def test_a_handler_that_cannot_be_made(handler: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        Worker(handler)


def test_run_hooks_in_a_worker(tmp_path: Path) -> None:
    plugin = WorkerPlugin(f"{MODULE}:Handler", str(tmp_path / "told.txt"))
    with kernbench.simulate(plugins=[plugin]) as ctx:
        assert ctx.plugins.hooks_of("Handler") == ["kernbench_collective_completed", "kernbench_rank_started"]
        ctx.multiprocessing.spawn(lambda rank: ctx.distributed.barrier(), nprocs=3)
    assert plugin.call("count") == 4
    plugin.close()
    lines = (tmp_path / "told.txt").read_text().splitlines()
    assert lines == ["started 0", "started 1", "started 2", "barrier [0, 1, 2]"]


def test_a_run_goes_on_when_its_observer_dies() -> None:
    plugin = WorkerPlugin(f"{MODULE}:Odd")
    with kernbench.simulate(plugins=[plugin]) as ctx:
        results: list[float] = []

        def worker(rank: int) -> None:
            x = ctx.ones(4)
            ctx.distributed.all_reduce(x)
            results.append(float(x[0]))

        def spawn_thrice() -> None:
            for _ in range(3):
                ctx.multiprocessing.spawn(worker, nprocs=4)
                plugin.call("add", 1, 1)

        with pytest.warns(PluginWarning, match="has died"):
            spawn_thrice()
    assert results == [4.0] * 12
    assert not plugin.worker.alive
