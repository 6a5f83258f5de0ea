"""Programs that end in unusual ways, under both isolations: what is said names the rank and the line, and comes first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.test_hangs import ENVIRON, LIMIT, RUN, isolations, run, write

pytestmark = pytest.mark.long  # interpreters that import torch

BESIDE = "With --isolation process (isolation='process') it would end alone"


@isolations
@pytest.mark.parametrize(
    ("how", "in_carrier", "in_process"),
    [
        ("os._exit(7)", "rank 1 ends the process that all ranks share: os._exit(7) at ", "ended with exit code 7"),
        ("os.abort()", "rank 1 ends the process that all ranks share: os.abort() at ", "was killed by SIGABRT"),
        ("os.kill(os.getpid(), 15)", "rank 1 ends the process that all ranks share: kill with SIGTERM", "killed by SIGTERM"),
        ("os.execv('/bin/true', ['true'])", "rank 1 ends the process that all ranks share: os.exec of ", "exit code 0"),
        ("import ctypes; ctypes.string_at(0)", "in rank 1 (ranks share this process: see --isolation process)", "by SIGSEGV"),
    ],
    ids=["_exit", "abort", "kill", "execv", "null"],
)  # fmt: skip
def test_who_ends_the_process_is_said(
    tmp_path: Path, how: str, in_carrier: str, in_process: str, isolation: str
) -> None:
    ended = run(tmp_path, f"dist.barrier()\nif rank == 1:\n    {how}\ndist.barrier()", isolation)
    said = ended.stderr
    if isolation == "carrier":
        assert in_carrier in said
        assert BESIDE in said or "Segmentation fault" in said
        assert "program.py:11 in <module>" in said or 'program.py", line 11 in <module>' in said
    else:
        assert ended.returncode == 1
        assert "RankDiedError: rank 1 (process " in said
        assert in_process in said
        assert "Its last call to others: barrier" in said
        assert "kernbench: failed: rank 1 (RankDiedError)" in said
        if "execv" not in how:  # the program that it has become has no stack of ours
            assert 'program.py", line 11 in <module>' in said


@isolations
def test_an_interrupt_that_a_rank_raises_comes_first(tmp_path: Path, isolation: str) -> None:
    ended = run(tmp_path, "if rank == 1:\n    raise KeyboardInterrupt\ndist.barrier()", isolation)
    assert ended.returncode == 1
    report = ended.stderr[ended.stderr.index("-- Process") :]
    assert report.startswith("-- Process 1 terminated with the following error:\nTraceback")
    assert 'program.py", line 10, in <module>\n    raise KeyboardInterrupt\nKeyboardInterrupt\n' in report
    assert "kernbench: failed: rank 1 (KeyboardInterrupt)" in report
    assert "deadlock" not in report
    assert "RaisedElsewhere" not in report


@isolations
def test_an_exception_that_cannot_say_what_it_is(tmp_path: Path, isolation: str) -> None:
    body = """
class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

if rank == 1:
    raise Mute()
dist.barrier()
"""
    ended = run(tmp_path, body, isolation, "--json", str(tmp_path / "run.json"), "--report", str(tmp_path / "run.html"))
    assert ended.returncode == 1
    assert "Mute: <its __str__ raised RuntimeError>" in ended.stderr
    assert ended.stderr.count("Traceback (most recent call last)") == 1
    assert ended.stderr.rstrip().splitlines()[-1].startswith("kernbench: failed: rank 1 (")
    assert "its __str__ raised" in (tmp_path / "run.json").read_text()


@isolations
def test_one_that_says_very_much_is_shortened(tmp_path: Path, isolation: str) -> None:
    ended = run(tmp_path, "if rank == 1:\n    raise ValueError('x' * 10_000_000)\ndist.barrier()", isolation)
    assert ended.returncode == 1
    assert "shortened: the message has 10,000,000 characters" in ended.stderr
    assert len(ended.stderr) < 100_000


@isolations
def test_a_full_disk_is_a_line_and_no_half_file(tmp_path: Path, isolation: str) -> None:
    ended = run(tmp_path, "", isolation, "--json", "/dev/full")
    assert ended.returncode == 1
    assert ended.stderr.rstrip().splitlines()[-1] == "kernbench: error: cannot write /dev/full: No space left on device"


def test_a_reader_that_wants_no_more_is_quiet(tmp_path: Path) -> None:
    path = write(tmp_path, "for number in range(20000):\n    print(number)")
    with subprocess.Popen(
        [*RUN, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(LIMIT) == 141
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "command", [["kernbench", "bench", "run", "ccl_sweep"], ["kernbench.benches.ccl_sweep"]], ids=len
)
def test_a_bench_that_cannot_print_says_so_in_a_line(command: list[str]) -> None:
    given = [sys.executable, "-m", *command, "-e", "1M", "--collectives", "all_reduce"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(given, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRON, timeout=LIMIT)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) <= 2  # as a bench, and as a command
    assert "error: cannot write standard output: No space left on device" in ended.stderr
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, said = process.communicate(timeout=LIMIT)
        assert (process.returncode, said) == (141, "")


@isolations
@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)], ids=["output", "error", "all"])
def test_closed_standard_streams_lead_nowhere(tmp_path: Path, closed: tuple[int, ...], isolation: str) -> None:
    """What is opened next does not become one of them, and what is printed is no failure."""
    said = tmp_path / "said"
    body = f"""
print("out")
print("error", file=sys.stderr)
with open({str(said)!r} + str(rank), "w") as file:
    os.write(1, b"to output")
    os.write(2, b"to error")
    file.write(str(file.fileno() > 2))
"""
    path = write(tmp_path, body)
    command = [*RUN, "--isolation", isolation, str(path)]
    ended = subprocess.run(
        command, env=ENVIRON, timeout=LIMIT, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: [os.close(each) for each in closed],
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert [Path(f"{said}{rank}").read_text() for rank in range(2)] == ["True", "True"]
    assert ("ended 0" in ended.stdout) is (1 not in closed)
