"""``mamba_ssm`` and ``causal_conv1d``: their own Python and Triton, on the stand-ins for their compiled modules.

Runs where they are installed without what is compiled for CUDA; ``kernbench stand-ins mamba_ssm`` says how.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

import kernbench
from kernbench.stand_ins import standing_in

if any(importlib.util.find_spec(name) is None for name in ("mamba_ssm", "causal_conv1d")):
    pytest.skip("mamba_ssm and causal_conv1d are not installed", allow_module_level=True)


def simulated(worker, data=True):
    """What the one rank puts into a list, and the names of what has no cost."""
    found = []
    with standing_in(["mamba_ssm", "causal_conv1d"]), kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: worker(found), nprocs=1)
        unknown = [each.name for each in ctx.simulation.op_costs.unmodelled.operators]
    return found, unknown


def test_functions_are_the_packages_references():
    def worker(found):
        from causal_conv1d import causal_conv1d_fn
        from causal_conv1d.causal_conv1d_interface import causal_conv1d_ref
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn, selective_scan_ref

        torch.manual_seed(0)
        x, weight, bias = (
            torch.randn(*shape, device="cuda", requires_grad=True) for shape in ((2, 8, 16), (8, 4), (8,))
        )
        delta, b, c, z = (
            torch.randn(*shape, device="cuda", requires_grad=True)
            for shape in ((2, 8, 16), (2, 4, 16), (2, 4, 16), (2, 8, 16))
        )
        a = (-torch.rand(8, 4, device="cuda")).requires_grad_()
        d, shift = (torch.randn(8, device="cuda", requires_grad=True) for _ in range(2))
        pairs = [
            (causal_conv1d_fn, causal_conv1d_ref, (x, weight, bias), {"activation": "silu"}),
            (selective_scan_fn, selective_scan_ref, (x, delta, a, b, c, d, z, shift), {"delta_softplus": True}),
        ]
        for theirs, reference, inputs, how in pairs:
            results = [function(*inputs, **how) for function in (theirs, reference)]
            grads = [torch.autograd.grad(each.square().sum(), inputs) for each in results]
            for one, other in zip((results[0], *grads[0]), (results[1], *grads[1]), strict=True):
                found.append(((one - other).norm() / other.norm()).item())

    found, _ = simulated(worker)
    assert len(found) == 13
    assert max(found) < 1e-5


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("name", ["Mamba", "Mamba2"])
def test_blocks_train(name, data):
    def worker(found):
        import mamba_ssm

        torch.manual_seed(0)
        more = {"headdim": 16} if name == "Mamba2" else {}
        block = getattr(mamba_ssm, name)(d_model=32, d_state=8, d_conv=4, expand=2, **more).cuda()
        x, target = (torch.randn(2, 16, 32, device="cuda") for _ in range(2))
        optimizer = torch.optim.AdamW(block.parameters(), lr=1e-2)
        for _ in range(3):
            loss = (block(x) - target).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if data:
                found.append(loss.item())

    losses, unknown = simulated(worker, data)
    assert losses == sorted(losses, reverse=True)
    assert unknown == []
