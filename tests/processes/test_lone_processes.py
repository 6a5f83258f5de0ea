"""Processes that use a GPU and are no ranks: workers of pools, programs that others start. Each has a GPU of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.trace.process_figures import ProcessFigures, process_lines, read, written

RUN = [sys.executable, "-m", "kernbench", "run", "--system", "dgx_h100"]
ENVIRON = {name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONPATH": os.getcwd()}

WORKERS = """
import multiprocessing, os, queue, subprocess, sys, torch
from concurrent.futures import ProcessPoolExecutor

def work(i):
    torch.cuda.set_device(i % torch.cuda.device_count())
    layer = torch.nn.Linear(4, 4).cuda()
    with torch.no_grad():
        layer.weight.fill_(i), layer.bias.zero_()
    return layer(torch.ones(4, device="cuda")).sum().item(), str(layer.weight.device)

def serve(tasks, answers):
    while (task := tasks.get()) is not None:
        answers.put(work(task))

def fill(i):
    try:
        torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return str(error)[:21]

def meet(rank):
    import torch.distributed as dist
    torch.ones(2).to("cuda")
    try:
        dist.init_process_group("nccl", "tcp://localhost:29501", rank=rank, world_size=2)
    except Exception as error:
        return str(error)[:54]

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        print("pool", sorted(pool.map(work, range(3), chunksize=1)))
        print(pool.apply(fill, (0,)), "|", pool.apply(meet, (1,)))
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        print("executor", executor.submit(work, 5).result())
    tasks, answers = context.Queue(), context.Queue()
    served = context.Process(target=serve, args=(tasks, answers), name="server")
    served.start()
    for i in (1, 2):
        tasks.put(i)
    print("queue", [answers.get(timeout=300) for _ in range(2)])
    tasks.put(None)
    served.join()
    other = "import torch; print(torch.cuda.is_available(), torch.ones(2, device='cuda').sum().item())"
    ended = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    print("other", ended.stdout.split(), served.exitcode)
"""


def _run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *arguments], cwd=folder, env=ENVIRON, capture_output=True, text=True, timeout=400)


@pytest.mark.long  # ten processes that import torch
@pytest.mark.parametrize("how", [["--isolation", "process", "--nproc-per-node", "1"], ["--", sys.executable]])
def test_workers_have_gpus_of_their_own(how: list[str], tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    ended = _run(["--json", "result.json", *how, "workers.py"], tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    prefix = "[rank0] " if "--nproc-per-node" in how else ""
    said = [line.removeprefix(prefix) for line in ended.stdout.splitlines()]
    on = [(4.0 * 4 * i, f"cuda:{i}") for i in range(6)]
    assert said[:5] == [
        f"pool {on[:3]}",
        "CUDA out of memory. T | init_process_group(rank=1, world_size=2): this process",
        f"executor {on[5]}",
        f"queue {on[1:3]}",
        "other ['True', '2.0'] 0",
    ]
    found = json.loads((tmp_path / "result.json").read_text())["processes"]
    assert all(each["ended"] and each["seconds"] > 0 for each in found if each["name"] != "python"), found
    assert {"SpawnPoolWorker-1", "server", "python"} <= {each["name"] for each in found}
    assert f"{len(found)} processes with a GPU of their own" in ended.stdout
    assert "have a clock each" in ended.stdout


def test_a_program_without_ranks_behind_dashes_has_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "import torch, subprocess, sys\nx = torch.ones(1 << 20).cuda()\nx += 1\ntorch.cuda.synchronize()\n"
        "print(x.sum().item(), torch.cuda.get_device_name())\n"
        "if len(sys.argv) == 1:\n"
        "    print(subprocess.run([sys.executable, 'one.py', 'again'], capture_output=True).stdout.decode())\n"
    )
    ended = _run(["--no-data", "--", sys.executable, "one.py"], tmp_path)
    assert ended.returncode == 0, ended.stderr
    first, second = (line for line in ended.stdout.splitlines() if line.endswith("NVIDIA H100 80GB HBM3"))
    assert first == second
    lines = [line for line in ended.stdout.splitlines() if line.startswith("one.py ")]
    assert len(lines) == 2
    assert lines[0].split()[1:] == lines[1].split()[1:]  # the same program takes the same time
    assert "2 processes with a GPU of their own" in ended.stdout


FIRST_USES = (
    "torch.Generator('cuda')", "torch.cuda.Stream()", "torch.tensor([1.0], device='cuda')",
    "torch.zeros(3).pin_memory()", "torch.as_tensor([1.0], device='cuda:0')", "torch.asarray([1.0], device='cuda')",
    "torch.nested.nested_tensor([torch.ones(2)], device='cuda')", "torch.set_default_device('cuda') or torch.tensor(1)",
    "torch.device('cuda').__enter__() and torch.tensor(1)", "torch.ones(2).new_tensor([1.0], device='cuda')",
    "torch.sparse_coo_tensor([[0]], [1.0], (2,), device='cuda')",
    "torch.cuda.Event()", "torch.cuda.CUDAGraph()", "torch.cuda.graph_pool_handle()", "torch.Generator(device='cuda:0')",
    "torch.Stream('cuda')", "torch.Event('cuda')", "torch.cuda.MemPool()", "torch.cuda.device(0).__enter__()",
    "torch.accelerator.current_stream()", "torch.accelerator.synchronize()", "torch.cuda.nvtx.range_push('a')",
    "torch.cuda.get_rng_state()", "torch.cuda.memory._record_memory_history()",
    "torch.jit.script(made)(torch.ones(1)) + 1", "torch.compile(made, backend='eager')(torch.ones(1)) + 1",
    "torch.compile(torch.nn.Linear(2, 2))(torch.ones(1, 2)) + 1",
    "isinstance(torch.Generator(), torch.Generator) and isinstance(early(), torch.cuda.Stream) or 1 / 0",
)  # fmt: skip

USES = """
import os, sys, torch
from torch.cuda import Stream as early

def made(x: torch.Tensor):
    return x + torch.tensor([1.0]) + torch.as_tensor([2.0])

for use in sys.argv[1:]:
    if not (child := os.fork()):
        eval(use)
        print(torch.ones(2, device="cuda").device, use, flush=True)
        sys.exit()
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    "uses", [FIRST_USES[:3], pytest.param(FIRST_USES[3:], marks=pytest.mark.long)], ids=["often", "rest"]
)
def test_whatever_uses_a_gpu_first(uses: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(USES)
    run = subprocess.run(
        [*RUN, "--no-summary", "--", sys.executable, "uses.py", *uses],
        cwd=tmp_path, env=ENVIRON, text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert run.stdout.splitlines() == [f"cuda:0 {use}" for use in uses], run.stderr


PUT_AROUND = """
import functools, os, sys, torch

USES = {
    "accelerator.synchronize": lambda: torch.accelerator.synchronize(),
    "compile": lambda: torch.compile(torch.neg, backend="eager")(torch.ones(1, device="cuda")),
    "cuda.nvtx.range_push": lambda: torch.cuda.nvtx.range_push("a"),
    "Tensor.cuda": lambda: torch.ones(1).cuda(),
    "as_tensor": lambda: torch.as_tensor([1.0], device="cuda"),
}
for name, use in USES.items():
    if not (child := os.fork()):
        *path, last = name.split(".")
        owner = functools.reduce(getattr, path, torch)
        stock, calls = getattr(owner, last), []

        @functools.wraps(stock)
        def around(*args, **kwargs):
            calls.append(last)
            return stock(*args, **kwargs)

        setattr(owner, last, around)
        use()
        first = len(calls)
        use()
        print(name, len(calls) - first, torch.ones(1, device="cuda").device, flush=True)
        sys.exit()
    os.waitpid(child, 0)
"""


def test_what_a_program_has_put_around_a_first_use_stays_and_is_called_once(tmp_path: Path) -> None:
    (tmp_path / "around.py").write_text(PUT_AROUND)
    run = subprocess.run(
        [*RUN, "--no-summary", "--", sys.executable, "around.py"],
        cwd=tmp_path, env=ENVIRON, text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    names = ("accelerator.synchronize", "compile", "cuda.nvtx.range_push", "Tensor.cuda", "as_tensor")
    assert run.stdout.splitlines() == [f"{name} 1 cuda:0" for name in names], run.stderr


def test_a_process_that_is_killed_has_no_figures(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(
        "import os, signal, torch\ntorch.ones(2).cuda()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = _run(["--", sys.executable, "killed.py"], tmp_path)
    assert ended.returncode == 137
    assert "no figures of 1 process: killed, or still running" in ended.stdout


@pytest.mark.long  # processes that import torch
def test_one_that_is_terminated_has_figures_and_ends_by_the_signal(tmp_path: Path) -> None:
    (tmp_path / "ended.py").write_text(
        "import os, signal, torch\ntorch.ones(2).cuda()\nos.kill(os.getpid(), signal.SIGTERM)\nprint('goes on')\n"
    )
    (tmp_path / "start.py").write_text(
        "import subprocess, sys\nprint(subprocess.run([sys.executable, 'ended.py']).returncode)\n"
    )
    ended = _run(["--", sys.executable, "start.py"], tmp_path)
    assert ended.stdout.splitlines()[0] == "-15"
    assert "ended.py " in ended.stdout
    assert "no figures" not in ended.stdout


def test_lines_that_no_process_has_written_are_left_out() -> None:
    begun = ProcessFigures(name="b", pid=2)
    ended = ProcessFigures(name="a", pid=1, ended=True, seconds=0.5, compute=0.25, idle=0.25, notes=("assumed",))
    lines = b"".join([written(begun), b"[" * 10_000 + b"\n", b"\xff\n", b'{"name": 1}\n', written(ended)])
    assert read(lines) == [ended, begun]
    said = [*process_lines([ended, begun])]
    assert said[0] == "\n2 processes with a GPU of their own"
    shares = "compute 50.0%, comm 0.0%, idle 50.0%, host 0.0%"
    assert said[1] == f"a     500.0000 ms: {shares}; 0 bytes allocated on GPU 0"
    assert said[2] == "no figures of 1 process: killed, or still running"
    assert said[-1] == "assumed"
    assert not [*process_lines([])]


@pytest.mark.long  # processes that import torch
def test_what_simulates_itself_is_no_rank_of_another_simulation(tmp_path: Path) -> None:
    """A program that runs kernbench's command, or opens a simulation, under ``kernbench run``."""
    (tmp_path / "inner.py").write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "x = torch.ones(2, device='cuda')\ndist.all_reduce(x)\nprint('sum', x.sum().item(), flush=True)\n"
    )
    (tmp_path / "command.py").write_text(
        "import subprocess, sys, torch\n"
        "command = [sys.executable, '-m', 'kernbench', 'run', '--system', 'dgx_h100', '--nproc-per-node', '2', 'inner.py']\n"
        "subprocess.run(command, check=True)\n"
    )
    (tmp_path / "library.py").write_text(
        "import torch, kernbench, torch.distributed as dist\n"
        "def work(rank):\n    dist.init_process_group('nccl', world_size=2, rank=rank)\n"
        "    x = torch.ones(2, device='cuda')\n    dist.all_reduce(x)\n    print('sum', x.sum().item())\n"
        "with kernbench.simulate('dgx_h100') as ctx:\n    ctx.multiprocessing.spawn(work, (), nprocs=2)\n"
    )
    for how in (["command.py"], ["--", sys.executable, "command.py"], ["--", sys.executable, "library.py"]):
        ended = _run(how, tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("sum 4.0") == 2, (how, ended.stdout)


def test_workers_of_a_block_with_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(
        "import kernbench, os, torch, multiprocessing\n"
        "def work(i):\n    return torch.full((3,), float(i)).cuda().sum().item()\n"
        "if __name__ == '__main__':\n"
        "    with kernbench.simulated_gpu('dgx_h100') as ctx:\n"
        "        with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "            print(torch.ones(3).cuda().sum().item(), pool.map(work, range(3)))\n"
        "    print([each[:21] for each in ctx.simulation.remarks], 'KERNBENCH_ALONE' in os.environ)\n"
    )
    ended = subprocess.run(
        [sys.executable, "block.py"], cwd=tmp_path, env=ENVIRON, capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.splitlines() == ["3.0 [0.0, 3.0, 6.0]", "['processes that are no'] False"], ended.stderr


@pytest.mark.long  # processes that import torch
def test_a_process_that_uses_no_gpu_does_without_the_simulation(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(
        "import subprocess, sys\n"
        "heavy = \"{'kernbench.simulation', 'pydantic'} & {*sys.modules}\"\n"
        "code = f'import sys, torch; print(torch.cuda.is_available(), {heavy})'\n"
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout, end='')\n"
    )
    for how in (["start.py"], ["--", sys.executable, "start.py"]):
        ended = _run(["--no-summary", *how], tmp_path)
        assert ended.stdout.splitlines() == ["True set()"], ended.stderr
