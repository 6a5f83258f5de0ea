"""``kernbench explore`` as a command: what it finds does not depend on ``--jobs``, and an interrupt ends all runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
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

from known_as import FIRST as first, SEEN

me = str(os.getpid())
if not os.path.exists(first):
    open(first, "w").write(me)
if open(first).read() != me:  # the default schedule's run has ended
    open(SEEN, "a").write(me + "\\n")
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Dask scheduler with two workers."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs="ERROR"
    ) as here:
        yield here.scheduler_address


@pytest.mark.parametrize("how", ["exhaustive:2"])
def test_results_are_the_same_on_a_cluster(how: str, cluster: str, tmp_path: Path) -> None:
    (tmp_path / "leader.py").write_text(LEADER)
    asked = ("--how", how, "--runs", "40", "leader.py")
    here, there = (
        subprocess.run(
            command(*more, *asked), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        for more in ((), ("--scheduler", cluster))
    )
    assert here.stdout == there.stdout, there.stderr
    assert (here.returncode, there.returncode) == (1, 1)


def test_a_run_that_dies_on_a_cluster_is_an_error_and_the_next_one_runs(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os\nos._exit(3)\n")
    (tmp_path / "fine.py").write_text("print('fine')\n")
    dies, fine = (
        subprocess.run(
            command("--scheduler", cluster, "--runs", "3", name), cwd=tmp_path, env=environment(), capture_output=True,
            text=True, check=False,
        )
        for name in ("dies.py", "fine.py")
    )  # fmt: skip
    assert "a run has died (exit code 3)" in dies.stderr
    assert "nothing found in 4 runs" in fine.stdout, fine.stderr


def test_a_scheduler_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "leader.py").write_text(LEADER)
    for more, words in (
        (("--scheduler", "tcp://127.0.0.1:9"), "no Dask scheduler answers at tcp://127.0.0.1:9"),
        (("--scheduler", "tcp://127.0.0.1:9", "--jobs", "2"), "--jobs is for runs on this machine"),
    ):
        said = subprocess.run(
            command(*more, "leader.py"), cwd=tmp_path, capture_output=True, text=True, check=False,
            env=environment(DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="2s"),
        )  # fmt: skip
        assert said.returncode != 0
        assert words in said.stderr


def test_the_fewest_ranks_are_told(tmp_path: Path) -> None:
    """One rank leads itself; with two, both may think that they lead."""
    (tmp_path / "leader.py").write_text(LEADER)
    asked = [each if each != "2" else "4" for each in command("--how", "pct:2", "--runs", "60", "leader.py")]
    said = subprocess.run(asked, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False).stdout
    fewer = re.search(
        r"with 2 of 4 ranks the same is found: kernbench run --nproc-per-node 2 (--schedule \S+) \.\.\.", said
    )
    assert fewer is not None, said
    run = [sys.executable, "-m", "kernbench", "run", "--nproc-per-node", "2", "--system", "dgx_h100", *fewer[1].split()]
    again = subprocess.run(
        [*run, "leader.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert "does not match between ranks" in again.stderr


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


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_an_interrupt_ends_all_runs(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    more = ("--jobs", "2") if where == "here" else ("--scheduler", request.getfixturevalue("cluster"))
    seen = tmp_path / "seen"
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "known_as.py").write_text(f"FIRST, SEEN = {str(tmp_path / 'first')!r}, {str(seen)!r}\n")
    with subprocess.Popen(
        command(*more, "endless.py"), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        while not seen.exists() or len(seen.read_text().splitlines()) < 2:
            assert running.poll() is None
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        assert running.wait() != 0
    pids = {int(line) for line in seen.read_text().split()}
    assert len(pids) == 2
    last = time.monotonic() + (0 if where == "here" else 60)  # workers are asked to stop, and look once a second
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < last:
        time.sleep(0.1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
