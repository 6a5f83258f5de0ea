"""Ranks that are processes: state of their own, failures, deaths, and what cannot be had."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl

import kernbench
from tests.processes.outcomes import assert_equal, outcome

WORLD = 4


class Singleton:
    """A class that keeps what it knows in itself, as installed packages do."""

    shared: ClassVar[dict[str, int]] = {}


def spawn(worker: Any, world: int = WORLD, **options: Any) -> Any:
    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world, isolation="process")
        return ctx


def failures(worker: Any, world: int = WORLD) -> kernbench.SpawnException:
    with pytest.raises(kernbench.SpawnException) as raised:
        spawn(worker, world)
    return raised.value


def test_what_python_keeps_per_process_is_each_ranks_own(capsys):
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        Singleton.shared["rank"] = rank
        logging.basicConfig(format=f"{rank} %(message)s", stream=sys.stdout, force=True)
        lock = threading.Lock()
        with lock, logging.root.handlers[0].lock:  # held across a wait
            dist.barrier()
        assert Singleton.shared == {"rank": rank}
        assert os.environ["RANK"] == str(rank)
        logging.warning("said")

    spawn(worker)
    assert sorted(capsys.readouterr().out.splitlines()) == [f"{rank} said" for rank in range(WORLD)]
    assert Singleton.shared == {}


def test_a_rank_has_a_process(capsys):
    def worker(rank: int) -> None:
        print(os.getpid())

    spawn(worker)
    numbers = {int(line) for line in capsys.readouterr().out.split()}
    assert len(numbers) == WORLD
    assert os.getpid() not in numbers


def test_threads_of_a_rank_call_collectives(capsys):
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        total = torch.ones(2)
        thread = threading.Thread(target=lambda: dist.all_reduce(total))
        thread.start()
        thread.join()
        print(total.tolist())

    spawn(worker)
    assert capsys.readouterr().out == "[4.0, 4.0]\n" * WORLD


def test_a_server_whose_worker_waits_for_requests_outside_of_the_simulation(capsys):
    context = multiprocessing.get_context("fork")
    requests, answers, begin, (theirs, ours) = context.Queue(), context.SimpleQueue(), context.Event(), context.Pipe()

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        if rank == 0:
            begin.wait()
            while (number := requests.get()) is not None:
                x = torch.full((64,), float(number), device="cuda")
                dist.all_reduce(x)
                answers.put(x[0].item())
            theirs.send("ended")
        else:
            torch.ones(4096, device="cuda").sum().item()  # takes turns, while the other one waits
            begin.set()
            for number in (1, 2):
                requests.put(number)
                dist.all_reduce(torch.full((64,), float(number), device="cuda"))
                print(answers.get(), time.perf_counter())
            requests.put(None)
            assert ours.recv() == "ended"

    first, second = (outcome(worker, "process", 2, lambda: capsys.readouterr().out) for _ in range(2))
    assert [float(line.split()[0]) for line in first.printed.splitlines()] == [2.0, 4.0]
    assert_equal(first, second)


def test_errors_come_back_with_the_ranks_own_traceback(capsys):
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        try:
            if rank == 1:
                raise ValueError("the rank's own")
            dist.barrier()
        finally:
            print("unwound", rank)

    error = failures(worker)
    assert {rank: type(each) for rank, each in error.errors.items()} == {1: ValueError}
    assert "test_processes.py" in str(error)
    assert "ValueError: the rank's own" in str(error)
    assert sorted(capsys.readouterr().out.split("\n")) == ["", "unwound 0", "unwound 1"]


def test_an_error_that_cannot_travel_is_told_in_words():
    def worker(rank: int) -> None:
        class Own(Exception):
            pass

        raise Own("only here")

    error = failures(worker, 1).errors[0]
    assert isinstance(error, kernbench.KernbenchError)
    assert type(error).__name__ == "Own"
    assert str(error) == "only here"


def test_a_deadlock_is_told_with_lines_of_the_program():
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank:
            dist.recv(torch.ones(3), 0)
        else:
            dist.all_reduce(torch.ones(3))

    found = failures(worker).errors
    assert set(found) == set(range(WORLD))
    assert all(isinstance(each, kernbench.DeadlockError) for each in found.values())
    assert "Wait-for cycle: rank 0 -> rank 1 -> rank 0" in str(found[0])
    assert str(found[0]).count("test_processes.py") >= 2 * WORLD


def test_a_wait_for_a_key_that_never_comes_is_told_where_it_is():
    def worker(rank: int) -> None:
        dist.TCPStore("localhost", 1, 2, rank == 0).get("never")

    assert "test_processes.py" in str(failures(worker, 2).errors[0])


def test_calls_that_do_not_match_name_both_sides():
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(3 + rank // 2))

    found = failures(worker).errors
    assert isinstance(found[2], kernbench.CollectiveMismatchError)
    assert str(found[2]).count("test_processes.py") == 2


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was killed by SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os._exit(3), "ended with exit code 3"),
    ],
    ids=["segv", "kill", "exit"],
)
def test_a_death_ends_the_run_and_says_where(end, words):
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        if rank == 2:
            end()
        dist.barrier()

    error = failures(worker)
    assert list(error.errors) == [2]
    assert words in str(error)
    assert "barrier(algorithm auto) #0 on the default group, completed, at" in str(error)
    if "SIGKILL" not in words:
        assert str(error).count("test_processes.py") >= 2  # and its stack


def test_a_death_is_noticed_while_another_rank_computes():
    def worker(rank: int) -> None:
        if rank == 1:
            os._exit(5)
        while True:
            pass

    assert list(failures(worker, 2).errors) == [1]


def test_the_context_stays_usable():
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        if rank == 1:
            os._exit(1)

    with kernbench.simulate("dgx_h100") as ctx:
        for _ in range(2):
            with pytest.raises(kernbench.SpawnException):
                ctx.multiprocessing.spawn(worker, nprocs=2, isolation="process")


_ENDLESS = """
import os, sys, torch.distributed as dist, kernbench

def worker(rank):
    dist.init_process_group("gloo")
    dist.barrier()
    with open(f"{sys.argv[1]}/{rank}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{sys.argv[1]}/{rank}", f"{sys.argv[1]}/{rank}.pid")
    while True:
        pass

with kernbench.simulate("dgx_h100") as ctx:
    ctx.multiprocessing.spawn(worker, nprocs=2, isolation="process")
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)], ids=["kill", "ctrl-c"]
)
def test_no_process_is_left_when_the_simulation_is_ended(number, tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(_ENDLESS)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stderr=subprocess.DEVNULL,
    )
    while not list(tmp_path.glob("*.pid")) and process.poll() is None:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.send_signal(number)
    process.wait()
    while any(Path("/proc", each).exists() for each in children):  # those of SIGKILL are reaped by init
        time.sleep(0.01)


def test_what_cannot_be_had_is_refused():
    with pytest.raises(kernbench.ConfigError, match="races"):
        spawn(lambda rank: None, races=True)


@pytest.mark.long  # interpreters that import torch
def test_the_command_runs_a_program_in_processes(warm_python, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(4, device='cuda')\n"
        "dist.all_reduce(x)\n"
        "print(x.sum().item(), os.environ['RANK'])\n"
    )
    command = [warm_python, "-m", "kernbench", "run", "--nproc-per-node", "2", "--system", "dgx_h100", str(script)]
    seen = []
    for isolation in ("carrier", "process"):
        done = subprocess.run(
            [*command[:4], "--isolation", isolation, *command[4:]], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        seen.append(done.stdout)
    assert seen[0] == seen[1]
    assert "[rank1] 8.0 1" in seen[1]


class Squares(torch.utils.data.Dataset):
    """What workers compute with torch, and print."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index)).square().clone() if index else torch.zeros(3)


def test_a_rank_has_workers_of_its_own(capsys):
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        total = torch.zeros(3)
        for batch in torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2):
            total += batch.sum(0)
        dist.all_reduce(total)
        print(total[0].item())

    spawn(worker, 2)
    assert capsys.readouterr().out == "280.0\n280.0\n"


def test_a_process_that_a_rank_starts_is_no_rank(capsys):
    def child(results: Any) -> None:
        try:
            dist.all_reduce(torch.ones(2))
        except kernbench.KernbenchError as error:
            results.put(str(error))

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        context = torch.multiprocessing.get_context("fork")
        results = context.Queue()
        process = context.Process(target=child, args=(results,))
        process.start()
        print(results.get())
        process.join()

    spawn(worker, 1)
    assert "is no rank" in capsys.readouterr().out


def test_too_many_ranks_for_the_systems_limits_is_told_in_words():
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 6, before[1]))
    try:
        with pytest.raises(kernbench.KernbenchError, match="ulimit -n"):
            spawn(lambda rank: None, 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(os.listdir("/proc/self/fd")) <= used
    spawn(lambda rank: None, 2)


@pytest.mark.long  # interpreters that import torch
def test_a_fork_that_the_system_refuses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have to promise memory that has no user any more: that is collected, and it works."""
    fork, refused = os.fork, []

    def refuse() -> int:
        if not refused:
            refused.append(1)
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return fork()

    monkeypatch.setattr(os, "fork", refuse)
    spawn(lambda rank: None, 2)
    assert refused


@triton.jit
def _waits_for(flag):
    while tl.atomic_add(flag, 0) != 1:
        pass


@pytest.mark.parametrize("looks", [False, True])
def test_a_kernel_that_waits_for_what_nothing_writes_is_described(looks: bool) -> None:
    def worker(rank: int) -> None:
        flag = torch.zeros(1, dtype=torch.int32, device="cuda")
        _waits_for[(1,)](flag)
        if looks:
            flag.item()

    (error,) = failures(worker, 1).errors.values()
    assert isinstance(error, kernbench.DeadlockError)
    assert "waits on element 0 of flag of rank 0 (shape (1,), 4 bytes): sees 0, wants == 1" in str(error)
    assert "isolation='carrier'" in str(error)
