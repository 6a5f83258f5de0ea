"""Ranks that a script under ``kernbench run`` spawns itself have what processes have, and the script its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernbench.commands.run import command
from kernbench.plurals import counted

STATE = """
import json, sys
import torch.distributed as dist, torch.multiprocessing as mp
import spawned_helper as helper

seen = []

def worker(rank, told, *more):
    global whose
    whose = helper.whose = rank
    seen.append(rank)
    helper.cached.ranks = getattr(helper.cached, "ranks", []) + [rank]
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://127.0.0.1:29533")
    dist.barrier()
    known = isinstance(told, helper.Told) and told.by is worker
    print(json.dumps([__name__, whose, seen, helper.whose, helper.cached.ranks, helper.set_in_main, known]))
    dist.destroy_process_group()

if __name__ == "__main__":
    helper.set_in_main = True
    for _ in range(2):
        mp.START(worker, (helper.Told(worker), *MORE), nprocs=2)
    print(json.dumps([__name__, seen, helper.whose, vars(helper.cached)]))
"""

HELPER = """
whose, set_in_main = None, False
def cached(): pass
class Told:
    def __init__(self, by): self.by = by
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``run(source, *options)``: ``kernbench run options`` of a script that has the helper beside it."""

    def run(source: str, *options: str) -> Result:
        (tmp_path / "program.py").write_text(source)
        (tmp_path / "spawned_helper.py").write_text(HELPER)
        return CliRunner().invoke(command, [*options, str(tmp_path / "program.py")])

    yield run
    sys.modules.pop("spawned_helper", None)


def _lines(result: Result, whose: str) -> list[list[object]]:
    starts = f"[{whose}] " if whose else "["
    return [
        json.loads(line.removeprefix(f"[{whose}] "))
        for line in result.stdout.splitlines()
        if line.startswith(starts) and (whose or not line.startswith("[rank"))
    ]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize(("start", "more"), [("spawn", "()"), ("start_processes", "(lambda: 1,)")])
def test_modules_are_each_ranks_own(run, isolation: str, start: str, more: str) -> None:
    """Globals, attributes of functions and classes: in every world anew, and not those that main has set."""
    result = run(STATE.replace("START", start).replace("MORE", more), "--isolation", isolation)
    assert result.exit_code == 0, result.output
    for rank in range(2):
        assert _lines(result, f"rank{rank}") == [["__mp_main__", rank, [rank], rank, [rank], False, True]] * 2
    assert _lines(result, "") == [["__main__", [], None, {}]]


def test_ranks_that_are_forked_share_modules_and_the_summary_says_so(run) -> None:
    forked = STATE.replace("START(", "start_processes(start_method='fork', fn=").replace(
        "(helper.Told", "args=(helper.Told"
    )
    result = run(forked.replace("MORE", "()"))
    assert result.exit_code == 0, result.output
    assert "ranks that the program forks share the globals of its modules (running worker)" in result.output
    assert _lines(result, "rank0")[0][0] == "__main__"


def test_a_script_without_a_guard_is_told_of_it(run) -> None:
    result = run("import torch.multiprocessing as mp\ndef worker(rank): pass\nmp.spawn(worker, nprocs=2)")
    assert result.exit_code == 1
    assert "if __name__ == '__main__'" in result.output


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_script_counts_its_gpus_to_spawn_as_many_ranks(run, isolation: str) -> None:
    source = (
        "import torch, torch.multiprocessing as mp\n"
        "def worker(rank):\n"
        "    torch.cuda.set_device(rank)\n"
        "    print([torch.ones(2, device='cuda').sum().item() + torch.cuda.current_device()])\n"
        "if __name__ == '__main__':\n"
        "    assert torch.cuda.is_available() and 'H100' in torch.cuda.get_device_name()\n"
        "    mp.spawn(worker, nprocs=torch.cuda.device_count())\n"
    )
    result = run(source, "--isolation", isolation, "--system", "dgx_h100")
    assert result.exit_code == 0, result.output
    assert [_lines(result, f"rank{rank}") for rank in range(8)] == [[[2.0 + rank]] for rank in range(8)]


USES_A_GPU_ITSELF = """
import atexit, os, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def worker(rank, size, given, found):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    dist.init_process_group("nccl", rank=rank, world_size=size)
    mine = given.to(f"cuda:{rank}") * (rank + 1)
    dist.all_reduce(mine)
    found.put((rank, mine.sum().item(), time.perf_counter()))
    dist.destroy_process_group()

if __name__ == "__main__":
    atexit.register(lambda: print("at the end", torch.ones(2, device="cuda").sum().item()))
    begun = time.perf_counter()
    product = torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    print(product[0, 0].item(), time.perf_counter() - begun)
    found, given = mp.get_context("spawn").SimpleQueue(), torch.arange(8.0, device="cuda")
    for joined in (True, False):
        started = mp.spawn(worker, (2, given, found), nprocs=2, join=joined)
        while started is not None and not started.join():
            pass
        print(sorted(found.get() for _ in range(2)))
        print((given * 2).sum().item(), time.perf_counter() - begun)
"""


def test_a_script_that_makes_ranks_has_a_gpu_itself_in_both_isolations(run) -> None:
    carriers, processes = (
        run(USES_A_GPU_ITSELF, "--system", "dgx_h100", "--isolation", isolation).output
        for isolation in ("carrier", "process")
    )
    assert carriers == processes
    assert carriers.count("(0, 84.0, 0.000") == 2
    assert "at the end 2.0" in carriers
    assert "theirs are in the trace alone" in carriers


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_ranks_that_a_script_does_not_join_end_before_it(run, isolation: str) -> None:
    source = (
        "import torch, torch.multiprocessing as mp\n"
        "def worker(rank, given):\n"
        "    print([(given * rank).sum().item()], (given * 2).device)\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(worker, (torch.ones(2, device='cuda'),), nprocs=2, join=False)\n"
    )
    before = dict(os.environ)
    result = run(source, "--isolation", isolation)
    assert sorted(result.stdout.splitlines()[:2]) == ["[rank0] [0.0] cuda:0", "[rank1] [2.0] cuda:0"]
    assert dict(os.environ) == before


BESIDE = """
import time
import torch, torch.multiprocessing as mp

def worker(rank):
    time.sleep(0.5 * (rank + 1))

if __name__ == "__main__":
    begun = time.time()
    started = mp.spawn(worker, nprocs=2, join=False)
    while time.time() < begun + 0.25:
        pass
    while not started.join(timeout=0.1):
        print(round(time.time() - begun, 6))
    print("joined", round(time.time() - begun, 6))
    mp.spawn(worker, nprocs=1, join=False)
    torch.ones(2, device="cuda")
"""


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_script_beside_its_ranks_has_their_time_and_no_gpu(run, isolation: str) -> None:
    result = run(BESIDE, "--isolation", isolation)
    assert result.stdout.splitlines()[:8] == ["0.35", "0.45", "0.5", "0.6", "0.7", "0.8", "0.9", "joined 1.0"]
    assert "have not ended: join them before it uses one" in result.output


UNJOINED = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def worker(rank, fails):
    os.environ["OF_A_RANK"] = "1"
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://127.0.0.1:29533")
    held = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(held)
    if fails and rank:
        raise ValueError("as told")
    dist.all_reduce(held)

if __name__ == "__main__":
    what = sys.argv[1]
    started = mp.start_processes(worker, (what == "fail",), nprocs=2, join=False)
    os.environ["OF_MAIN"] = "1"
    assert [each.pid for each in started.processes] == started.pids()
    assert [each.exitcode for each in started.processes] == [None, None]
    assert all(each.is_alive() for each in started.processes)
    if what == "main":
        del os.environ["OF_MAIN"]
        raise RuntimeError("in main")
    if what == "kill":
        started.processes[1].kill()
    try:
        while not started.join():
            pass
    except mp.ProcessRaisedException as error:
        print(error.error_index)
    print([each.exitcode for each in started.processes], [each.is_alive() for each in started.processes])
    print(os.environ.pop("OF_MAIN"), "OF_A_RANK" in os.environ)
    torch.cuda.empty_cache()
    if what == "use":
        torch.ones(4, device="cuda")
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("end", "[0, 0] [False, False]\n1 False\n"),
        ("fail", "1\n[-15, 1] [False, False]\n1 False\n"),
        ("kill", "[-9, -9] [False, False]\n1 False\n"),
    ],
)
def test_ranks_that_are_not_joined_at_once_have_what_stands_for_their_processes(run, what: str, said: str) -> None:
    result = run(UNJOINED.replace("sys.argv[1]", repr(what)))
    assert result.exit_code == 0, result.output
    assert said in result.stdout


def test_a_program_that_fails_beside_its_ranks_fails_with_that(run) -> None:
    result = run(UNJOINED.replace("sys.argv[1]", repr("main")))
    assert result.exit_code == 1
    assert "RuntimeError: in main" in result.stderr


@pytest.mark.parametrize(("what", "ranks"), [("end", 2), ("use", 1)])
def test_the_tables_are_of_the_spawned_ranks_unless_the_program_goes_on_with_its_gpu(
    run, what: str, ranks: int
) -> None:
    """As the end of a trainer does that empties the cache of a GPU that it has not used."""
    result = run(UNJOINED.replace("sys.argv[1]", repr(what)))
    assert f"modelled on sip8, {counted(ranks, 'rank')}" in result.stdout, result.output
    assert "memory at each rank's peak" in result.stdout
    assert ("used its GPU after the ranks that it spawned had ended" in result.stdout) == (what == "use")
