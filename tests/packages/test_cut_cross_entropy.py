"""``cut-cross-entropy``: a loss over a vocabulary that never holds the logits.

Runs where the package is installed (``pip install --no-deps cut-cross-entropy``).
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from tests.packages.device_shim import cuda_questions_answered

if find_spec("cut_cross_entropy") is None:  # importing it would compile; see the test
    pytest.skip("cut-cross-entropy is not installed", allow_module_level=True)


@pytest.mark.parametrize("softcap", [None, 20.0])
def test_loss_and_gradients(softcap, monkeypatch):
    # the package compiles small torch helpers with inductor, which would ask the device that we do not have
    monkeypatch.setattr(torch, "compile", lambda f=None, **_: f or (lambda g: g))
    from cut_cross_entropy import linear_cross_entropy

    e = torch.randn(40, 64).bfloat16().requires_grad_()
    c = (torch.randn(300, 64) * 0.3).bfloat16().requires_grad_()
    target = torch.randint(0, 300, (40,))
    target[::7] = -100
    logits = e.float() @ c.float().T
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    expected = F.cross_entropy(logits, target)
    with cuda_questions_answered():
        loss = linear_cross_entropy(e, c, target, impl="cce", softcap=softcap)
        gradients = torch.autograd.grad(loss, (e, c))
    torch.testing.assert_close(loss.float(), expected, rtol=5e-3, atol=5e-3)
    for got, want in zip(gradients, torch.autograd.grad(expected, (e, c)), strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=2e-3)
