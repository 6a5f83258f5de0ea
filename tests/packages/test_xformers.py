"""Kernels of ``xformers``: split-K decoding attention over padded caches, RMS norm.

Runs where the package is installed (``pip install --no-deps xformers``).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.packages.device_shim import cuda_questions_answered

pytest.importorskip("xformers")


@pytest.fixture(scope="module", autouse=True)
def _device():
    with cuda_questions_answered():
        yield


def test_rms_norm():
    from xformers.ops.rmsnorm import rms_norm

    x, w = torch.randn(5, 256), torch.randn(256)
    torch.testing.assert_close(rms_norm(x, w), F.rms_norm(x, (256,), w, 1e-6))


@pytest.mark.parametrize("groups", [1, 4])
def test_split_k_attention(groups):
    from xformers.ops.fmha import attn_bias, triton_splitk
    from xformers.ops.fmha.common import Inputs

    lengths, padding, kv_heads, size = [60, 100, 1], 100, 2, 64
    batch = len(lengths)
    heads = kv_heads * groups
    q = torch.randn(1, batch, heads, size).half()
    k, v = (torch.randn(1, batch * padding, kv_heads, size).half() for _ in range(2))
    mask = attn_bias.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
        q_seqlen=[1] * batch, kv_seqlen=lengths, kv_padding=padding
    )
    inputs = [q, k, v]
    if groups > 1:
        spread = [t[:, :, :, None].expand(-1, -1, -1, groups, -1) for t in (k, v)]
        inputs = [q.view(1, batch, kv_heads, groups, size), *spread]
    out, _ = triton_splitk.FwOp.apply(Inputs(*inputs, attn_bias=mask), needs_gradient=False)
    out = out.reshape(batch, heads, size)
    for i, n in enumerate(lengths):
        keys, values = (
            t[0, i * padding : i * padding + n].repeat_interleave(groups, 1).transpose(0, 1).float() for t in (k, v)
        )
        expected = F.scaled_dot_product_attention(q[0, i, :, None].float(), keys, values)[:, 0]
        torch.testing.assert_close(out[i].float(), expected, rtol=2e-3, atol=2e-3)
