"""Programs that do to Python what none should, under both isolations: each ends, the rank is named, and nothing is left behind.

``docs/reliability.md`` has the table of what holds; hangs are in :mod:`.test_hangs`, silent ends in :mod:`.test_silent_ends`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.interruption import Interrupted, ending_signals
from kernbench.scheduler import user_traceback
from kernbench.torch_backend.rank_state.output import RankStream
from tests.reliability.test_hangs import isolations, run

ODD = """
class Odd(BaseException):
    def __getattribute__(self, name):
        raise RecursionError(name)

    def __reduce__(self):
        raise TypeError("no reduce")

if rank == 1:
    raise Odd()
dist.barrier()
"""
MUTE = """
class Mute(Exception):
    def __init__(self, a, *, b):
        super().__init__(a)

    __reduce__ = __str__ = __repr__ = __eq__ = lambda *_: 1 / 0
    __hash__ = None

if rank == 1:
    raise Mute(1, b=2)
dist.barrier()
"""
CYCLE = """
first, second = ValueError("first"), ValueError("second")
first.__cause__, second.__cause__, second.__context__ = second, first, first
if rank == 1:
    raise first
dist.barrier()
"""
BUILTINS = """
import builtins
if rank == 1:
    for name in ("len", "isinstance", "print", "open", "__import__", "list", "dict", "type"):
        setattr(builtins, name, None)
dist.barrier()
"""
MODULES = """
if rank == 1:
    sys.modules.clear()
dist.barrier()
torch.ones(3, device="cuda").sum().item()
"""
GREENLET = """
import greenlet
if rank == 1:
    raise greenlet.GreenletExit
dist.barrier()
"""
HOOK = """
def hook(*_):
    sys.exit(44)
sys.excepthook = hook
if rank == 1:
    raise ValueError("of rank 1")
dist.barrier()
"""
MASKED = """
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.barrier()
if rank == 1:
    raise ValueError("of rank 1")
dist.barrier()
"""
TRACE = """
def trace(frame, event, arg):
    if frame.f_code.co_name == "barrier":
        raise ValueError("from a trace function")
    return trace
if rank == 1:
    sys.settrace(trace)
dist.barrier()
"""

FAILURES = {
    "attributes": (ODD, "Odd"), "mute": (MUTE, "Mute"), "cycle": (CYCLE, "ValueError: first"),
    "builtins": (BUILTINS, "TypeError"), "modules": (MODULES, "Error"), "greenlet": (GREENLET, "GreenletExit"),
    "hook": (HOOK, "ValueError: of rank 1"), "masked": (MASKED, "ValueError: of rank 1"),
    "trace": (TRACE, "ValueError: from a trace function"),
    "number": ("sys.exit(256 if rank == 1 else 0)", "rank 1 (exit code 1"),
    "stop": ("if rank == 1:\n    raise StopIteration(3)\ndist.barrier()", "StopIteration: 3"),
    "surrogates": ("if rank == 1:\n    raise ValueError('\\udcff \\x1b[31m')\ndist.barrier()", "ValueError"),
}  # fmt: skip
"""Programs of which rank 1 fails, and what is said of it."""


@pytest.mark.long  # interpreters that import torch
@isolations
@pytest.mark.parametrize("name", FAILURES)
def test_the_rank_that_fails_is_named_once_and_alone(tmp_path: Path, name: str, isolation: str) -> None:
    body, said = FAILURES[name]
    ended = run(tmp_path, body, isolation)
    assert ended.returncode == 1, ended.stderr
    assert said in ended.stderr
    assert ended.stderr.count("kernbench: failed: rank 1 (") == 1
    assert "rank 0 (" not in ended.stderr
    assert "Exception in thread" not in ended.stderr
    assert "/kernbench/" not in ended.stderr, "frames of the simulator"


POOL = """
import multiprocessing
here, there = multiprocessing.Pipe()
print("poll", here.poll(), here.poll(0.5))
with multiprocessing.get_context("fork").Pool(1) as pool:
    print("pool", pool.map(abs, [-1, -2]))
    try:
        pool.apply_async(signal.pause).get(timeout=0.5)
    except multiprocessing.TimeoutError:
        print("late")
dist.barrier()
"""
SLOW_POOL = """
import ctypes, multiprocessing.pool

wait_for_updates = multiprocessing.pool.Pool._wait_for_updates

def slow(*args, **kwargs):
    wait_for_updates(*args, **kwargs)
    ctypes.CDLL(None).usleep(1_500_000)  # the machine is busy

multiprocessing.pool.Pool._wait_for_updates = staticmethod(slow)
with multiprocessing.get_context("fork").Pool(1) as pool:
    print("pool", pool.map(abs, [-1, -2]))
dist.barrier()
"""
FORKS = """
def forks():
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    print("code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

thread = threading.Thread(target=forks)
thread.start()
thread.join()
dist.barrier()
"""
FINALIZERS = """
import atexit, gc, weakref

class Left:
    def __del__(self):
        raise ValueError("in __del__")

left = Left()
left.self = left
weakref.finalize(left, lambda: 1 / 0)
atexit.register(lambda: 1 / 0)
print("code 3")
del left
gc.collect()
dist.barrier()
"""
GENERATOR = """
def communicates():
    try:
        while True:
            dist.barrier()
            yield
    finally:
        dist.barrier()

each = communicates()
next(each)
next(each)
del each
"""
SURVIVORS = {
    "pool": (POOL, ["late", "poll False False", "pool [1, 2]"]), "slow_pool": (SLOW_POOL, ["pool [1, 2]"]),
    "forks": (FORKS, ["code 3"]),
    "finalizers": (FINALIZERS, ["code 3"]), "generator": (GENERATOR, []),
    "limits": ("import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (64, 64))\ndist.barrier()", []),
}  # fmt: skip
"""Programs that go on as under Python, and what each rank prints."""


@pytest.mark.long  # interpreters that import torch
@isolations
@pytest.mark.parametrize("name", SURVIVORS)
def test_it_goes_on_as_under_python(tmp_path: Path, name: str, isolation: str) -> None:
    body, printed = SURVIVORS[name]
    ended = run(tmp_path, body, isolation)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == sorted([*printed, *printed, "ended 0", "ended 1"])


@pytest.mark.long  # interpreters that import torch
@isolations
@pytest.mark.parametrize("daemon", [False, True])
def test_what_a_thread_raises_names_its_rank(tmp_path: Path, daemon: bool, isolation: str) -> None:
    body = f"""
def fails():
    raise ValueError("in a thread")

if rank == 1:
    thread = threading.Thread(target=fails, daemon={daemon})
    thread.start()
    thread.join()
dist.barrier()
"""
    ended = run(tmp_path, body, isolation, "--prefix")
    assert ended.returncode == 0, ended.stderr
    shown = [line for line in ended.stderr.splitlines() if line.startswith("[rank1]")]
    assert shown[0].startswith("[rank1] Exception in thread")
    assert shown[-1] == "[rank1] ValueError: in a thread"


def _settings() -> list[Any]:
    mask = os.umask(0)
    os.umask(mask)
    return [
        sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold(), mask, tempfile.tempdir,
        sys.displayhook, sys.unraisablehook, threading.excepthook, len, print, sys.modules["os"],
    ]  # fmt: skip


@pytest.mark.parametrize("isolation", ["carrier", "greenlet", "process"])
@pytest.mark.parametrize("fails", [False, True])
def test_settings_of_the_interpreter_come_back(isolation: str, fails: bool) -> None:
    def body(rank: int) -> None:
        import builtins

        sys.setrecursionlimit(5000 + rank)
        sys.setswitchinterval(0.5)
        gc.disable()
        gc.set_threshold(7)
        os.umask(0o777)
        tempfile.tempdir = "/nonexistent"
        sys.displayhook = sys.unraisablehook = threading.excepthook = print  # type: ignore[assignment]
        if isolation != "greenlet":  # ranks have no thread of their own, and the scheduler runs between them
            builtins.len = builtins.print = abs  # type: ignore[assignment]
        if fails:
            raise ValueError("of the program")

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(
            lambda rank: None, nprocs=1, isolation=isolation
        )  # late calls are expected from here on
        before = _settings()
        if fails:
            with pytest.raises(kernbench.SpawnException, match="of the program"):
                ctx.multiprocessing.spawn(body, nprocs=2, isolation=isolation)
        else:
            ctx.multiprocessing.spawn(body, nprocs=2, isolation=isolation)
        assert _settings() == before


def test_a_recursion_of_thousands_of_calls_is_shown_by_its_ends() -> None:
    def deep(left: int) -> Any:
        return deep(left - 1) if left else 1 / 0

    def other(left: int) -> Any:
        return other_again(left - 1) if left else deep(1500)

    def other_again(left: int) -> Any:
        return other(left - 1) if left else deep(1500)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        other(2000)  # Python 3.13 allows few more in C, where calls go through once something was compiled
    except ZeroDivisionError as error:
        shown = user_traceback(error)
    finally:
        sys.setrecursionlimit(limit)
    assert "frames are left out)" in shown
    assert len(shown) < 500_000
    assert shown.endswith("ZeroDivisionError: division by zero\n")


def test_a_rank_closes_its_own_stream_alone(capsys: pytest.CaptureFixture[str]) -> None:
    rank = 0
    stream = RankStream(sys.stdout, lambda: rank, "[rank{}] ")
    stream.close()
    assert stream.closed
    with pytest.raises(ValueError, match="closed file"):
        stream.write("lost\n")
    rank = 1
    assert not stream.closed
    stream.write("heard\n")
    assert capsys.readouterr().out == "[rank1] heard\n"


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_stays_so(ignored: signal.Signals) -> None:
    """As Ctrl-C is of what a shell starts in the background."""
    handlers: dict[signal.Signals, Callable[..., Any] | int | None] = {
        each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)
    }
    (other,) = set(handlers) - {ignored}
    try:
        signal.signal(ignored, signal.SIG_IGN)
        signal.signal(other, signal.default_int_handler if other == signal.SIGINT else signal.SIG_DFL)
        with pytest.raises(Interrupted), ending_signals():  # noqa: PT012
            signal.raise_signal(ignored)
            signal.raise_signal(other)
        assert signal.getsignal(ignored) is signal.SIG_IGN
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
