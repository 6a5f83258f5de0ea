"""``torch.autocast("cuda")`` of softmax and losses: dtypes, values and memory as CUDA's autocast has them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import kernbench

ROWS, VOCABULARY = 512, 4096
UNIT = ROWS * VOCABULARY * 2  # 16-bit logits


@pytest.mark.parametrize("data", [True, False])
def test_a_loss_of_narrow_logits_keeps_no_logits(data):
    """Kept for the backward pass: their log-softmax, of 16 bits, and that in 32 for the loss."""

    def body():
        memory = torch.cuda.memory_allocated
        x = torch.randn(ROWS, VOCABULARY, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        labels = torch.zeros(ROWS, dtype=torch.long, device="cuda")
        before = memory()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = x * 1
            loss = F.cross_entropy(logits, labels)
        del logits
        kept = memory() - before
        torch.cuda.reset_peak_memory_stats()
        loss.backward()
        return loss.dtype, round(kept / UNIT, 2), round((torch.cuda.max_memory_allocated() - before) / UNIT, 2)

    found = []
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.append(body()), nprocs=1)
    assert found == [(torch.float32, 3.0, 5.0)]


def test_a_loss_is_of_the_narrow_log_softmax():
    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(3)).bfloat16()
    labels = torch.arange(64) % 100
    with kernbench.simulated_gpu("dgx_h100"), torch.autocast("cuda", dtype=torch.bfloat16):
        found = F.cross_entropy(logits.cuda(), labels.cuda()).item()
    assert found == pytest.approx(F.nll_loss(logits.log_softmax(-1).float(), labels).item(), abs=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # of the host's tensors nothing has changed
        assert F.cross_entropy(logits, labels).item() == F.cross_entropy(logits.float(), labels).item() != found


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize(("dtype", "casts"), [(torch.float16, False), (torch.bfloat16, True)])
def test_a_softmax_gives_wide_results(function, dtype, casts):
    """Of float16 in one kernel each way; of bfloat16 with a cast before it, and one behind its gradient."""
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(2)).to(dtype)
    names = []

    def worker(rank):
        leaf = x.cuda().requires_grad_()
        with torch.autocast("cuda", dtype=dtype):
            y = function(leaf, -1)
            assert function(leaf, -1, dtype=dtype).dtype is dtype
        assert y.dtype is torch.float32
        wide = x.float().requires_grad_()
        (true,) = torch.autograd.grad(function(wide, -1).square().sum(), wide)
        (found,) = torch.autograd.grad(y.square().sum(), leaf)
        leaf + 1
        assert found.dtype is dtype
        assert torch.allclose(y.cpu(), function(x.float(), -1))
        assert torch.equal(found.cpu(), true.to(dtype))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        names = [op.name.partition(".")[0] for op in ctx.engine.op_log.operations if op.rank == 0]
    forward, backward = names.index(f"_{function.__name__}"), names.index(f"_{function.__name__}_backward_data")
    around = [names[forward - 1] if forward > 1 else "", names[backward + 1]]
    assert (around.count("_to_copy") == 2) is casts
