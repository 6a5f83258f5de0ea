"""How much memory a run needs: the same three figures, by the same names, wherever they are shown."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.html_report.page import read_page
from kernbench.memory.limits import format_size
from kernbench.simulation.ranks.locations import Location
from kernbench.simulation.ranks.rank_spans import named
from kernbench.trace.memory_report import notes_that_python_hides

MIB = 1 << 20

PROGRAM = """\
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
pair = dist.new_group([0, 2])
kept = torch.ones(4 << 20, device="cuda")
dist.all_reduce(kept)
if dist.get_rank() in (0, 2):
    dist.all_reduce(kept, group=pair)
doubled = kept[: 1 << 20] * 2
del kept
last = torch.empty(7 << 20, device="cuda")
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """What a run prints, and what is in its report and in its JSON."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "program.py").write_text(PROGRAM)
    command = [
        warm_python, "-m", "kernbench", "run", "--system", "dgx_h100", "--no-data", "--nproc-per-node", "4",
        "--report", "r.html", "--json", "r.json", "program.py",
    ]  # fmt: skip
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, read_page(folder / "r.html")[0], json.loads((folder / "r.json").read_text())


def of_terminal(printed: str) -> list[dict[str, str]]:
    """The rows of the table of memory, by its heads."""
    lines = printed.splitlines()
    return [
        first | second
        for first, second in zip(_table(lines, "memory at each"), _table(lines, "in use then"), strict=True)
    ]


def _table(lines: Sequence[str], heading: str) -> list[dict[str, str]]:
    at = next(number for number, line in enumerate(lines) if line.startswith(heading))
    heads = lines[at + 1].split()
    rows = takewhile(lambda line: line.split()[0].isdigit(), lines[at + 2 :])
    return [dict(zip(heads, re.sub(r"(\d) ([KMG]iB)", r"\1_\2", row).split(), strict=False)) for row in rows]


ALLOCATED = 28 * MIB + 4 * MIB
RESERVED = 16 * MIB + 20 * MIB + 28 * MIB
"""The first tensor has a segment of its own, the second shares one; none that is free is large enough for the third."""
BESIDES = 755 * MIB
"""CUDA's context and cuBLAS's workspace; 224 MiB for each communicator that has been used are added."""


def test_the_same_figures_wherever_they_are_shown(outputs: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    printed, page, result = outputs
    device = [RESERVED + BESIDES + (2 if rank in (0, 2) else 1) * 224 * MIB for rank in range(4)]
    rows = of_terminal(printed)
    assert len(rows) == len(page["memory"]) == len(result["ranks"]) == 4
    for rank, (row, shown, told) in enumerate(zip(rows, page["memory"], result["ranks"], strict=True)):
        figures = ALLOCATED, RESERVED, device[rank]
        assert (told["allocated_bytes"], told["reserved_bytes"], told["device_bytes"]) == figures
        assert (shown["allocated"], shown["reserved"], shown["device_bytes"]) == figures
        assert (row["allocated"], row["reserved"]) == (f"{ALLOCATED / MIB:.2f}", f"{RESERVED / MIB:.2f}")
        assert row["device"] == format_size(device[rank]).replace(" ", "_")
        assert shown["capacity"] == told["capacity_bytes"] == 80998 * MIB
    facts = {label: (value, more) for label, value, more in page["facts"]}
    assert facts["allocated at most"] == (format_size(ALLOCATED), "memory of rank 0")
    assert facts["reserved at most"] == (format_size(RESERVED), "memory of rank 0")
    assert facts["the device must have"] == (format_size(device[0]), "memory of rank 0, of 79.10 GiB")


SHAPES_OF_STEPS = """\
import torch

model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
kept = torch.ones(8 << 20, device="cuda")
small = torch.ones(16, device="cuda")
"""


def test_the_tables_fit_a_terminal_and_count_steps_alike(tmp_path: Path, warm_python: str) -> None:
    """The peak is reached after two steps, in the third, by an allocation that is far smaller than what is in use."""
    (tmp_path / "p.py").write_text(SHAPES_OF_STEPS)
    command = [
        warm_python,
        "-m",
        "kernbench",
        "run",
        "--system",
        "dgx_h100",
        "--no-data",
        "--nproc-per-node",
        "1",
        "p.py",
    ]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True).stdout
    (row,) = of_terminal(printed.replace("reached at", "reached"))
    assert (row["step"], row["reached"]) == ("3", "p.py:10")
    assert re.search(r"^ +1 .*\n +2 ", printed, re.MULTILINE)
    lines = printed.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("memory at each"))
    assert max(map(len, lines[begin : begin + 6])) <= 80


def test_limits_that_differ_say_whose_they_are(outputs: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    """A communicator takes memory from the ranks that use it."""
    printed, _, _ = outputs
    heading = next(line for line in printed.splitlines() if line.startswith("memory at each"))
    left = [80998 * MIB - BESIDES - count * 224 * MIB for count in (2, 1)]
    assert heading.endswith(
        f"; ranks 0, 2: at most {format_size(left[0])} reserved; ranks 1, 3: at most {format_size(left[1])} reserved"
    )
    stated = next(line for line in printed.splitlines() if line.startswith("device: reserved and"))
    assert re.search(r"ranks 0, 2: .*NCCL buffers 448.00 MiB; ranks 1, 3: .*NCCL buffers 224.00 MiB$", stated)


def test_lines_are_told_from_the_working_folder_on(outputs: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    printed, page, _ = outputs
    assert all(row["reached"] == "program.py:13" for row in of_terminal(printed.replace("reached at", "reached")))
    assert {shown["peak_place"] for shown in page["memory"]} == {"program.py:13 in <module>"}


def test_lines_elsewhere_have_their_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a folder whose name begins as the working folder's; a program that goes elsewhere changes nothing."""
    here, beside = tmp_path / "here", tmp_path / "here_too"
    here.mkdir()
    monkeypatch.chdir(here)
    with kernbench.simulate():
        monkeypatch.chdir(tmp_path)
        for path, shown in ((here / "sub" / "a.py", "sub/a.py"), (beside / "a.py", str(beside / "a.py"))):
            assert str(Location(str(path), 3, "f")) == f"{shown}:3 in f"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([8, 0, 1, 2], "ranks 0-2, 8"), (range(4), "ranks 0-3"), ([1, 3, 3], "ranks 1, 3")],
)
def test_ranks_in_words(ranks: Sequence[int], words: str) -> None:
    assert named(ranks) == words


FAILS = """\
import os
import sys

import torch


def fill(rank):
    torch.cuda.set_device(rank)
    kept = torch.empty(1 << 20, dtype=torch.int8, device="cuda")
    torch.empty(100 << 30, dtype=torch.int8, device="cuda")


if "RANK" in os.environ:
    fill(int(os.environ["RANK"]))
elif "spawn" in sys.argv:
    torch.multiprocessing.spawn(fill, nprocs=2)
else:
    fill(0)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["fails.py"],
        ["fails.py", "spawn"],
        ["--nproc-per-node", "2", "fails.py"],
        ["--nproc-per-node", "2", "--isolation", "process", "fails.py"],
    ],
    ids=["alone", "spawned", "ranks", "processes"],
)
def test_a_failure_shows_its_tables_once(arguments: list[str], tmp_path: Path, warm_python: str) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    command = [warm_python, "-m", "kernbench", "run", "--system", "dgx_h100", "--no-data", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 1
    assert ran.stderr.count("out of memory on rank 0 in step 1: aten::empty.memory_format at fails.py:10 in fill") == 1
    for table in ("  in use for", "  from line", "  it would have fitted with any of"):
        assert (ran.stdout + ran.stderr).count(table) == 1
    assert ran.stdout.count("memory at each rank's peak") <= 1


def test_notes_that_a_traceback_has_are_not_shown_again() -> None:
    error = MemoryError("torch's own")
    error.__notes__ = ["the report", "more"]
    assert [*notes_that_python_hides([error, error], "torch's own\nmore\n")] == ["the report"]
    assert [*notes_that_python_hides([error], "torch's own\nthe report\nmore\n")] == []
    assert [*notes_that_python_hides([error], "another error's")] == []


UNSHARDED = """\
import torch

layer = torch.nn.Linear(8, 8, device="cuda")
weight = layer._parameters.pop("weight")
layer._parameters["weight"] = weight * 1
layer(torch.ones(2, 8, device="cuda")).sum().backward()
torch.optim.SGD([weight], lr=1.0).step()
"""


def test_a_parameter_that_is_a_view_is_not_asked_for_its_gradient(tmp_path: Path, warm_python: str) -> None:
    """FSDP's are while a module runs; torch warns where ``grad`` is read from them."""
    (tmp_path / "views.py").write_text(UNSHARDED)
    run = subprocess.run(
        [warm_python, "-m", "kernbench", "run", "--nproc-per-node", "1", "--system", "dgx_h100", "views.py"],
        cwd=tmp_path, text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert "UserWarning" not in run.stdout + run.stderr
