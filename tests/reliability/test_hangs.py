"""Programs that would hang, under both isolations: each is ended, and what is said names the rank and its line.

Nothing here asserts how long something takes: a run that does not end is ended by ``subprocess``'s own limit, and that fails.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kernbench
from kernbench.errors import NoProgressError
from kernbench.scheduler import standstill, watchdog

LIMIT = 200
"""Seconds after which a run that has not ended fails its test."""

PROGRAM = """
import os, signal, sys, threading, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.ones(4)
BODY
print("ended", rank, flush=True)
"""

RUN = [sys.executable, "-m", "kernbench", "run", "--no-summary", "--no-prefix", "--nproc-per-node", "2"]
ENVIRON = {**os.environ, "PYTHONPATH": os.getcwd()}

isolations = pytest.mark.parametrize("isolation", ["carrier", "process"])


def write(folder: Path, body: str) -> Path:
    path = folder / "program.py"
    path.write_text(PROGRAM.replace("BODY", body.strip()))
    return path


def run(folder: Path, body: str, isolation: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*RUN, "--isolation", isolation, *options, str(write(folder, body))]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRON, timeout=LIMIT, check=False)


SPINS = """
def spins():
    while True:
        pass

if rank == 1:
    spins()
dist.barrier()
"""

SWALLOWS = """
def swallows():
    while True:
        try:
            sum(range(1000))
        except BaseException:
            pass

if rank == 1:
    swallows()
dist.barrier()
"""

RECURS = """
def recurs(n=0):
    try:
        recurs(n + 1)
    except RecursionError:
        recurs(n + 1)
    recurs(n + 1)

if rank == 1:
    recurs()
dist.barrier()
"""

THREAD_SPINS = """
def spins():
    while True:
        pass

if rank == 1:
    threading.Thread(target=spins, name="busy").start()
dist.barrier()
"""

HANGS = {"spins": SPINS, "swallows": SWALLOWS, "recurs": RECURS, "thread": THREAD_SPINS}
INNERMOST = {"spins": "spins", "swallows": "swallows", "recurs": "recurs", "thread": "spins"}


@isolations
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each == "spins" else pytest.mark.long) for each in HANGS]
)
def test_a_rank_that_runs_for_ever_is_ended_after_a_limit(tmp_path: Path, name: str, isolation: str) -> None:
    ended = run(tmp_path, HANGS[name], isolation, "--hang-after", "2")
    assert ended.returncode in (1, 2), ended.stderr
    assert "NoProgressError" in ended.stderr or "kernbench: error: no rank has come further" in ended.stderr
    assert re.search(
        r"no rank has come further for .* s of wall-clock time: rank 1 runs, and the others wait", ended.stderr
    )
    assert re.search(rf'program\.py", line \d+, in {INNERMOST[name]}\n', ended.stderr)
    assert re.search(r"  rank 0: waits (in|for) barrier.* at .*program\.py:\d+ in <module>", ended.stderr)
    assert "It was to end after 2 s" in ended.stderr


@isolations
@pytest.mark.parametrize("name", ["spins", "swallows"])
@pytest.mark.long  # runs that wait by the clock
def test_ctrl_c_ends_it_with_the_report(tmp_path: Path, name: str, isolation: str) -> None:
    path = write(tmp_path, HANGS[name].replace("    while True", "    open('begun', 'w').close()\n    while True"))
    command = [*RUN, "--isolation", isolation, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=ENVIRON,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        while not (tmp_path / "begun").exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(standstill.SHORT + 2)  # a run that has just come further shows no stacks
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, said
    assert re.search(r"no rank has come further .* rank 1 runs", said)
    assert f"in {INNERMOST[name]}\n" in said
    assert "kernbench: SIGINT has ended the run" in said
    assert ("rank 1 was asked to end, twice, and goes on" in said) is (name == "swallows" and isolation == "carrier")


def test_without_a_limit_it_is_said_and_said_again_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standstill, "SILENCE", 0.1)
    monkeypatch.setattr(watchdog, "PERIOD", 0.02)
    clock = time.perf_counter

    def body(rank: int, ctx: kernbench.RuntimeContext) -> None:
        ctx.distributed.init_process_group()
        if rank == 1:
            while said() < 3:
                until = clock() + 0.05
                while clock() < until:
                    pass
        ctx.distributed.barrier()

    texts: list[str] = []

    def said() -> int:
        texts.append(capfd.readouterr().err)
        return sum(text.count("no rank has come further") for text in texts)

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2)
    told = [float(each) for each in re.findall(r"further for ([\d.]+) s", "".join(texts))]
    assert len(told) == 3
    assert all(later >= 1.9 * earlier for earlier, later in itertools.pairwise(told))
    assert "Ctrl-C ends the run. --hang-after SECONDS" in texts[0] + texts[1] + "".join(texts)


@pytest.mark.parametrize("isolation", ["carrier", "greenlet", "process"])
def test_the_rank_that_ran_raises_it_and_unwinds(
    isolation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error is the rank's own, so its ``finally`` blocks run; those of a process do not. The context goes on."""
    monkeypatch.setenv(standstill.VARIABLE, "1")

    def body(rank: int, ctx: kernbench.RuntimeContext) -> None:
        ctx.distributed.init_process_group()
        try:
            if rank == 1:
                while (
                    True
                ):  # Python 3.13 skips `finally` where an exception from outside ends a `while` with a condition
                    sum(range(100))
            ctx.distributed.barrier()
        finally:
            (tmp_path / f"unwound {rank}").touch()

    with kernbench.simulate() as ctx:
        with pytest.raises(kernbench.SpawnException) as failed:
            ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2, isolation=isolation)
        assert set(failed.value.errors) == {1}
        assert isinstance(failed.value.errors[1], NoProgressError)
        assert (tmp_path / "unwound 0").exists()
        assert (tmp_path / "unwound 1").exists() is (isolation != "process")
        ended: list[int] = []
        ctx.multiprocessing.spawn(ended.append, nprocs=2)
    assert ended == [0, 1]


def test_a_limit_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def times() -> list[float]:
        found = []

        def body(rank: int, ctx: kernbench.RuntimeContext) -> None:
            ctx.distributed.init_process_group()
            ctx.distributed.all_reduce(ctx.ones((256, 256)))
            ctx.synchronize()
            found.append(ctx.now())

        with kernbench.simulate() as ctx:
            ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=4)
        return found

    without = times()
    monkeypatch.setenv(standstill.VARIABLE, "0.05")
    monkeypatch.setattr(standstill, "SILENCE", 0.0)
    assert times() == without


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_limit_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(standstill.VARIABLE, text)
    with pytest.raises(kernbench.KernbenchError, match="KERNBENCH_HANG_AFTER"), kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(lambda rank: None, nprocs=1)


@isolations
@pytest.mark.long  # runs that wait by the clock
def test_a_rank_that_swallows_its_end_is_given_up(tmp_path: Path, isolation: str) -> None:
    """Another one has failed: the second attempt to end this one is final."""
    body = """
if rank == 1:
    while True:
        try:
            dist.barrier()
            dist.barrier()
        except BaseException:
            sum(range(1000))
dist.barrier()
raise ValueError("of rank 0")
"""
    ended = run(tmp_path, body, isolation)
    assert ended.returncode != 0
    assert "ValueError: of rank 0" in ended.stderr


@isolations
@pytest.mark.long  # runs that wait by the clock
def test_an_alarm_rings_in_its_rank(tmp_path: Path, isolation: str) -> None:
    body = """
def rings(number, frame):
    raise TimeoutError(f"alarm in {frame.f_code.co_name}")

def spins():
    while True:
        pass

if rank == 1:
    signal.signal(signal.SIGALRM, rings)
    signal.alarm(1)
    try:
        spins()
    except TimeoutError as error:
        print(error)
    assert signal.alarm(0) == 0
dist.barrier()
"""
    ended = run(tmp_path, body, isolation)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["alarm in spins", "ended 0", "ended 1"]


@isolations
@pytest.mark.parametrize(
    ("child", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('why')", 1, "why"),
        ("raise ValueError('of the child')", 1, "ValueError: of the child"),
        ("pass", 0, ""),
        ("os._exit(5)", 5, ""),
        ("dist.barrier()", 1, "is no rank"),
    ],
    ids=["exit", "words", "raise", "return", "_exit", "barrier"],
)
@pytest.mark.long  # runs that wait by the clock
def test_what_a_rank_forks_ends_by_itself(tmp_path: Path, child: str, code: int, said: str, isolation: str) -> None:
    body = f"""
pid = 1
if rank == 1:
    print("once")
    pid = os.fork()
    if pid == 0:
        print("child", flush=True)
        {child}
    else:
        print("code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
if pid == 0:
    print("past it", flush=True)
    sys.exit(0)
dist.barrier()
"""
    ended = run(tmp_path, body, isolation)
    assert ended.returncode == 0, ended.stderr
    past = ["past it"] if child == "pass" else []
    assert sorted(ended.stdout.splitlines()) == sorted(["once", "child", *past, f"code {code}", "ended 0", "ended 1"])
    assert said in ended.stderr


@isolations
@pytest.mark.long  # runs that wait by the clock
def test_a_thread_that_keeps_its_rank_is_named(tmp_path: Path, isolation: str) -> None:
    """It sleeps in virtual time, which goes on: no rank stands still."""
    body = """
from kernbench.scheduler import standstill
over = []

def serves():
    while not over:
        time.sleep(0.01)

if rank == 1:
    threading.Thread(target=serves, name="server").start()
"""
    path = write(tmp_path, body)
    code = (
        "from kernbench.scheduler import standstill; standstill.LINGERING = 1; import kernbench.scheduler.rank_scheduler as r; "
        "r.LINGERING = 1; from kernbench.cli import main; main()"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "run",
        "--no-summary",
        "--nproc-per-node",
        "2",
        "--isolation",
        isolation,
        path,
    ]
    with subprocess.Popen(
        [*map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=ENVIRON
    ) as process:
        assert process.stderr is not None
        line = ""
        for line in process.stderr:
            if "kernbench:" in line:
                break
        process.terminate()
        process.communicate(timeout=LIMIT)
    assert line.startswith("kernbench: rank 1's program has ended, and its thread 'server' goes on")


@isolations
@pytest.mark.long  # runs that wait by the clock
def test_a_lock_that_is_never_released(tmp_path: Path, isolation: str) -> None:
    body = """
lock = threading.Lock()
if rank == 1:
    lock.acquire()
    lock.acquire()
dist.barrier()
"""
    ended = run(tmp_path, body, isolation)
    assert ended.returncode in (1, 2)
    assert "rank 1 has been blocking its" in ended.stderr
    assert "lock.acquire()" in ended.stderr
    assert "no other thread or process is there that could release it" in ended.stderr


@pytest.mark.long  # runs that wait by the clock
def test_a_lock_with_a_limit_is_waited_for(tmp_path: Path) -> None:
    """Longer than what is taken for a lock that is never released."""
    body = f"""
lock = threading._allocate_lock()
if rank == 1:
    lock.acquire()
    print(lock.acquire(timeout={watchdog.PATIENCE * watchdog.PERIOD + 3}))
dist.barrier()
"""
    ended = run(tmp_path, body, "carrier")
    assert ended.returncode == 0, ended.stderr
    assert "False" in ended.stdout
    assert "rank 1 has been blocking its thread" in ended.stderr


@isolations
@pytest.mark.long  # runs that wait by the clock
def test_thousands_of_messages_under_way(tmp_path: Path, isolation: str) -> None:
    body = """
if rank == 0:
    under_way = [dist.isend(torch.full((1,), float(n)), 1) for n in range(5000)]
else:
    found = torch.zeros(5000, 1)
    under_way = [dist.irecv(part, 0) for part in found]
for each in under_way:
    each.wait()
if rank == 1:
    assert found.flatten().tolist() == list(range(5000))
"""
    ended = run(tmp_path, body, isolation)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.long  # runs that wait by the clock
def test_ranks_whose_launcher_is_killed_end(tmp_path: Path, number: int) -> None:
    path = write(
        tmp_path, f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(str(os.getpid()))\ndist.barrier()\n" + SPINS
    )
    command = [*RUN[:5], "--", "torchrun", "--nproc-per-node", "2", str(path)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=ENVIRON
    ) as process:
        while not all((tmp_path / str(rank)).exists() for rank in range(2)) and process.poll() is None:
            time.sleep(0.05)
        (launcher,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(launcher), number)
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    if number == signal.SIGKILL:
        assert said.count("what has started the ranks (torchrun, say) has ended before they had") == 1
    gone(lambda: [(tmp_path / str(rank)).read_text() for rank in range(2)])


def gone(pids: Callable[[], list[str]]) -> None:
    """Return when processes have ended; the test's limit is that of the suite."""
    for pid in pids():
        while (
            Path(f"/proc/{pid}/stat").exists()
            and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        ):
            time.sleep(0.05)


def test_a_wait_in_c_of_ranks_that_share_a_thread_is_said_and_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No line of Python runs in it, at which an error could be raised."""
    monkeypatch.setenv(standstill.VARIABLE, "0.8")
    monkeypatch.setattr(standstill, "BLOCKED", 0.3)
    reader, writer = multiprocessing.Pipe()

    def body(rank: int) -> None:
        if rank == 0:
            reader.recv()
        else:
            writer.send("it never comes to that")

    with kernbench.simulate() as ctx, pytest.raises(kernbench.SpawnException) as failed:
        ctx.multiprocessing.spawn(body, nprocs=2, isolation="greenlet")
    assert isinstance(failed.value.errors[0], NoProgressError)
    assert "reader.recv()" in str(failed.value.errors[0])
    said = capfd.readouterr().err
    assert "rank 0 has been blocking the thread that all ranks share" in said
    assert "need isolation='carrier'" in said
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
