"""``torch.jit.script`` of functions that make tensors, in a rank."""

from __future__ import annotations

import torch

import kernbench


def _made(x: torch.Tensor):
    return torch.zeros((2, 3), dtype=torch.float32, device=x.device) + torch.arange(3, device=x.device) + x


def _script_it():
    x = torch.ones(3, device="cuda")
    made = torch.jit.script(_made)(x)
    return made.device.type, made.tolist()


def test_scripted_factories_make_tensors_on_the_gpu():
    found = []
    with kernbench.simulate("dgx_h100", seed=1) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.append(_script_it()), nprocs=1)
    assert found == [("cuda", [[1.0, 2.0, 3.0]] * 2)]
