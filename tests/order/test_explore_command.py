"""``kernbench explore`` as a command: what it finds does not depend on ``--jobs``, and an interrupt ends all runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernbench.html_report import read_page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]

LEADER = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
store = dist.TCPStore("localhost", 29501, is_master=rank == 0)
if store.check(["leader"]):
    leader = int(store.get("leader"))
else:
    leader = rank
    store.set("leader", str(rank))
dist.broadcast(torch.full((4,), 7.0, device="cuda"), src=leader)
"""

ENDLESS = """
import os

first, me = os.environ["FIRST"], str(os.getpid())
if not os.path.exists(first):
    open(first, "w").write(me)
if open(first).read() != me:  # the default schedule's run has ended
    open(os.environ["SEEN"], "a").write(me + "\\n")
    while True:
        pass
"""


def command(*arguments: str) -> list[str]:
    """The command, in a process of its own."""
    return [sys.executable, "-m", "kernbench", "explore", "--nproc-per-node", "2", "--system", "dgx_h100", *arguments]


def environment(**more: str) -> dict[str, str]:
    """That of a process which finds this package."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@pytest.mark.parametrize("how", ["random", "pct:2", "exhaustive:2"])
def test_results_do_not_depend_on_how_many_run_at_a_time(how: str, tmp_path: Path) -> None:
    (tmp_path / "leader.py").write_text(LEADER)
    said = [
        subprocess.run(
            command("--how", how, "--runs", "40", "--jobs", jobs, "leader.py"), cwd=tmp_path, env=environment(),
            capture_output=True, text=True, check=False,
        ).stdout
        for jobs in ("1", "2")
    ]  # fmt: skip
    assert said[0] == said[1]
    assert re.match(r"found in run \d+, under schedule .*: mismatch", said[0])


def test_what_was_run_is_a_page(tmp_path: Path) -> None:
    (tmp_path / "leader.py").write_text(LEADER)
    said = subprocess.run(
        command("--how", "random", "--runs", "40", "--report", "found.html", "leader.py"), cwd=tmp_path, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 1
    header, _ = read_page(tmp_path / "found.html")
    runs = int(re.findall(r"found in run (\d+)", said.stdout)[0])
    searched = [row for row in header["rows"] if row[1] == "search"]
    assert len(searched) == runs
    assert [row[-1] for row in searched] == [""] * (runs - 1) + ["mismatch"]
    assert header["facts"][0][:2] == ["found", "mismatch"]
    assert "replay" in dict(header["findings"])


def test_an_interrupt_ends_all_runs(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "endless.py").write_text(ENDLESS)
    with subprocess.Popen(
        command("--jobs", "2", "endless.py"), cwd=tmp_path, env=environment(SEEN=str(seen), FIRST=str(tmp_path / "first")),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        while not seen.exists() or len(seen.read_text().splitlines()) < 2:
            assert running.poll() is None
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        assert running.wait() != 0
    pids = {int(line) for line in seen.read_text().split()}
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
