"""The programs of the package compute what PyTorch computes, and run small with their data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import kernbench
from kernbench.programs.llama import ComposedRMSNorm
from kernbench.programs.mpt import DecoupledAdamW, loss_of
from kernbench.runtime_api.launcher import RankProgram, run_ranks

PROGRAMS = Path(kernbench.__file__).parent / "programs"


@pytest.mark.parametrize(
    ("program", "arguments", "ranks"),
    [
        ("mpt.py", "--model debug --seq 16 --microbatch 2 --accumulate 2 --steps 2 --checkpointing full", 2),
        ("gpt.py", "--layers 1 --dim 16 --heads 2 --vocab 64 --seq 16 --batch 2 --steps 2", 1),
        ("llama.py", "--model debug --layers 1 --seq 16 --steps 1 --norm composed --optimizer foreach", 2),
        ("llama.py", "--model debug --layers 1 --seq 16 --steps 2 --float8 gathered", 2),
    ],
)
def test_a_program_runs_with_its_data(
    program: str, arguments: str, ranks: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with kernbench.simulate("dgx_h100", devices=list(range(ranks))) as ctx:
        run_ranks(ctx, RankProgram.script(str(PROGRAMS / program), arguments.split()), nproc_per_node=ranks)
    said = [line for line in capfd.readouterr().out.splitlines() if "loss" in line]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in said]
    assert losses
    assert all(0 < loss < 20 for loss in losses)


def test_cross_entropy_is_pytorchs() -> None:
    found: list[torch.Tensor] = []

    def body(rank: int) -> None:
        torch.manual_seed(0)
        logits = torch.randn(1, 6, 300, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        labels = torch.randint(0, 300, (1, 6), device="cuda")
        loss = loss_of(logits, labels)
        loss.backward()
        wide = logits.detach().float().requires_grad_()
        stock = F.cross_entropy(wide.flatten(0, 1), labels.flatten())
        stock.backward()
        assert logits.grad is not None
        assert wide.grad is not None
        found.extend((loss.detach().cpu(), stock.detach().cpu(), logits.grad.cpu().float(), wide.grad.cpu()))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    loss, stock, gradient, wide = found
    torch.testing.assert_close(loss, stock, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, wide, rtol=1e-2, atol=1e-3)


def test_the_composed_norm_is_the_fused_one() -> None:
    x = torch.randn(3, 8)
    composed, fused = ComposedRMSNorm(8), torch.nn.RMSNorm(8)
    torch.testing.assert_close(composed(x), fused(x))


def test_decoupled_adamw_without_decay_is_adam() -> None:
    first, second = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    ours = DecoupledAdamW([first], lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    stock = torch.optim.Adam([second], lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for step in range(3):
        for parameter, optimizer in ((first, ours), (second, stock)):
            parameter.grad = torch.arange(4.0) - step
            optimizer.step()
    torch.testing.assert_close(first, second)
