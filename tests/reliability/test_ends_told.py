"""What is said of ranks that wait for ever, end by themselves, recurse without end, or replace what Python has."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path
from time import sleep

import pytest

import kernbench
from kernbench.errors import DeadlockError, NoProgressError
from kernbench.processes.rank_process import TELL_WHERE, pause
from kernbench.scheduler.standstill import Outlook, Standstill
from kernbench.testing.ranks import BodyEnds, _without_message
from kernbench.torch_backend.rank_state.interpreter import DEEPEST


@pytest.mark.parametrize("in_main", [True, False])
def test_a_pause_goes_on_when_it_is_asked_where_it_is(tmp_path: Path, in_main: bool) -> None:
    stacks, come = tmp_path / "stacks", list[str]()

    def wait() -> None:
        pause()
        come.append("goes on")

    def ask() -> None:
        # Few questions: faulthandler walks the stacks of threads that run on, which crashes once in a million times.
        while "in pause" not in stacks.read_text():
            os.kill(os.getpid(), TELL_WHERE)
            sleep(0.01)
        for _ in range(3):
            os.kill(os.getpid(), TELL_WHERE)
            sleep(0.01)
        come.append("asked")
        while "goes on" not in come:  # it may not have paused by then
            signal.pthread_kill(waits.ident or 0, signal.SIGUSR1)
            sleep(0.01)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    other = threading.Thread(target=ask if in_main else wait, daemon=True)
    waits = threading.main_thread() if in_main else other
    with stacks.open("w") as file:
        faulthandler.register(TELL_WHERE, file=file)
        try:
            other.start()
            (wait if in_main else ask)()
            other.join()
        finally:
            faulthandler.unregister(TELL_WHERE)
            signal.signal(signal.SIGUSR1, before)
    assert come == ["asked", "goes on"]


def test_a_limit_of_recursion_that_no_memory_holds_is_bounded() -> None:
    before = sys.getrecursionlimit()

    def body(rank: int) -> None:
        sys.setrecursionlimit(10**9)
        assert sys.getrecursionlimit() == DEEPEST
        with pytest.raises(TypeError):
            sys.setrecursionlimit("deep")  # type: ignore[arg-type]

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)
    assert sys.getrecursionlimit() == before


def test_a_process_that_ends_by_an_interrupt_is_told_so() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            raise KeyboardInterrupt
        ctx.distributed.barrier()

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException, match="rank 1 has ended by Keyboard"):
        ctx.multiprocessing.spawn(body, nprocs=2, isolation="process")


def test_a_thread_that_never_ends_fails_its_process_once() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            threading.Thread(target=threading.Event().wait).start()

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException) as raised:
        ctx.multiprocessing.spawn(body, nprocs=2, isolation="process")
    assert [type(each) for each in raised.value.errors.values()] == [DeadlockError]
    assert "The same in process" not in str(raised.value)


def test_ranks_run_where_the_name_of_threads_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", None)
    ran: list[int] = []
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(ran.append, nprocs=2)
    assert ran == [0, 1]


class _Ranks:
    def running(self) -> list[int]:
        return []

    def stack_of(self, rank: int) -> str:
        return ""

    def stop(self, error: NoProgressError, attempt: int) -> None: ...

    def blocked(self, seconds: float) -> None: ...


def test_a_rank_that_waits_for_what_is_outside_is_named_first() -> None:
    doing = {0: "waits in barrier", 1: "waits for events"}
    away = Standstill(Outlook(lambda: 0, lambda: doing, lambda: [1]), _Ranks(), None).report(5.0)
    assert "rank 1 waits for what the simulation does not see" in away
    assert away.index("  rank 1: waits for events") < away.index("  rank 0: waits in barrier")
    none = Standstill(Outlook(lambda: 0, lambda: doing, list), _Ranks(), None).report(5.0)
    assert "the simulation itself is at work" in none


def test_a_message_is_left_out_where_it_is_said_and_nowhere_else() -> None:
    report = (
        'File "x.py", line 1, in next\n    raise ValueError("x")\nValueError: x\na.b.ValueError: x\nValueError: xy\n'
    )
    assert _without_message(report, ValueError("x")) == (
        'File "x.py", line 1, in next\n    raise ValueError("x")\nValueError: the message above\n'
        "a.b.ValueError: the message above\nValueError: xy\n"
    )


@pytest.mark.parametrize(
    ("why", "begin", "end"), [("\ud800", "\\ud800", ""), ("é" * 1000, "éé", "é..."), ("a" * 509, "aa", "a")]
)
def test_why_a_body_has_ended_is_kept_whatever_it_is(why: str, begin: str, end: str) -> None:
    ends = BodyEnds(2)
    ends.note(1, ends.SKIPPED, why)
    kept = ends.why(1)
    assert kept.startswith(begin)
    assert kept.endswith(end)
    assert ends.which(ends.SKIPPED) == [1]
    assert ends.why(0) == ""
