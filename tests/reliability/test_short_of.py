"""What the machine has no more of, or never had: threads, processes, bytes for a text, a folder that stays, one to write to."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from click.testing import CliRunner

import kernbench
from kernbench.advice import advice_for
from kernbench.commands.run import command
from kernbench.errors import ConfigError
from kernbench.output_files import require_folder, require_place, write_file
from kernbench.scheduler import host_effects
from kernbench.torch_backend.rank_state.output import RankStream


def no_more(*args: object) -> None:
    raise RuntimeError("can't start new thread")


def test_no_more_threads_are_said_in_a_line_and_the_context_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        with monkeypatch.context() as patched:
            patched.setattr(host_effects, "_start", no_more)
            with pytest.raises(kernbench.KernbenchError, match=r"can't start new thread.*ulimit -u"):
                ctx.multiprocessing.spawn(lambda rank: None, nprocs=2)
        ran: list[int] = []
        ctx.multiprocessing.spawn(ran.append, nprocs=2)
        assert ran == [0, 1]


def test_no_more_processes_are_said_in_a_line_and_the_context_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    files = len(os.listdir("/proc/self/fd"))
    with kernbench.simulate("dgx_h100") as ctx:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fork", refused)
            with pytest.raises(kernbench.KernbenchError, match=r"no process for rank 0: .*ulimit -u"):
                ctx.multiprocessing.spawn(lambda rank: None, nprocs=2, isolation="process")
        assert len(os.listdir("/proc/self/fd")) <= files
        ctx.multiprocessing.spawn(lambda rank: dist.init_process_group("gloo"), nprocs=2, isolation="process")


def test_a_programs_own_threads_get_the_advice() -> None:
    with pytest.raises(RuntimeError) as raised:
        no_more()
    assert "ulimit -u" in str(advice_for(raised.value))


def test_text_without_bytes_fails_where_it_is_printed() -> None:
    """Nothing of it is kept, to fail at the end of the line or of the run."""
    below = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="surrogateescape")
    stream = RankStream(below, lambda: 3, "[rank{}] ")
    stream.write("begun, ")
    with pytest.raises(UnicodeEncodeError, match=r"position 0-1:"):
        stream.write("\xfc\u20ac")
    stream.write("\udcff ended\n")
    stream.finish()
    stream.flush()
    assert below.buffer.getvalue() == b"[rank3] begun, \xff ended\n"  # type: ignore[attr-defined]


def test_text_without_bytes_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(rank: int) -> None:
        with pytest.raises(UnicodeEncodeError):
            print("\xfc")
        if rank == 1:
            sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
            print("\xfc")

    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation="process")
    sys.stdout.flush()
    assert written.getvalue() == b"\xc3\xbc\n"


def test_ranks_go_to_folders_by_descriptors(tmp_path: Path) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank:
            folder = os.open(tmp_path, os.O_RDONLY)
            os.fchdir(folder)
            os.close(folder)
        dist.barrier()
        found[rank] = os.getcwd()

    found: dict[int, str] = {}
    before = os.getcwd()
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert found == {0: before, 1: str(tmp_path)}
    assert os.getcwd() == before


@pytest.mark.parametrize("then", ["", "os.rmdir(gone)"], ids=["stays", "removed"])
def test_files_are_written_from_where_the_command_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Whatever folder the program has gone to."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(f"import os\ngone = os.path.abspath('sub')\nos.mkdir(gone)\nos.chdir(gone)\n{then}\n")
    asked = ["--trace", "t.json", "--json", "j.json", "--flight-recorder", "fr"]
    result = CliRunner().invoke(command, [*asked, "program.py"])
    assert result.exit_code == 0, result.output
    assert {each.name for each in tmp_path.iterdir()} - {"sub"} == {"program.py", "t.json", "j.json", "fr"}
    assert os.getcwd() == str(tmp_path)


def test_a_place_that_takes_no_file_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = tmp_path / "a file"
    taken.write_text("")
    with pytest.raises(ConfigError, match=r"--json .*: File name too long"):
        require_place(tmp_path / ("x" * 256), option="--json")
    with pytest.raises(ConfigError, match=r"--flight-recorder .*: .*a file is no folder"):
        require_folder(taken / "below", option="--flight-recorder")
    require_folder(tmp_path / "new" / "newer", option="--flight-recorder")
    require_place("/dev/full", option="--json")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    with pytest.raises(ConfigError, match=r"--json .*: .* cannot be written to"):
        require_place(tmp_path / "j.json", option="--json")
    with pytest.raises(ConfigError, match=r"--flight-recorder .*: .* cannot be written to"):
        require_folder(tmp_path / "new", option="--flight-recorder")


def test_the_longest_names_are_written(tmp_path: Path) -> None:
    target = tmp_path / ("\xe4" * 127 + "x")
    write_file(target, "all")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(target.name, "all")]
