"""Ranks are forks, also of a process in which autograd has been used."""

from __future__ import annotations

import subprocess
import sys

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
