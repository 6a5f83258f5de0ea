"""What a command leaves behind under ``kernbench run --`` ends with the run, unless all has gone well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kernbench import child_processes
from kernbench.child_processes import (
    NoMoreChildren,
    adopting,
    descendants,
    end_descendants,
    has_variable,
    run_child,
    threads_with_children,
)
from tests.reliability.test_commands_end import is_running
from tests.reliability.test_hangs import ENVIRON, LIMIT, RUN, isolations, write

LOSES = """
import os, subprocess, sys, time
code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); open('lost', 'w').write(str(os.getpid())); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not os.path.exists("lost") or not open("lost").read():
    time.sleep(0.01)
"""


def test_an_orphan_is_ended_and_another_process_is_not() -> None:
    """A grandchild whose parent has ended, that does not want to; and a child without the variable."""
    loops = "trap : TERM; while :; do sleep 0.1; done"
    loses = f"import subprocess as s; print(s.Popen(['sh', '-c', '{loops}'], stdout=s.DEVNULL).pid)"
    with adopting(), subprocess.Popen(["sleep", "1000"]) as other:
        made = subprocess.run(
            [sys.executable, "-c", loses], env={**os.environ, "KERNBENCH_TESTED": "yes"}, stdout=subprocess.PIPE,
            text=True, check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert int(made.stdout) in descendants(os.getpid())
        end_descendants(lambda pid: has_variable(pid, "KERNBENCH_TESTED", "yes"), 0.2)
        assert not is_running(int(made.stdout))
        assert other.poll() is None
        other.kill()


def test_a_thread_that_is_about_to_start_a_process_starts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is left by what a signal raises, say, when its threads are anywhere in what they do."""
    begun, left = threading.Event(), threading.Event()
    monkeypatch.setattr(child_processes, "_end", lambda running: left.set())

    def point() -> None:
        begun.set()
        left.wait()
        run_child(["touch", "made"], cwd=tmp_path, env={}, timeout=None)

    with pytest.raises(KeyboardInterrupt), threads_with_children(1) as pool:  # noqa: PT012
        under_way, to_come = pool.submit(point), pool.submit(point)
        begun.wait()
        raise KeyboardInterrupt
    assert isinstance(under_way.exception(), NoMoreChildren)
    assert to_come.cancelled()
    run_child(["touch", "later"], cwd=tmp_path, env=dict(os.environ), timeout=None)
    assert os.listdir(tmp_path) == ["later"]


def test_what_a_killed_process_had_started_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the pipe that the process's output is read from."""
    monkeypatch.setattr(child_processes, "_GRACE", 0.1)
    stubborn = "trap '' TERM; sleep 1000 & echo $! > number; wait"
    with pytest.raises(KeyboardInterrupt), threads_with_children(1) as pool:  # noqa: PT012
        pool.submit(run_child, ["sh", "-c", stubborn], cwd=tmp_path, env=dict(os.environ), timeout=None)
        while not (tmp_path / "number").exists() or not (tmp_path / "number").read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not is_running(int((tmp_path / "number").read_text()))


WAITS = {
    "subprocess": "__import__('subprocess').run([sys.executable, '-c', CODE])",
    "fork": "pid = os.fork()\n    if not pid:\n        exec(CODE)\n    os.waitpid(pid, 0)",
}
SAYS = "import os, signal; open('lost', 'w').write(str(os.getpid())); signal.pause()"


@isolations
@pytest.mark.parametrize("how", WAITS)
@pytest.mark.parametrize("ended", ["limit", "signal"])
@pytest.mark.long  # commands that import torch
def test_what_a_rank_waits_for_that_is_given_up_ends(tmp_path: Path, how: str, ended: str, isolation: str) -> None:
    path = write(
        tmp_path,
        f"os.chdir({str(tmp_path)!r})\nif rank == 1:\n    {WAITS[how].replace('CODE', repr(SAYS))}\ndist.barrier()",
    )
    limit = ["--hang-after", "3"] if ended == "limit" else []
    with subprocess.Popen(
        [*RUN, "--isolation", isolation, *limit, str(path)],
        env=ENVIRON,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        while not (tmp_path / "lost").exists() and process.poll() is None:
            time.sleep(0.05)
        if ended == "signal":
            process.terminate()
        said, _ = process.communicate(timeout=LIMIT)  # its children have the pipe, too
    assert process.returncode == (1 if ended == "limit" else 143), said
    assert not is_running(int((tmp_path / "lost").read_text()))


@pytest.mark.long  # commands that import torch
@pytest.mark.parametrize("end", ["sys.exit(3)", "time.sleep(1000)", "pass"], ids=["fails", "interrupted", "well"])
def test_what_a_launcher_has_lost_ends_with_the_run(tmp_path: Path, end: str) -> None:
    (tmp_path / "loses.py").write_text(LOSES + end)
    command = [sys.executable, "-m", "kernbench", "run", "--no-summary", "--", sys.executable, "loses.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRON, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        if "1000" in end:
            while not (tmp_path / "lost").exists() and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == {"pass": 0, "sys.exit(3)": 3}.get(end, 143), said
    pid = int((tmp_path / "lost").read_text())
    if end != "pass":
        assert not is_running(pid)
        return
    os.kill(pid, signal.SIGKILL)  # a daemon that a program has started, as on a GPU's machine: it was there
