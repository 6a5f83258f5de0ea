"""The stand-in's two passes of attention, as ring attention calls them: against autograd in double precision."""

from __future__ import annotations

import pytest
import torch

from kernbench.stand_ins import standing_in


@pytest.fixture
def interface():
    with standing_in(["flash_attn"]):
        from flash_attn import flash_attn_interface

        yield flash_attn_interface


def _whole(q, k, v, causal):
    q, k, v = (each.detach().double().requires_grad_() for each in (q, k, v))
    groups = q.shape[2] // k.shape[2]
    keys, values = (each.repeat_interleave(groups, dim=2) for each in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), values)
    return (q, k, v), out, torch.logsumexp(scores, -1)


def _drawn(seed, *, length=8, heads=4, of_keys=2):
    torch.manual_seed(seed)
    return [torch.randn(2, length, count, 4) for count in (heads, of_keys, of_keys, heads)]


@pytest.mark.parametrize("causal", [False, True])
def test_both_passes_are_those_of_attention(interface, causal):
    q, k, v, dout = _drawn(0)
    leaves, expected, sums = _whole(q, k, v, causal)
    expected.backward(dout.double())
    out, lse, _, _ = interface._flash_attn_forward(q, k, v, 0.0, None, causal)
    into = [torch.empty_like(each) for each in (q, k, v)]
    interface._flash_attn_backward(dout, q, k, v, out, lse, *into, 0.0, None, causal)
    torch.testing.assert_close((out.double(), lse.double()), (expected.detach(), sums.detach()), rtol=1e-5, atol=1e-5)
    for got, leaf in zip(into, leaves, strict=True):
        torch.testing.assert_close(got.double(), leaf.grad, rtol=1e-5, atol=1e-5)


def test_blocks_of_keys_share_the_sums_of_all(interface):
    q, k, v, dout = _drawn(1)
    leaves, expected, sums = _whole(q, k, v, False)
    expected.backward(dout.double())
    dq, into = torch.zeros_like(q), []
    for at in (slice(0, 3), slice(3, 8)):
        parts = [torch.empty_like(each) for each in (q, k[:, at], v[:, at])]
        interface._flash_attn_backward(
            dout, q, k[:, at], v[:, at], expected.float(), sums.float(), *parts, 0.0, None, False
        )
        dq += parts[0]
        into.append(parts[1])
    torch.testing.assert_close(dq.double(), leaves[0].grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat(into, 1).double(), leaves[1].grad, rtol=1e-5, atol=1e-5)


def test_sequences_of_several_lengths_are_each_by_themselves(interface):
    q, k, v, dout = (each[0] for each in _drawn(2, of_keys=4))
    ends = torch.tensor([0, 3, 8], dtype=torch.int32)
    out, lse, _, _ = interface._flash_attn_varlen_forward(q, k, v, ends, ends, 5, 5, 0.0, None, True)
    into = [torch.empty_like(each) for each in (q, k, v)]
    interface._flash_attn_varlen_backward(dout, q, k, v, out, lse, *into, ends, ends, 5, 5, 0.0, None, True)
    for at in (slice(0, 3), slice(3, 8)):
        leaves, expected, sums = _whole(q[None, at], k[None, at], v[None, at], True)
        expected.backward(dout[None, at].double())
        torch.testing.assert_close(out[at].double(), expected[0].detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse[:, at].double(), sums[0].detach(), rtol=1e-5, atol=1e-5)
        for got, leaf in zip(into, leaves, strict=True):
            torch.testing.assert_close(got[at].double(), leaf.grad[0], rtol=1e-5, atol=1e-5)


def test_dropout_is_refused_in_words(interface):
    q, k, v, _ = _drawn(3)
    with pytest.raises(NotImplementedError, match="dropout_p=0"):
        interface._flash_attn_forward(q, k, v, 0.1, None, False)
