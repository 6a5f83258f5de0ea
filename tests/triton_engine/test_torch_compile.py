"""Kernels that ``torch.compile`` writes: inductor asks for Triton kernels for the CPU, and they run here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config


@pytest.fixture(autouse=True)
def _inductor(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    with config.patch(cpu_backend="triton", compile_threads=1, fx_graph_cache=False):
        yield


def test_a_layer_forward_and_backward(record_launches_by_name):
    layer = torch.nn.Sequential(torch.nn.Linear(20, 24), torch.nn.GELU(), torch.nn.LayerNorm(24))
    x = torch.randn(10, 20)
    expected = layer(x).softmax(-1).pow(2).mean()
    expected.backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    got = torch.compile(lambda x: F.softmax(layer(x), -1).pow(2).mean())(x)
    got.backward()
    torch.testing.assert_close(got, expected)
    for p, gradient in zip(layer.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-6)
    assert any("gelu" in name for name in record_launches_by_name())


@pytest.fixture
def record_launches_by_name():
    from kernbench.triton_engine import record_launches

    with record_launches() as records:
        yield lambda: {r.name for r in records}
