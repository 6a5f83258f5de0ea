"""Serving kernels of ``conch-triton-kernels``: paged caches, quantisation, vision, against plain torch.

Runs where the package is installed (``pip install --no-deps conch-triton-kernels``).
"""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

from tests.packages.device_shim import cuda_questions_answered

pytest.importorskip("conch")


@pytest.fixture(scope="module", autouse=True)
def _device():
    with cuda_questions_answered():
        yield


def ops(module: str):
    return import_module(f"conch.ops.{module}")


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_gated_activations(name):
    x = torch.randn(7, 260)
    gate, up = x.float().chunk(2, -1)
    expected = (F.silu(gate) if name == "silu_and_mul" else F.gelu(gate, approximate="tanh")) * up
    got = getattr(ops(f"activation.{name}"), name)(x)
    torch.testing.assert_close(got.float(), expected, rtol=2e-3, atol=2e-3)


def test_rms_norms():
    x, w, residual = torch.randn(9, 200), torch.randn(200), torch.randn(9, 200)
    norm = ops("normalization.rms_norm")
    torch.testing.assert_close(norm.rms_norm(x, w, 1e-6), F.rms_norm(x, (200,), w, 1e-6))
    y, total = norm.fused_add_rms_norm(x.clone(), residual.clone(), w, 1e-6)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, F.rms_norm(x + residual, (200,), w, 1e-6))


def paged_cache(lengths: list[int], kv_heads: int, size: int, block: int):
    """Keys and values of each sequence, and the same scattered over a shuffled block table."""
    per_sequence = -(-max(lengths) // block)
    blocks = per_sequence * len(lengths)
    keys, values = torch.randn(2, blocks, block, kv_heads, size).unbind(0)
    table = torch.randperm(blocks).reshape(len(lengths), per_sequence).to(torch.int32)
    dense = [
        (keys[row.long()].flatten(0, 1)[:n], values[row.long()].flatten(0, 1)[:n])
        for row, n in zip(table, lengths, strict=True)
    ]
    return keys.contiguous(), values.contiguous(), table, dense


@pytest.mark.parametrize("softcap", [0.0, 20.0])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_paged_attention(heads, kv_heads, softcap):
    lengths, size = [1, 17, 64, 150], 64
    keys, values, table, dense = paged_cache(lengths, kv_heads, size, 16)
    query = torch.randn(len(lengths), heads, size)
    out = ops("attention.paged_attention").paged_attention(
        query, keys, values, table, torch.tensor(lengths, dtype=torch.int32), softcap=softcap
    )
    for q, (k, v), got in zip(query, dense, out, strict=True):
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        scores = torch.einsum("hd,nhd->hn", q, k) * size**-0.5
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        torch.testing.assert_close(got, torch.einsum("hn,nhd->hd", scores.softmax(-1), v), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_ragged_sequences(causal):
    lengths, heads, kv_heads, size = [5, 33, 80], 4, 2, 64
    keys, values, table, dense = paged_cache(lengths, kv_heads, size, 16)
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    query = torch.randn(sum(lengths), heads, size)
    out = ops("attention.varlen_attention").varlen_attention(
        query, keys, values, starts, max(lengths), torch.tensor(lengths, dtype=torch.int32), max(lengths), table,
        causal=causal,
    )  # fmt: skip
    for i, (k, v) in enumerate(dense):
        q = query[starts[i] : starts[i + 1]].transpose(0, 1)
        k, v = (t.repeat_interleave(heads // kv_heads, 1).transpose(0, 1) for t in (k, v))
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1)
        torch.testing.assert_close(out[starts[i] : starts[i + 1]], expected, rtol=2e-3, atol=2e-3)


def test_rotary_embedding():
    reference = import_module("conch.reference.embedding.rotary_embedding")
    cache = reference.compute_cos_sin_cache(10000.0, 64, 128)
    positions, query, key = torch.randint(0, 128, (10,)), torch.randn(10, 4 * 64), torch.randn(10, 2 * 64)
    q, k = ops("embedding.rotary_embedding").rotary_embedding(positions, query.clone(), key.clone(), 64, cache)
    cos, sin = (t[:, None] for t in cache[positions].chunk(2, -1))
    for got, x in ((q, query), (k, key)):
        a, b = x.reshape(10, -1, 64).chunk(2, -1)
        torch.testing.assert_close(got.reshape(10, -1, 64), torch.cat([a * cos - b * sin, b * cos + a * sin], -1))


def test_int8_and_fp8_quantisation():
    x, scale = torch.randn(6, 256) * 3, torch.tensor([0.05])
    got, _ = ops("quantization.int8").scaled_int8_quant(x, scale)
    assert torch.equal(got, (x * (1 / scale)).clamp(-128, 127).to(torch.int8))  # the package truncates
    got, _ = ops("quantization.fp8").scaled_fp8_quant(x, scale)
    expected = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(got.float(), expected, rtol=0.07, atol=1e-3)
    assert (got.float() == expected).float().mean() > 0.99  # a reciprocal may move a tie


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bit_quantisation_is_near_and_stable(kind):
    functional = ops("quantization.bitsandbytes.functional")
    x = torch.randn(2048)
    packed, state = functional.quantize_4bit(x, blocksize=64, quant_type=kind)
    assert packed.numel() == 1024
    torch.testing.assert_close(state.absmax, x.reshape(-1, 64).abs().amax(1))
    back = functional.dequantize_4bit(packed, state, quant_type=kind)
    assert (back - x).abs().max() <= 0.18 * x.abs().max()
    again, _ = functional.quantize_4bit(back, blocksize=64, quant_type=kind)
    assert torch.equal(functional.dequantize_4bit(again, state, quant_type=kind), back)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16])
def test_scaled_gemm(dtype):
    if dtype == torch.int8:
        a, b = torch.randint(-100, 100, (70, 128), dtype=dtype), torch.randint(-100, 100, (128, 64), dtype=dtype)
    else:
        a, b = torch.randn(70, 128).to(dtype), torch.randn(128, 64).to(dtype)
    scale_a, scale_b = torch.rand(70, 1), torch.rand(64, 1)
    got = ops("quantization.gemm").scaled_gemm(a, b, scale_a, scale_b, torch.float32)
    torch.testing.assert_close(got.double(), a.double() @ b.double() * scale_a * scale_b.T, rtol=1e-3, atol=1e-3)


def test_non_maximum_suppression():
    corners = torch.rand(60, 2) * 20
    boxes, scores = torch.cat([corners, corners + torch.rand(60, 2) * 8 + 1], 1), torch.rand(60)
    kept = []
    for i in scores.argsort(descending=True).tolist():
        low, high = torch.maximum(boxes[i, :2], boxes[kept, :2]), torch.minimum(boxes[i, 2:], boxes[kept, 2:])
        shared = (high - low).clamp_min(0).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        if not (shared / (area[i] + area[kept] - shared) > 0.5).any():
            kept.append(i)
    assert ops("vision.nms").nms(boxes, scores, 0.5).tolist() == kept


def test_bird_eye_view_pooling():
    cells = torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0], [2, 3, 0, 0], [2, 3, 0, 0], [2, 3, 0, 0]], dtype=torch.int32)
    feats = torch.randn(5, 24)
    starts, lengths = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([2, 3], dtype=torch.int32)
    out = ops("vision.bev_pool").bev_pool(feats, cells, starts, lengths, 1, 1, 4, 5)
    torch.testing.assert_close(out.sum((0, 1, 2, 3)), feats.sum(0))
    assert (out.abs().sum(-1) > 0).sum() == 2
