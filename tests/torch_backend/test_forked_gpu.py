"""A GPU is its process's: what a rank forks after it has used it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.commands.run import command

FORKS = """
import os, sys, torch

def say(what):
    with open(sys.argv[1], "a") as file:
        print(what, file=file)

def forked(body):
    child = os.fork()
    if child == 0:
        try:
            torch.manual_seed(1)  # as a DataLoader's worker does: on the host alone
            say((torch.cuda.is_available(), torch.cuda.device_count() > 0, body()))
        except RuntimeError as error:
            say(error)
        os._exit(0)
    os.waitpid(child, 0)

forked(lambda: torch.ones(3, device="cuda").sum().item())
kept = torch.ones(2, device="cuda")
forked(lambda: torch.ones(3, device="cuda"))
forked(lambda: kept + 1)
forked(lambda: kept.cpu())
forked(lambda: torch.ones(3).sum().item())
say((kept + 1).sum().item())
"""
REFUSED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
    "you must use the 'spawn' start method"
)

LOADS = """
import torch
from torch.utils.data import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __init__(self, device):
        self.device = device
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((2,), float(index), device=self.device)

torch.cuda.init()
torch.ones(1, device="cuda")
print(sum(batch.cuda().sum().item() for batch in DataLoader(Numbers("cpu"), batch_size=2, num_workers=2, pin_memory=True)))
list(DataLoader(Numbers("cuda"), batch_size=2, num_workers=1))
"""


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_what_a_rank_forks_has_no_gpu_that_it_has_used(tmp_path: Path, isolation: str) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    options = ("--system", "dgx_h100", "--no-summary", "--nproc-per-node", "1", "--isolation", isolation)
    said = tmp_path / "said.txt"
    result = CliRunner().invoke(command, [*options, str(tmp_path / "forks.py"), str(said)])
    assert result.exit_code == 0, result.output
    works = "(True, True, 3.0)"
    assert said.read_text().splitlines() == [works, REFUSED, REFUSED, REFUSED, works, "4.0"]


def test_a_loaders_workers_may_use_the_host_only(tmp_path: Path) -> None:
    (tmp_path / "loads.py").write_text(LOADS)
    options = ("--system", "dgx_h100", "--no-summary", "--nproc-per-node", "1")
    result = CliRunner().invoke(command, [*options, str(tmp_path / "loads.py")])
    assert result.exit_code == 1
    assert "12.0" in result.stdout
    assert f"RuntimeError: {REFUSED}" in result.output
