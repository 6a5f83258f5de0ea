"""Routers of experts in ``transformer_engine_torch``, against torch's autograd of the papers' formulas."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.compiled_operators.transformer_engine import extension, names

tex = SimpleNamespace(**{name: value for name, value in extension.NAMES.items() if name != "__getattr__"})
BYTES, BITS = (int(each) for each in names.NVTERoutingMapFormat)
SCORES = ["softmax", "sigmoid", "sqrtsoftplus"]
few = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    extension.operators.define("transformer_engine of a test")


def score_of(logits, name):
    return {
        "softmax": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        "sigmoid": lambda x: 1 / (1 + (-x).exp()),
        "sqrtsoftplus": lambda x: (1 + x.exp()).log() ** 0.5,
    }[name](logits.float())


def routed(logits, bias, topk, pre, groups, group_topk, scale, score):
    """Token by token, as a list of experts by rank; differentiable."""
    rows, chosen = [], torch.zeros(logits.shape, dtype=torch.bool)
    for at, row in enumerate(logits):
        scores = row.float() if score == "softmax" and not pre else score_of(row, score)
        rank = (scores if bias is None else scores + bias).tolist()
        experts = list(range(len(rank)))
        if group_topk:
            width = len(rank) // groups
            parts = [experts[start : start + width] for start in range(0, len(rank), width)]

            def load(part, rank=rank):
                return sum(sorted((rank[each] for each in part), reverse=True)[: topk // group_topk])

            experts = [each for part in sorted(parts, key=load, reverse=True)[:group_topk] for each in part]
        best = sorted(experts, key=rank.__getitem__, reverse=True)[:topk]
        shares = scores[best]
        if score == "softmax" and not pre:
            shares = score_of(shares, "softmax")
        elif score != "softmax" and topk > 1:
            shares = shares / shares.sum()
        rows.append(torch.zeros(len(row)).index_add(0, torch.tensor(best), shares * scale))
        chosen[at, best] = True
    return torch.stack(rows), chosen


def unpacked(choice, experts, form):
    if form == BITS:
        return torch.tensor([[bool(row[at // 8] >> at % 8 & 1) for at in range(experts)] for row in choice.tolist()])
    return choice


@few
@given(
    tokens=st.integers(1, 5), topk=st.sampled_from([1, 2, 4]), grouped=st.booleans(), score=st.sampled_from(SCORES),
    pre=st.booleans(), biased=st.booleans(), scale=st.sampled_from([None, 2.5]), form=st.sampled_from([BYTES, BITS, None]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]), seed=st.integers(0, 99),
)  # fmt: skip
def test_routing_and_its_gradient(tokens, topk, grouped, score, pre, biased, scale, form, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    experts, groups = 12, (3, 2) if grouped and topk > 1 else (None, None)
    order = torch.stack([torch.randperm(experts, generator=generator) for _ in range(tokens)])
    logits = (order / 4 - 1).to(dtype)  # no two are alike, in any format
    bias = torch.randn(experts, generator=generator) if biased and score != "softmax" else None
    grad = torch.randn(tokens, experts, generator=generator).to(dtype)
    indices = torch.empty(tokens, topk, dtype=torch.int32) if form is None else None
    how = topk, pre, *groups, scale, score
    probs, choice, kept = tex.fused_topk_with_score_function_fwd(logits, *how, bias, form or 0, indices)
    dlogits = torch.empty_like(logits)
    tex.fused_topk_with_score_function_bwd(
        choice if indices is None else indices, kept, grad, dlogits, topk, pre, scale, score, form is None, form or 0
    )
    leaf = logits.clone().requires_grad_()
    expected, chosen = routed(leaf, bias, topk, pre, groups[0], groups[1], scale or 1.0, score)
    expected.backward(grad.float())
    rounding = 1e-5 if dtype == torch.float32 else 1e-2
    assert probs.dtype == dlogits.dtype == dtype
    assert kept.dtype == torch.float32
    torch.testing.assert_close(probs.float(), expected.detach(), rtol=rounding, atol=rounding)
    torch.testing.assert_close(dlogits.float(), leaf.grad.float(), rtol=rounding, atol=2 * rounding)
    if form is None:
        assert choice is None
        assert [sorted(row) for row in indices.tolist()] == [row.nonzero()[:, 0].tolist() for row in chosen]
    else:
        assert torch.equal(unpacked(choice, experts, form), chosen)


@few
@given(
    tokens=st.integers(1, 5),
    score=st.sampled_from(SCORES),
    form=st.sampled_from([BYTES, BITS]),
    seed=st.integers(0, 99),
)
def test_scores_for_a_loss(tokens, score, form, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.stack([torch.randperm(10, generator=generator) for _ in range(tokens)]) / 4 - 1
    grad = torch.randn(tokens, 10, generator=generator)
    scores, choice, kept = tex.fused_score_for_moe_aux_loss_fwd(logits, 3, score, form)
    dlogits = torch.empty_like(logits)
    tex.fused_score_for_moe_aux_loss_bwd(kept, grad, dlogits, 3, score)
    leaf = logits.clone().requires_grad_()
    expected = score_of(leaf, score)
    expected = expected / expected.sum(-1, keepdim=True)
    expected.backward(grad)
    torch.testing.assert_close(scores, expected.detach())
    torch.testing.assert_close(dlogits, leaf.grad, rtol=1e-4, atol=1e-5)
    assert torch.equal(unpacked(choice, 10, form), logits >= logits.sort(-1, descending=True).values[:, 2:3])


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_loss_that_balances_loads(on_gpu):
    generator = torch.Generator().manual_seed(1)
    probs, loads = torch.rand(6, 4, generator=generator), torch.tensor([5, 1, 4, 2])
    count, how = 12, {"num_experts": 4, "num_rows": 6, "num_cols": 4, "topk": 2, "coeff": 0.01}
    function = tex.fused_moe_aux_loss_fwd_graph_safe if on_gpu else tex.fused_moe_aux_loss_fwd
    loss, factor = function(
        probs=probs, tokens_per_expert=loads, total_num_tokens=torch.tensor(count) if on_gpu else count, **how
    )
    leaf = probs.clone().requires_grad_()
    shares, used = (
        leaf.sum(0) / count,
        loads / (2 * count),
    )  # of the switch transformer: experts * sum of their products
    (0.01 * 4 * (shares * used).sum() * 3).backward()
    torch.testing.assert_close(loss, 0.01 * 4 * (shares * used).sum().detach())
    dprobs = tex.fused_moe_aux_loss_bwd(factor, loads, 6, 4, torch.tensor(3.0))
    torch.testing.assert_close(dprobs, leaf.grad)
