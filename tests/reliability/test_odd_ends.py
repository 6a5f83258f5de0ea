"""Programs whose ends are odd, under both isolations: what Python only prints, threads and pools that are left, handlers that
raise in a collective, folders and functions that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.test_hangs import isolations, run

pytestmark = pytest.mark.long  # interpreters that import torch

POOL_LEFT = """
from concurrent.futures import ThreadPoolExecutor
left = ThreadPoolExecutor(4)
print([left.submit(abs, -each).result() for each in range(5)])
left.submit(time.sleep, 1)
dist.barrier()
"""
HANDLER_IN_COLLECTIVE = """
def rings(number, frame):
    raise TimeoutError("rings")  # an OSError, as what a connection raises that has broken

if rank == 1:
    signal.signal(signal.SIGALRM, rings)
    assert signal.getsignal(signal.SIGALRM) is rings
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        dist.barrier()
    except TimeoutError as error:
        print(error)
else:
    for _ in range(30_000_000):
        pass
    dist.barrier()
dist.barrier()
"""
NO_FOLDER = """
import tempfile
if rank == 1:
    os.chdir(tempfile.mkdtemp())
    os.rmdir(os.getcwd())
dist.barrier()
try:
    print("folder", bool(os.getcwd()))
except FileNotFoundError:
    print("none")
dist.barrier()
"""
CHILD_SLEEPS = """
def child():
    begin = time.monotonic()
    time.sleep(100)
    while time.monotonic() < begin + 300:
        pass
    os._exit(int(time.monotonic() - begin) // 100)

pid = os.fork()
if pid == 0:
    child()
print("code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
dist.barrier()
"""
REPLACED = """
os.getpid = os.getppid = lambda: -1
dist.barrier()
"""

GO_ON = {
    "pool": (POOL_LEFT, ["[0, 1, 2, 3, 4]"] * 2), "folder": (NO_FOLDER, ["folder True", "none"]),
    "child": (CHILD_SLEEPS, ["code 3"] * 2), "replaced": (REPLACED, []),
}  # fmt: skip


@isolations
@pytest.mark.parametrize("name", GO_ON)
def test_it_goes_on_and_ends(tmp_path: Path, name: str, isolation: str) -> None:
    body, printed = GO_ON[name]
    ended = run(tmp_path, body, isolation)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == sorted([*printed, "ended 0", "ended 1"])
    assert "Traceback" not in ended.stderr


def test_a_handler_runs_between_calls_and_not_in_one(tmp_path: Path) -> None:
    """In carriers a signal from outside ends the run."""
    ended = run(tmp_path, HANDLER_IN_COLLECTIVE, "process")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["ended 0", "ended 1", "rings"]


DIES_IN_A_WAIT = """
if rank == 1:
    signal.setitimer(signal.ITIMER_REAL, 0.5)  # whose signal ends the process
else:
    for _ in range(30_000_000):
        pass
dist.barrier()
dist.barrier()
"""
THREADS_WAIT = """
first, second = threading.Lock(), threading.Lock()

def takes(one, other):
    with one:
        time.sleep(0.1)
        with other:
            pass

if rank == 1:
    threads = [threading.Thread(target=takes, args=each) for each in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
dist.barrier()
"""
NOTES = """
error = ValueError("noted")
error.__notes__ = [3, None, "a note", "x" * 100_000]
if rank == 1:
    raise error
dist.barrier()
"""
REPLACED_AND_RAISES = """
os.getpid = os.read = os.write = os.close = lambda *_: -1
dist.barrier()
if rank == 1:
    raise ValueError("of rank 1")
"""

FAIL = {
    "dies": (DIES_IN_A_WAIT, {"process": "was killed by SIGALRM"}),
    "threads": (THREADS_WAIT, {"process": "waits for a lock", "carrier": "waits for a lock"}),
    "notes": (NOTES, {"process": "a note", "carrier": "a note"}),
    "replaced": (REPLACED_AND_RAISES, {"process": "of rank 1", "carrier": "of rank 1"}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "isolation"), [(name, each) for name, (_, said) in FAIL.items() for each in said])
def test_it_fails_and_ends(tmp_path: Path, name: str, isolation: str) -> None:
    body, said = FAIL[name]
    ended = run(tmp_path, body, isolation)
    assert ended.returncode == 1, ended.stderr
    assert said[isolation] in ended.stderr
    assert "rank 1 (" in ended.stderr.splitlines()[-1]
    assert "/kernbench/" not in ended.stderr, "frames of the simulator"


IGNORED = """
import atexit

class Left:
    def __del__(self):
        threading.Event().wait(3600)

class Wrong:
    def __del__(self):
        dist.all_reduce(x, group="none")

def fails():
    dist.all_reduce(x, group="none")

if rank == 1:
    Wrong()
    atexit.register(fails)
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    Left()
    dist.barrier()
else:
    dist.barrier()
"""


@isolations
def test_what_python_only_prints_has_the_programs_lines(tmp_path: Path, isolation: str) -> None:
    """Finalizers, threads and what is done at exit; what ends a rank in a finalizer is no error of it."""
    ended = run(tmp_path, IGNORED, isolation)
    assert ended.returncode == 1, ended.stderr  # the barrier has a limit, of half an hour
    assert "Exception ignored in: <function Wrong.__del__" in ended.stderr
    assert "Exception in thread" in ended.stderr
    assert "SystemExit" not in ended.stderr
    assert "/kernbench/" not in ended.stderr, "frames of the simulator"
