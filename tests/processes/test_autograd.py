"""Ranks are forks: also of a process that has used autograd, or in which a build for CUDA has looked for GPUs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import kernbench

PROGRAM = """
import torch
import kernbench

def train(rank):
    torch.cuda.set_device(rank)
    torch.ones(2, device="cuda", requires_grad=True).square().sum().backward()
    print("rank", rank, "has trained")

if __name__ == "__main__":
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(train, nprocs=1)
        ctx.multiprocessing.spawn(train, nprocs=2, isolation="process")
"""


def test_ranks_train_that_are_forked_after_others_have() -> None:
    """The first backward of the process is a rank's, on a GPU."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 has trained", "rank 0 has trained", "rank 1 has trained"]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_generators_of_gpus_are_seeded(
    isolation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Builds for CUDA seed none in a fork of a process that has looked for GPUs."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)

    def draw(rank: int) -> None:
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        print(torch.rand(2, device="cuda").tolist())

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(draw, nprocs=2, isolation=isolation)
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
