"""The command line itself: what it imports, how it ends, where its output goes."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest

from kernbench.advice import advice_for
from kernbench.errors import MOST_OF_A_MESSAGE, OutputError, message_of
from kernbench.interruption import Interrupted, ending_signals, interrupt
from kernbench.output_files import replacing, write_file
from kernbench.scheduler import user_traceback

MAIN = "import sys; from kernbench.cli import main; sys.argv = ['kernbench', *sys.argv[1:]]; main()"
SMALL = (
    "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
    "torch.cuda.set_device(dist.get_rank())\nx = torch.ones(4, device='cuda')\ndist.all_reduce(x)\nprint(x.sum().item())\n"
)
TRAINS = """
import torch, torch.distributed as dist, triton, triton.language as tl

@triton.jit
def double(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * 2)

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
layers = torch.nn.ModuleList([torch.nn.LSTM(8, 8), torch.nn.Linear(8, 8)]).cuda()
model = torch.nn.parallel.DistributedDataParallel(layers[1])
optimizer = torch.optim.AdamW(layers.parameters())
hidden, _ = layers[0](torch.ones(2, 4, 8, device="cuda"))
model(hidden).square().mean().backward()
optimizer.step()
x = torch.ones(64, device="cuda")
kernel = double[(4,)](x, BLOCK=16)
torch.cuda.synchronize()
print(x.sum().item(), torch.cuda.max_memory_allocated() > 0)
dist.destroy_process_group()
"""
ENDLESS = SMALL + "open({mark!r}, 'w').close()\nwhile True:\n    dist.all_reduce(x)\n    torch.cuda.synchronize()\n"


def kernbench(*words: str, code: str = MAIN, **how: object) -> subprocess.CompletedProcess[str]:
    """``kernbench WORDS`` in a process of its own, which ends as such processes do."""
    how = {"capture_output": True, "text": True, **how}
    return subprocess.run([sys.executable, "-c", code, *words], check=False, timeout=300, **how)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_what_it_has_come_to(tmp_path: Path, signum: signal.Signals) -> None:
    mark, program, result, trace = (tmp_path / name for name in ("mark", "program.py", "result.json", "trace.json"))
    program.write_text(ENDLESS.format(mark=str(mark)))
    words = ["run", "--nproc-per-node", "2", "--json", str(result), "--trace", str(trace), str(program)]
    process = subprocess.Popen([sys.executable, "-c", MAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not mark.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signum)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signum, errors
    assert f"interrupted by {signum.name}" in output.decode()
    assert json.loads(result.read_text())["status"] == "interrupted"
    assert f"interrupted by {signum.name}" in json.loads(trace.read_text())["otherData"]["note"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("how", ["__del__", "weakref"])
def test_a_signal_in_a_finalizer_is_not_lost(ctrl_c: None, how: str, signum: signal.Signals) -> None:
    """What is raised there Python prints, and goes on."""

    class Ends:
        def __del__(self) -> None:
            if how == "__del__":
                signal.raise_signal(signum)
            for _ in range(10):  # where Python looks for signals
                pass

    ends = Ends()
    if how == "weakref":
        weakref.finalize(ends, signal.raise_signal, signum)
    kept = [ends]
    del ends

    def work() -> None:
        kept.clear()
        time.sleep(60)

    with pytest.raises(Interrupted) as caught, ending_signals():
        work()
    assert caught.value.signum == signum


@pytest.mark.parametrize("early", [True, False], ids=["before", "while it runs"])
def test_a_signal_does_not_tear_an_import_apart(early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ that imports a package goes on without it: the package would be half there, and the signal lost."""
    package = tmp_path / "site-packages" / "torn_apart.py"
    package.parent.mkdir()
    package.write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\nfor _ in range(10):\n    pass\nwhole = True\n"
    )
    monkeypatch.setattr("kernbench.interruption._INSTALLED", ("<", str(package.parent)))
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setitem(sys.modules, "torn_apart", None)
    del sys.modules["torn_apart"]
    before = signal.signal(signal.SIGINT, interrupt if early else signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), nullcontext() if early else ending_signals():  # noqa: PT012
            assert importlib.import_module("torn_apart").whole
            time.sleep(60)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGINT, signal.SIGINT),
        pytest.param(signal.SIGTERM, signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_a_second_signal_ends_it_at_once(tmp_path: Path, first: signal.Signals, second: signal.Signals) -> None:
    """While the first file is written in the end: what was there before is there still, and the others are as they were."""
    mark, half, program, result = (tmp_path / name for name in ("mark", "half", "program.py", "result.json"))
    program.write_text(ENDLESS.format(mark=str(mark)))
    result.write_text("of an earlier run")
    slow = (
        "import pathlib, time\nwrite = pathlib.Path.write_bytes\n"
        "def slowly(self, data):\n"
        "    write(self, data[:len(data) // 2])\n"
        f"    open({str(half)!r}, 'w').close()\n"
        "    time.sleep(120)\n"
        "pathlib.Path.write_bytes = slowly\n"
    )
    words = ["run", "--nproc-per-node", "2", "--json", str(result), str(program)]
    process = subprocess.Popen(
        [sys.executable, "-c", slow + MAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for awaited, signum in ((mark, first), (half, second)):
        while not awaited.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signum)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == -second, errors
    assert f"interrupted by {first.name}" in output.decode(), (output, errors)
    assert "Traceback" not in errors.decode()
    assert result.read_text() == "of an earlier run"
    assert len(list(tmp_path.glob(".result.json.*.part"))) == 1
    write_file(result, "of a later run")
    assert result.read_text() == "of a later run"
    assert list(tmp_path.glob(".*.part")) == []


@pytest.mark.parametrize("text", [SMALL, TRAINS], ids=["a collective", "training with kernels of its own"])
def test_a_run_that_ends_well_says_nothing_on_stderr(tmp_path: Path, text: str) -> None:
    """Newer Triton lists what its bindings find alive at the end, and unloads kernels then: both matrices run this."""
    program = tmp_path / "program.py"
    program.write_text(text)
    ended = kernbench("run", "--nproc-per-node", "2", str(program))
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert ended.stdout.startswith("[rank0] ")


@pytest.mark.long  # an interpreter that imports torch
def test_a_run_says_once_where_a_later_torch_differs(tmp_path: Path) -> None:
    """One that is not tested, and in which something of what is relied on is not so; else nothing is said."""
    program = tmp_path / "program.py"
    program.write_text("import torch, subprocess, sys\nprint(torch.ones(2, device='cuda').sum().item())\n")
    lies = (
        "import kernbench.version as v; v.TESTED['torch'] = ('1.0',); import kernbench.torch_backend.relies_on as r\n"
    )
    broken = (
        "r.reliances = lambda: {'room': (r.Reliance('torch.gone', 'no sentence'), r.Reliance('torch.ones', 'none'))}\n"
    )
    ended = kernbench("run", str(program), code=lies + broken + MAIN)
    assert ended.returncode == 0
    version = metadata.version("torch")
    assert ended.stderr == (
        f"kernbench: torch {version} is newer than the newest that is tested (1.0), and differs in 1 of 2 things that are "
        "relied on: results may be wrong (python -m kernbench.torch_backend.relies_on lists them; pip install 'torch==1.0' "
        "has none of them)\n"
    )
    assert kernbench("run", str(program), code=lies + MAIN).stderr == ""


def test_output_that_is_lost_is_no_traceback(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SMALL)
    with Path("/dev/full").open("w") as full:
        files = [f"--{each}={tmp_path / each}.json" for each in ("json", "trace")]
        ended = kernbench(
            "run", "--nproc-per-node", "2", *files, str(program), stdout=full, capture_output=False, stderr=-1
        )
    assert {"json.json", "trace.json"} <= {*os.listdir(tmp_path)}  # they do not depend on it
    assert ended.stderr == f"kernbench: error: cannot write standard output: {os.strerror(errno.ENOSPC)}\n"
    assert ended.returncode == 1
    reader, writer = os.pipe()
    os.close(reader)
    ended = kernbench("run", "--nproc-per-node", "2", str(program), stdout=writer, capture_output=False, stderr=-1)
    os.close(writer)
    assert (ended.stderr, ended.returncode) == ("", 128 + signal.SIGPIPE)


def test_a_keyboard_interrupt_of_a_rank_is_the_cause(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SMALL.replace("x = ", "if dist.get_rank() == 0: raise KeyboardInterrupt\nx = "))
    ended = kernbench("run", "--nproc-per-node", "2", str(program))
    assert ended.returncode == 1
    assert "kernbench: failed: rank 0 (KeyboardInterrupt)" in ended.stderr
    assert "deadlock" not in ended.stderr


def test_a_file_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("before")

    def fill(part: Path) -> None:
        part.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        pytest.raises(OutputError, match=r"^cannot write .*out\.json: No space left on device$"),
        replacing(target) as part,
    ):
        fill(part)
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]
    assert target.read_text() == "before"
    with pytest.raises(OutputError, match="/dev/full: No space left"):
        write_file("/dev/full", "text")
    link = tmp_path / "link"
    link.symlink_to(target)
    write_file(link, "\udcff")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"\\udcff")


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    folder.mkdir()
    (folder / "program.py").write_text(SMALL)
    files = {name: folder / name for name in ("j.json", "t.json", "r.html")}
    options = ["--json", files["j.json"], "--trace", files["t.json"], "--report", files["r.html"]]
    ended = kernbench("run", *map(str, options), str(folder / "program.py"), errors="surrogateescape")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(files["j.json"].read_text())["program"] == str(folder / "program.py")
    assert all(file.stat().st_size for file in files.values())


def test_what_an_exception_cannot_say_or_says_at_length() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError

    assert message_of(Mute()) == "<its __str__ raised KeyError>"
    long = message_of(ValueError("x" * 10**7))
    assert long == "x" * MOST_OF_A_MESSAGE + "... (shortened: the message has 10,000,000 characters)"


def test_frames_of_the_simulator_are_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        write_file("/dev/full", "text")

    with pytest.raises(OutputError) as caught:
        program()
    short = user_traceback(caught.value)
    assert "in program" in short
    assert "output_files.py" not in short
    monkeypatch.setenv("KERNBENCH_TRACEBACK", "full")
    assert "output_files.py" in user_traceback(caught.value)


def test_triton_has_no_place_for_its_cache() -> None:
    code = compile("raise PermissionError(13, 'Permission denied')", "/lib/triton/runtime/cache.py", "exec")
    with pytest.raises(PermissionError) as caught:
        exec(code)
    assert "TRITON_CACHE_DIR" in (advice_for(caught.value) or "")


@pytest.mark.parametrize(
    ("program", "advice"), [("/nowhere/gcc-12", "set CC"), ("/nowhere/tool", "/nowhere/tool is not there")]
)
def test_a_program_that_this_machine_lacks(program: str, advice: str) -> None:
    def build() -> None:
        try:
            subprocess.run([program])
        except OSError as error:
            raise RuntimeError("cannot build") from error

    with pytest.raises(RuntimeError) as caught:
        build()
    assert advice in (advice_for(caught.value) or "")
    assert advice_for(FileNotFoundError(2, "No such file or directory", "data.txt")) is None
