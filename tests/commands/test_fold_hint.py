"""What a run of all ranks without data says of ``--ranks auto``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.commands.fold_hint import would_run

PROGRAM = """
import sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
half = groups[rank // 2]
weight = torch.randn(64, 64, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    (weight @ weight).sum().backward()
    dist.all_reduce(weight.grad)
    dist.all_reduce(weight.grad, group=half)
    if "stages" in sys.argv and rank % 2 == 0:
        dist.send(weight.detach(), rank + 1)
    if "stages" in sys.argv and rank % 2 == 1:
        dist.recv(torch.empty_like(weight), rank - 1)
    optimizer.step()
"""


def said(folder: Path, *options: str, arguments: tuple[str, ...] = ()) -> list[str]:
    (folder / "train.py").write_text(PROGRAM)
    found = CliRunner().invoke(
        app, ["run", "--nproc-per-node", "4", "--system", "dgx_h100", *options, str(folder / "train.py"), *arguments]
    )
    assert found.exit_code == 0, found.output
    return [line for line in found.output.splitlines() if "--ranks auto would run" in line or line.startswith("ran ")]


@pytest.mark.parametrize("arguments", [(), ("stages",)])
def test_the_number_is_what_auto_runs(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (folded,) = said(tmp_path, "--no-data", "--ranks", "auto", arguments=arguments) or ["ran 4 of 4"]
    count = int(folded.split()[1])
    expected = (
        []
        if count == 4
        else [f"all 4 ranks run; --ranks auto would run {count} of 4, and take the others to do what these do"]
    )
    assert said(tmp_path, "--no-data", arguments=arguments) == expected


def test_it_is_said_at_once_where_progress_is_shown_and_not_where_it_was_chosen(tmp_path: Path) -> None:
    now, later = said(tmp_path, "--no-data", "--progress")
    assert now == "kernbench: all 4 ranks run; --ranks auto would run 2 of 4"
    assert later.startswith("all 4 ranks run; --ranks auto would run 2 of 4")
    assert said(tmp_path, "--no-data", "--ranks", "all") == []
    assert said(tmp_path) == []


@pytest.mark.parametrize(
    ("groups", "needs", "count"),
    [
        ([tuple(range(8))], [], 2),
        ([tuple(range(8))], [(0, (1,))], 8),
        ([(0, 1, 2, 3), (0, 4)], [(0, (4,))], 4),
        ([(0, 3, 5)], [], 8),
    ],
)
def test_messages_and_groups_that_are_no_axis_keep_ranks(groups, needs, count: int) -> None:
    assert would_run(8, groups, needs) == count
