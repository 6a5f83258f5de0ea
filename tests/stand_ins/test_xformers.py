"""``xformers``: its own attention with its biases on torch's operators, where it is installed; and what hides others."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.compiled_operators.xformers import by_torchs_kernels
from kernbench.stand_ins import standing_in
from tests.stand_ins.on_gpu import on_gpu, operations_on_gpu

Tensor = torch.Tensor
INSTALLED = pytest.mark.skipif(
    importlib.util.find_spec("xformers") is None, reason="pip install --no-deps xformers==0.0.35"
)
LENGTHS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=3)


def test_a_module_is_executed_without_other_packages(monkeypatch):
    there = ModuleType("flash_attn")
    monkeypatch.setitem(sys.modules, "flash_attn", there)
    with by_torchs_kernels(ModuleType("any")):
        assert importlib.util.find_spec("flash_attn") is None
        assert importlib.util.find_spec("flash_attn_3") is None
    assert sys.modules["flash_attn"] is there
    assert "flash_attn_3" not in sys.modules


@pytest.fixture(scope="module", autouse=True)
def _imported():
    there = importlib.util.find_spec("xformers") is not None
    with standing_in(["xformers"] if there else []):
        if there:  # where there is a GPU: it asks at its import
            on_gpu(lambda: importlib.import_module("xformers.ops") and [])
        yield


def defined(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """``[batch, length, heads, size]``; ``seen [queries, keys]``. A query that sees nothing gives zeros."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    scores = scores if bias is None else scores + bias
    shares = torch.softmax(scores.masked_fill(~seen, -math.inf), -1).nan_to_num(0.0)
    return torch.einsum("bhij,bjhd->bihd", shares, v)


def compared(
    make: Any, queries: int, keys: int, seen: Tensor, seed: int, *, batch: int = 1, dense: bool = False, name: str
) -> None:
    """A pass and its gradients on a GPU, of one of the package's kernels, with the definition."""
    from xformers.ops import fmha

    random = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if name == "flash" else torch.float32
    q, k, v, grad = (
        torch.randn(batch, length, 2, 8, generator=random).to(dtype) for length in (queries, keys, keys, queries)
    )
    bias = torch.randn(batch, 2, queries, keys, generator=random) if dense else None
    module = getattr(fmha, name)

    def body() -> list[Tensor]:
        inputs = [each.cuda().requires_grad_() for each in (q, k, v)]
        given_bias = make() if bias is None else bias.cuda()
        out = fmha.memory_efficient_attention(*inputs, attn_bias=given_bias, scale=0.4, op=(module.FwOp, module.BwOp))
        return [out, *torch.autograd.grad(out, inputs, grad.cuda())]

    wide = [each.double().requires_grad_() for each in (q, k, v)]
    expected = defined(*wide, seen, None if bias is None else bias.double(), 0.4)
    gradients = torch.autograd.grad(expected, wide, grad.double())
    for found, one in zip(on_gpu(body), (expected, *gradients), strict=True):
        rounding = 2e-2 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(found.detach().double(), one.detach(), rtol=rounding, atol=rounding)


@INSTALLED
@settings(max_examples=4)
@given(seed=st.integers(0, 1 << 20), lengths=LENGTHS, causal=st.booleans(), name=st.sampled_from(["cutlass", "flash"]))
def test_sequences_one_after_the_other(seed, lengths, causal, name):
    from xformers.ops.fmha import attn_bias

    queries = [count for count, _ in lengths]
    keys = [count + more for count, more in lengths]
    blocks = [
        torch.ones(a, b, dtype=torch.bool).tril(b - a if causal else b) for a, b in zip(queries, keys, strict=True)
    ]

    def make() -> Any:
        bias = attn_bias.BlockDiagonalMask.from_seqlens(queries, keys, device=torch.device("cuda"))
        return bias.make_causal_from_bottomright() if causal else bias

    compared(make, sum(queries), sum(keys), torch.block_diag(*[each.int() for each in blocks]).bool(), seed, name=name)


@INSTALLED
@settings(max_examples=4)
@given(seed=st.integers(0, 1 << 20), length=st.integers(1, 9), name=st.sampled_from(["cutlass", "flash"]))
def test_a_later_key_is_not_seen(seed, length, name):
    from xformers.ops.fmha import attn_bias

    seen = torch.ones(length, length, dtype=torch.bool).tril()
    compared(attn_bias.LowerTriangularMask, length, length, seen, seed, batch=2, name=name)


@INSTALLED
def test_a_bias_for_every_pair():
    compared(None, 8, 8, torch.ones(8, 8, dtype=torch.bool), 3, batch=2, dense=True, name="cutlass")


@INSTALLED
def test_which_kernel_takes_it_without_data():
    def body() -> None:
        from xformers.ops import fmha

        q = torch.empty(1, 4096, 8, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        fmha.memory_efficient_attention(q, q, q, attn_bias=fmha.attn_bias.LowerTriangularMask()).sum().backward()

    names = [each.name for each in operations_on_gpu(body)]
    assert sum("_flash_attention" in each for each in names) == 2  # torch's, as its build for CUDA has it
