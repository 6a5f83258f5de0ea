"""Ranks whose processes another launcher has started: torchrun, multiprocessing, a command. They join one simulation."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from kernbench.errors import ConfigError, KernbenchError
from kernbench.processes import seat
from kernbench.processes.channel import Wire
from kernbench.processes.gate import Gate
from kernbench.processes.seat import Hello, Welcome
from kernbench.processes.shared_memory import SharedMemory, unnamed_file
from kernbench.torch_backend.gpu.device.visible_devices import uuid_of

RUN = [sys.executable, "-m", "kernbench", "run", "--system", "dgx_h100"]
# Where "CI" is set, torch's test utilities want a package that writes reports in XML.
ENVIRON = {name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONPATH": os.getcwd()}

TRAIN = """
import os, random, torch, torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()} has {loss.item():.6f} {random.random():.6f}\\n", end="", flush=True)
dist.destroy_process_group()
"""

WORKERS = """
import multiprocessing, os, subprocess, sys, torch, torch.distributed as dist

def worker(rank, world, what):
    torch.manual_seed(7)
    torch.cuda.set_device(min(1 - rank, torch.cuda.device_count() - 1))
    dist.init_process_group("nccl", "tcp://localhost:29501", rank=rank, world_size=world)
    drawn = torch.rand(())
    x = torch.full((4,), float(rank), device="cuda")
    dist.all_reduce(x)
    if what == "raise" and rank == 1:
        raise ValueError("broken here")
    if what == "kill" and rank == 1:
        os.kill(os.getpid(), 9)
    dist.all_reduce(x)
    print(f"{rank}: {x.tolist()} on {x.device}, {drawn:.4f}\\n", end="", flush=True)

if __name__ == "__main__":
    if len(sys.argv) > 1:  # one that is started by its command line
        worker(int(sys.argv[1]), 2, "")
        sys.exit()
    gpu = torch.cuda.get_device_properties("cuda")
    print(torch.cuda.device_count(), gpu.name, torch.cuda.get_device_capability(), gpu.multi_processor_count, flush=True)
    import kernbench.runtime_api.context  # the children need not do it each
    for what in ("fork", "raise", "kill"):
        context = multiprocessing.get_context("fork")
        started = [context.Process(target=worker, args=(rank, 2, what)) for rank in range(2)]
        for each in started:
            each.start()
        for each in started:
            each.join()
        print(what, [each.exitcode for each in started], flush=True)
    command = [sys.executable, __file__]
    seen = dict(os.environ, CUDA_VISIBLE_DEVICES="5")
    other = multiprocessing.get_context("spawn").Process(target=worker, args=(1, 2, ""))
    started = [subprocess.Popen([*command, "0"], env=seen), other]
    started[1].start()
    print("others", started[0].wait(), started[1].join(), flush=True)
    sys.exit(7)
"""

ENDLESS = """
import multiprocessing, os, sys, torch.distributed as dist
import kernbench.runtime_api.context

def worker(rank):
    dist.init_process_group("gloo", "tcp://localhost:29501", rank=rank, world_size=2)
    dist.barrier()
    with open(f"{sys.argv[1]}/{rank}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{sys.argv[1]}/{rank}", f"{sys.argv[1]}/{rank}.pid")
    while True:
        pass

started = [multiprocessing.get_context("fork").Process(target=worker, args=(rank,)) for rank in range(2)]
for each in started:
    each.start()
for each in started:
    each.join()
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *map(str, arguments)], capture_output=True, text=True, env=ENVIRON)


def children_of(*processes: int | str) -> list[str]:
    return [child for each in processes for child in Path(f"/proc/{each}/task/{each}/children").read_text().split()]


def test_a_command_has_the_files_that_its_caller_has_left_open_for_it() -> None:
    mine, theirs = os.pipe()
    command = [*RUN, "--", "tee", f"/proc/self/fd/{theirs}"]
    done = subprocess.run(command, input="kept\n", capture_output=True, text=True, env=ENVIRON, pass_fds=[theirs])
    os.close(theirs)
    with open(mine) as pipe:
        assert (pipe.read(), done.returncode) == ("kept\n", 0)


@pytest.mark.long
@pytest.mark.parametrize("data", ["--data", "--no-data"])
def test_ranks_of_torchrun_do_what_ranks_of_ours_do(data, tmp_path):
    script, theirs, ours = (tmp_path / name for name in ("train.py", "theirs.json", "ours.json"))
    script.write_text(TRAIN)
    joined = run(data, "--trace", theirs, "--", "torchrun", "--nproc-per-node", "2", script)
    assert joined.returncode == 0, joined.stderr
    forked = run(data, "--trace", ours, "--isolation", "process", "--no-prefix", "--nproc-per-node", "2", script)
    assert sorted(joined.stdout.splitlines()) == sorted(forked.stdout.splitlines())
    assert "modelled on dgx_h100, 2 ranks" in joined.stdout
    assert theirs.read_bytes() == ours.read_bytes()


VARIABLES = """
import os, subprocess, torch, torch.distributed as dist

before = set(os.environ)
dist.init_process_group("nccl", "tcp://localhost:29501", rank=0, world_size=1)
dist.barrier()
print("new", sorted(set(os.environ) - before), flush=True)
say = ["/bin/sh", "-c", "echo ${KERNBENCH_RANK%% *}"]
subprocess.run(say)
os.system(say[2])
for start in (os.posix_spawn, os.posix_spawnp):
    os.waitpid(start(say[0], say, os.environ), 0)
os.execve(say[0], say, os.environ) if os.fork() == 0 else os.wait()
print("after", "KERNBENCH_RANK" in os.environ, flush=True)
"""


def test_a_rank_has_the_environment_that_its_launcher_gave_it(tmp_path):
    """What says that its rank is taken is for processes that it starts."""
    script = tmp_path / "script.py"
    script.write_text(VARIABLES)
    done = run("--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:7] == ["new []", *["0/1"] * 5, "after False"]


OWN_GPU = """
import os, sys, torch, torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
x = torch.full((4,), rank + 1.0, device="cuda:0")
dist.all_reduce(x)
print(f"{rank} {x.tolist()} {torch.cuda.get_device_properties(0).uuid}\\n", end="", flush=True)
"""


@pytest.mark.long  # interpreters that import torch
def test_each_process_of_a_launcher_may_see_a_gpu_of_its_own(tmp_path):
    script, starter = tmp_path / "script.py", tmp_path / "start.sh"
    script.write_text(OWN_GPU)
    starter.write_text(f"CUDA_VISIBLE_DEVICES=$((6 - LOCAL_RANK)) exec {sys.executable} {script}\n")
    done = run("--", "torchrun", "--no-python", "--nproc-per-node", "2", "sh", starter)
    assert done.returncode == 0, done.stderr
    values = [f"{rank} [3.0, 3.0, 3.0, 3.0] {uuid_of('dgx_h100', 6 - rank)}" for rank in range(2)]
    assert sorted(line for line in done.stdout.splitlines() if "[3.0" in line) == values


@pytest.mark.long  # interpreters that import torch
def test_ranks_per_node_are_as_many_as_gpus_that_are_visible(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRON, "CUDA_VISIBLE_DEVICES", "4,2")
    script = tmp_path / "script.py"
    script.write_text("import torch; print(torch.cuda.get_device_properties('cuda').uuid, torch.cuda.device_count())")
    done = run("--nproc-per-node", "gpu", "--nnodes", "2", script)
    assert done.returncode == 0, done.stderr
    seen = [f"[rank{rank}] {uuid_of('dgx_h100', sip)} 2" for rank, sip in enumerate((4, 2, 12, 10))]
    assert done.stdout.splitlines()[:4] == seen
    monkeypatch.setitem(ENVIRON, "CUDA_VISIBLE_DEVICES", "")
    assert "hides all GPUs: give a number" in run("--nproc-per-node", "gpu", script).stderr


@pytest.mark.long  # interpreters that import torch
def test_processes_of_a_program_join_one_world_after_the_other(tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = run("--", "python", script)
    assert done.returncode == 7, done.stderr  # the program's own
    lines = done.stdout.splitlines()
    drawn = "0.5349"  # what torch draws after manual_seed(7), which is before init_process_group
    values = [f"{rank}: [2.0, 2.0, 2.0, 2.0] on cuda:{1 - rank}, {drawn}" for rank in range(2)]
    assert lines[0] == "8 NVIDIA H100 80GB HBM3 (9, 0) 132"
    assert [sorted(lines[1:3]), lines[3]] == [values, "fork [0, 0]"]
    assert lines[4:6] == ["raise [1, 1]", "kill [1, -9]"]
    values[0] = values[0].replace("cuda:1", "cuda:0")  # it sees one
    assert [sorted(lines[6:8]), lines[8]] == [values, "others 0 None"]
    assert done.stderr.count("ValueError: broken here") == 1
    assert done.stderr.count("rank 1 (process ") == 1
    assert "ended in the middle of its program" in done.stderr
    assert "Its last call to others: all_reduce" in done.stderr


@pytest.mark.long  # interpreters that import torch
@pytest.mark.parametrize("data", ["--data", "--no-data"])
def test_a_process_that_a_script_starts_joins_a_simulation_beside_its_own(data, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, torch, torch.distributed as dist\n"
        "def worker(rank):\n"
        "    dist.init_process_group('nccl', 'tcp://localhost:29501', rank=rank, world_size=1)\n"
        "    x = torch.ones(4, device='cuda')\n"
        "    dist.all_reduce(x)\n"
        "    print('worker', x.sum().item(), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    print('script', torch.ones(2, device='cuda').sum().item(), flush=True)\n"
        "    process = multiprocessing.get_context('spawn').Process(target=worker, args=(0,))\n"
        "    process.start()\n"
        "    process.join()\n"
        "    print('ended', process.exitcode, flush=True)\n"
    )
    done = run(data, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["script 2.0", "worker 4.0", "ended 0"]
    assert done.stdout.count("modelled on dgx_h100, 1 rank") == 2
    assert "all_reduce: 1 call," in done.stdout
    assert "running worker: ranks among them have a simulation of their own" in done.stdout


@pytest.mark.long  # interpreters that import torch
@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_processes_of_a_script_are_not_of_nodes_of_one_gpu_for_its_own_variables(isolation, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os, torch, torch.distributed as dist\n"
        "def worker(rank):\n"
        "    os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='29501', RANK=str(rank), WORLD_SIZE='2')\n"
        "    dist.init_process_group('nccl')\n"
        "    torch.cuda.set_device(rank)\n"
        "    x = torch.ones(4, device='cuda')\n"
        "    dist.all_reduce(x)\n"
        "    assert x.sum().item() == 8\n"
        "if __name__ == '__main__':\n"
        "    spawned = multiprocessing.get_context('spawn')\n"
        "    processes = [spawned.Process(target=worker, args=(rank,)) for rank in range(2)]\n"
        "    [process.start() for process in processes]\n"
        "    [process.join() for process in processes]\n"
        "    print('ended', [process.exitcode for process in processes], flush=True)\n"
    )
    done = run("--isolation", isolation, script)
    assert "ended [0, 0]" in done.stdout, done.stderr
    assert "modelled on dgx_h100, 2 ranks" in done.stdout


TORCHS_OWN = """
import torch, torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase, requires_nccl, skip_if_lt_x_gpu
from torch.testing._internal.common_utils import run_tests

class Collectives(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @requires_nccl()
    @skip_if_lt_x_gpu(2)
    def test_sum(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.world_size)
        torch.cuda.set_device(self.rank)
        x = torch.full((4,), self.rank + 1.0, device="cuda")
        dist.all_reduce(x)
        self.assertEqual(x.tolist(), [EXPECTED] * 4)

if __name__ == "__main__":
    run_tests()
"""


@pytest.mark.long  # interpreters that import torch
@pytest.mark.parametrize("expected", [3.0, 4.0], ids=["passes", "fails"])
@pytest.mark.parametrize("command", [[], ["--", sys.executable]], ids=["script", "command"])
def test_a_test_of_torchs_base_class_has_its_processes_as_ranks(command, expected, tmp_path):
    script = tmp_path / "test_collectives.py"
    script.write_text(TORCHS_OWN.replace("EXPECTED", str(expected)))
    done = run(*command, script)
    assert ("\nOK\n" if expected == 3.0 else "and exception:") in done.stderr  # not skipped
    assert (done.returncode == 0) == (expected == 3.0)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)], ids=["kill", "ctrl-c"]
)
def test_no_process_is_left_when_the_simulation_is_ended(number, tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    process = subprocess.Popen(
        [*RUN, "--", "python", str(script), str(tmp_path)], env=ENVIRON, stderr=subprocess.DEVNULL
    )
    while not list(tmp_path.glob("*.pid")) and process.poll() is None:
        time.sleep(0.05)
    children = children_of(process.pid)
    children += children_of(*children)
    assert len(children) == 3  # the command, and its two
    process.send_signal(number)
    process.wait()
    while any(Path("/proc", each).exists() for each in children):  # those of SIGKILL are reaped by init
        time.sleep(0.01)


# -- the gate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def open_gate(most: int = 8) -> Gate:
    def check(size: int, local_size: int) -> None:
        if size > most:
            raise ConfigError(f"{size} do not fit")

    return Gate(lambda: Welcome({"seed": 3}), check, lambda text: None)


def knock(gate: Gate, **hello: Any) -> Wire:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect("\0" + gate.address.name)
    hello = {"key": gate.address.key, **hello}
    files = [unnamed_file((1 << 16,)), os.memfd_create("stacks"), os.memfd_create("lifeline")]
    files[2], other = (each.detach() for each in socket.socketpair())
    socket.send_fds(end, [json.dumps(asdict(Hello(**hello))).encode()], files)
    for each in (*files, other):
        os.close(each)
    return Wire(end)


def test_a_world_is_complete_when_all_of_it_have_come_in_whatever_order(launcher):
    with closing(open_gate()) as gate:
        wires = [knock(gate, rank=rank, size=3) for rank in (2, 0, 1)]
        descriptor = os.pidfd_open(launcher.pid)
        members = gate.gather(descriptor)
        os.close(descriptor)
        assert members is not None
        assert list(members) == [0, 1, 2]
        assert [wire.receive().options for wire in wires] == [{"seed": 3}] * 3
        for each in members.values():
            assert not each.gone
            each.close()


def test_who_does_not_come_is_named_and_nobody_goes_on_waiting(launcher):
    with closing(open_gate()) as gate:
        wire = knock(gate, rank=1, size=4)
        descriptor = os.pidfd_open(launcher.pid)
        launcher.kill()
        with pytest.raises(
            KernbenchError, match=r"ranks 0, 2, 3 of 4 did not join .*: what starts the ranks has ended"
        ):
            gate.gather(descriptor)
        assert gate.gather(descriptor) is None
        os.close(descriptor)
        assert not wire.receive().refusal
        with pytest.raises(EOFError):
            wire.receive()


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"rank": 0, "size": 2}, "is rank 0 already"),
        ({"rank": 1, "size": 3}, "a world of 2 ranks is joining"),
        ({"rank": 1, "size": 2, "version": "0.0"}, "has kernbench 0.0"),
        ({"rank": 2, "size": 2}, "is not one of a world of 2"),
        ({"rank": 1, "size": 2, "key": "0" * 32}, "has not the key"),
        ({"rank": 1, "size": 2, "key": "\ud800"}, "has not the key"),
        ({"rank": 1, "size": 2, "key": ""}, "has not the key"),
    ],
    ids=["twice", "size", "version", "number", "guessed", "nonsense", "none"],
)
def test_who_cannot_join_is_told_why(hello, words, launcher):
    with closing(open_gate()) as gate:
        first = knock(gate, rank=0, size=2)
        wrong = knock(gate, **hello)
        second = knock(gate, rank=1, size=2)
        descriptor = os.pidfd_open(launcher.pid)
        members = gate.gather(descriptor)
        os.close(descriptor)
        assert members is not None
        assert [words in wrong.receive().refusal, first.receive().refusal, second.receive().refusal] == [True, "", ""]
        for each in members.values():
            each.close()


@pytest.mark.parametrize(
    "message",
    [
        b"", b"nonsense", b"[]", b"{}", b"[" * 4000, pickle.dumps(os.getcwd), b'{"rank": "0", "size": 1}',
        b'{"rank": true, "size": 2}', b'{"rank": 0, "size": 1, "more": 1}', b'{"rank": 0, "size": NaN}', b"\xff" * 5000,
    ],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_hello_is_hung_up_on(message, launcher, monkeypatch):
    monkeypatch.setattr(seat, "PATIENCE", 0.2)
    with closing(open_gate()) as gate, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.connect("\0" + gate.address.name)
        end.send(message)
        wires = [knock(gate, rank=rank, size=2) for rank in range(2)]
        descriptor = os.pidfd_open(launcher.pid)
        members = gate.gather(descriptor)
        os.close(descriptor)
        assert members is not None
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(1) == b""
        for each in members.values():
            each.close()
        del wires


STRANGER = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be another user, too")


@contextlib.contextmanager
def other_user(act: Callable[[int], None]) -> Iterator[int]:
    """A process of another user that calls ``act`` with the end of a pipe to write to; gives the end to read from."""
    to_read, to_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            act(to_write)
        finally:
            os._exit(0)
    os.close(to_write)
    try:
        yield to_read
    finally:
        os.close(to_read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@as_root
def test_another_user_does_not_join_even_with_the_key(launcher):
    with closing(open_gate()) as gate:

        def join(told: int) -> None:
            try:
                os.write(told, repr(knock(gate, rank=0, size=1).receive()).encode())
            except (EOFError, OSError) as error:
                os.write(told, type(error).__name__.encode())

        with other_user(join) as says:
            descriptor = os.pidfd_open(launcher.pid)
            select.select([gate._listener], [], [])
            ours = knock(gate, rank=0, size=1)
            members = gate.gather(descriptor)
            os.close(descriptor)
            assert os.read(says, 1 << 10).decode() in ("EOFError", "ConnectionResetError", "BrokenPipeError")
        assert members is not None
        assert members[0].pid == os.getpid()
        assert ours.receive().options == {"seed": 3}
        members[0].close()


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@as_root
def test_what_another_user_sends_is_not_unpickled(tmp_path):
    """It has taken the name of a simulation that has ended, and says to who joins there what it likes."""
    address, path = seat.Address.new(), tmp_path / "exploded"
    tmp_path.chmod(0o777)

    def listen(told: int) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind("\0" + address.name)
            listener.listen()
            os.write(told, b"listens")
            end, _ = listener.accept()
            Wire(end).send(Bomb(path))
            os.write(told, b"heard " + end.recv(1 << 12))

    with other_user(listen) as says:
        assert os.read(says, 7) == b"listens"
        with pytest.raises(KernbenchError, match="is another user's"):
            seat.Seat(str(address), Hello(0, 1))
        assert address.key.encode() not in os.read(says, 1 << 12)
    assert not path.exists()


def test_a_world_that_does_not_fit_is_refused(launcher):
    with closing(open_gate(most=2)) as gate:
        wire = knock(gate, rank=0, size=4)
        descriptor = os.pidfd_open(launcher.pid)
        launcher.kill()
        assert gate.gather(descriptor) is None
        os.close(descriptor)
        assert wire.receive().refusal == "4 do not fit"


def test_memory_without_a_name_is_shared():
    file = unnamed_file((1 << 16,))
    one, other = SharedMemory(file=file), SharedMemory(file=file)
    os.close(file)
    region = one.take((3,), torch.float32, 3)
    one.tensor(region).fill_(2.5)
    assert other.tensor(region).tolist() == [2.5] * 3


LOOKS_FIRST = """
import importlib.util
assert importlib.util.find_spec("torch") and importlib.util.find_spec("numpy.random")  # as transformers does
import ctypes, torch, torch.distributed as dist

library, count, name = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint(), ctypes.create_string_buffer(96)

def listed():
    handle = ctypes.c_void_p()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(1), ctypes.byref(handle)) == 0
    assert library.nvmlDeviceGetName(handle, name, ctypes.c_uint(96)) == 0
    return count.value, name.value.decode()

called = []

def counted(module, name):
    stock = getattr(module, name)
    def replaced(*args, **kwargs):
        called.append(name)
        return stock(*args, **kwargs)
    setattr(module, name, replaced)

FUNCTIONS = "set_device", "current_device", "set_stream", "current_stream", "synchronize", "memory_allocated", "_lazy_init"
for function in FUNCTIONS:
    counted(torch.cuda, function)

torch.accelerator.empty_cache()
torch.accelerator.empty_host_cache()
assert torch.accelerator.memory_allocated() == torch.accelerator.current_device_index() == 0

raw_stream = torch._C._cuda_getCurrentRawStream
before = listed()
assert before == (torch.cuda.device_count(), torch.cuda.get_device_name(0)), before
dist.init_process_group("nccl", "tcp://localhost:29511", rank=0, world_size=1)
x = torch.full((4,), 3.0, device="cuda")
dist.all_reduce(x)
assert listed() == before
assert torch.cuda.memory_allocated() >= x.nbytes
torch.cuda._lazy_init()
torch.cuda.set_device(1)
assert torch.cuda.current_device() == torch.empty(1, device="cuda").get_device() == 1
torch.cuda.set_device(torch.device("cuda", 0))
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    assert torch.cuda.current_stream() == side
    assert raw_stream(0) == side.cuda_stream
torch.cuda.synchronize()
assert set(called) == {*FUNCTIONS} and called.count("set_stream") == 2, called
print(before, x.tolist(), flush=True)
"""


def test_a_process_that_looks_for_torch_lists_gpus_and_replaces_functions_before_it_joins(tmp_path: Path) -> None:
    program = tmp_path / "looks_first.py"
    program.write_text(LOOKS_FIRST)
    command = [*RUN, "--", sys.executable, str(program)]
    ended = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "(8, 'NVIDIA H100 80GB HBM3') [3.0, 3.0, 3.0, 3.0]" in ended.stdout


OLDER_THREAD = """
import os, subprocess, sys, threading, time

looks, problems = 0, []

def watch():
    global looks
    while not over.is_set():
        time.sleep(0)
        time.monotonic()
        looks += 1
    try:
        dist.barrier()
    except Exception as error:
        problems.append(str(error))

rank = int(os.environ.get("LOCAL_RANK", 0))
over = threading.Event()
if rank == 0:
    other = subprocess.Popen([sys.executable, __file__], env=dict(os.environ, LOCAL_RANK="1"))
    observer = threading.Thread(target=watch, daemon=True)
    observer.start()
import torch, torch.distributed as dist

dist.init_process_group("nccl", "tcp://localhost:29501", rank=rank, world_size=2)
x = torch.ones((), device="cuda")
for _ in range(10):
    dist.all_reduce(x)
    before = looks
    while rank == 0 and looks == before and observer.is_alive():
        pass
print(rank, x.item(), flush=True)
if rank == 0:
    over.set()
    while observer.is_alive():
        pass
    print(problems, other.wait(), flush=True)
"""


@pytest.mark.long
def test_a_thread_that_is_older_than_its_rank_goes_by_the_machines_clock(tmp_path):
    """As a launcher's does that looks after the processes it has started, and is rank 0 itself."""
    script = tmp_path / "observed.py"
    script.write_text(OLDER_THREAD)
    done = run("--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert "0 1024.0" in done.stdout
    assert "1 1024.0" in done.stdout
    assert "it has begun before the process became a rank" in done.stdout
