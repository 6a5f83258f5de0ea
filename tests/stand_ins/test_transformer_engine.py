"""The functions of ``transformer_engine_torch``, against what torch's autograd makes of the same formulas."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from zlib import crc32

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from kernbench.compiled_operators.apex import amp_c, weight_gradients
from kernbench.compiled_operators.transformer_engine import activations, extension, formats, names
from kernbench.compiled_operators.transformer_engine.attention import formats_of
from kernbench.compiled_operators.transformer_engine.quantizing import stored

tex = SimpleNamespace(**{name: value for name, value in extension.NAMES.items() if name != "__getattr__"})
HALVES = [torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}
few = settings(max_examples=12, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    extension.operators.define("transformer_engine of a test")


def close(found, expected, dtype, factor=1.0, inside=0.0):
    """Within a rounding of the result's format, of its largest magnitude; ``inside``: of what has been rounded on the way."""
    magnitude = max(float(expected.detach().abs().max()), 1e-3) if expected.numel() else 0
    allowed = ROUNDING[dtype] * (factor * magnitude + inside)
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=allowed)


def seeded(*key):
    return torch.Generator().manual_seed(crc32(repr(key).encode()))


def draw(shape, dtype, generator):
    return torch.randn(shape, generator=generator).to(dtype)


sizes = st.integers(1, 9)


# -- products -------------------------------------------------------------------------------------------------------------


def multiply(
    a, b, layout, *, out=None, dtype=None, bias=None, gelu=False, gelu_in=None, grad=False, accumulate=False, alpha=1.0
):
    dtype = names.DType({torch.float32: 4, torch.float16: 5, torch.bfloat16: 6}[dtype]) if dtype else None
    return tex.generic_gemm(
        a, layout[0] == "T", b, layout[1] == "T", out, None, dtype, bias, None, gelu, gelu_in, grad, torch.empty(1), 1,
        accumulate, False, alpha=alpha,
    )  # fmt: skip


@few
@given(
    tokens=sizes,
    wide=sizes,
    high=sizes,
    dtype=st.sampled_from([torch.float32, *HALVES]),
    gelu=st.booleans(),
    bias=st.booleans(),
)
def test_the_three_products_of_a_layer(tokens, wide, high, dtype, gelu, bias):
    generator = seeded(tokens, wide, high)
    x, weight, grad = (draw(each, dtype, generator) for each in ((tokens, 2, wide), (high, wide), (tokens, 2, high)))
    shift = draw((high,), dtype, generator) if bias else None
    out, _, before, _ = multiply(weight, x, "TN", bias=shift, gelu=gelu)
    leaf, learnt = x.float().requires_grad_(), weight.float().requires_grad_()
    whole = F.linear(leaf, learnt, None if shift is None else shift.float())
    expected = F.gelu(whole, approximate="tanh") if gelu else whole
    close(out, expected.detach(), dtype)
    if gelu:
        close(before, whole.detach(), dtype)
        kept = before.float().requires_grad_()
        (slope,) = torch.autograd.grad(F.gelu(kept, approximate="tanh").sum(), kept)
        again, *_ = multiply(weight.t().contiguous(), x, "NN", gelu=True, gelu_in=before, grad=True)
        close(again, x.float() @ weight.float().t() * slope, dtype)
    dx, *_ = multiply(weight, grad, "NN")
    close(dx, grad.float() @ weight.float(), dtype)
    held = torch.randn(high, wide, generator=generator)
    kept = held.clone()
    dw, db, *_ = multiply(x, grad, "NT", out=held, bias=shift, grad=True, accumulate=True)
    assert dw is held
    by_hand = grad.float().reshape(-1, high).t() @ x.float().reshape(-1, wide)
    torch.testing.assert_close(held, kept + by_hand, rtol=1e-4, atol=1e-4)
    if bias:
        close(db, grad.float().sum((0, 1)), torch.float32, 10)


@few
@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=4), single=st.booleans(), bias=st.booleans())
def test_products_of_groups(rows, single, bias):
    generator, dtype = seeded(tuple(rows)), torch.bfloat16
    x = [draw((each, 6), dtype, generator) for each in rows]
    weights = [draw((4, 6), dtype, generator) for _ in rows]
    shifts = [draw((4,), dtype, generator) for _ in rows] if bias else [torch.empty(0)] * len(rows)
    out = (
        [torch.empty(sum(rows), 4, dtype=dtype)]
        if single
        else [torch.full((each, 4), math.nan, dtype=dtype) for each in rows]
    )
    tex.te_general_grouped_gemm(
        weights, True, x, False, out, names.DType.kBFloat16, rows, shifts, None, single, [torch.empty(0)] * len(rows), False,
        [torch.empty(1)], 1, False, False, 1,
    )  # fmt: skip
    found = out[0].split(rows) if single else out
    for each, given_rows, weight, shift in zip(found, x, weights, shifts, strict=True):
        close(each, given_rows.float() @ weight.float().t() + (shift.float() if bias else 0), dtype)
    gradients = [torch.ones(4, 6) for _ in rows]
    given_out = [draw((each, 4), dtype, generator) for each in rows]
    tex.te_general_grouped_gemm(
        x, False, given_out, True, gradients, names.DType.kFloat32, rows, shifts, None, False, [torch.empty(0)] * len(rows),
        True, [torch.empty(1)], 1, True, False, 1,
    )  # fmt: skip
    for each, given_rows, grad in zip(gradients, x, given_out, strict=True):
        torch.testing.assert_close(each, 1 + grad.float().t() @ given_rows.float(), rtol=1e-4, atol=1e-4)


def test_gradients_of_weights_as_apex_adds_them():
    x, grad, held = torch.randn(3, 2, 5).bfloat16(), torch.randn(3, 2, 4).bfloat16(), torch.ones(4, 5)
    weight_gradients.NAMES["wgrad_gemm_accum_fp32"](x, grad, held)
    torch.testing.assert_close(
        held, 1 + grad.float().reshape(-1, 4).t() @ x.float().reshape(-1, 5), rtol=1e-4, atol=1e-4
    )


# -- norms, activations, softmax ------------------------------------------------------------------------------------------


@few
@given(
    rows=sizes,
    wide=st.integers(8, 33),
    dtype=st.sampled_from([torch.float32, *HALVES]),
    centered=st.booleans(),
    rms=st.booleans(),
    bias=st.booleans(),
)
def test_norms(rows, wide, dtype, centered, rms, bias):
    generator = seeded(rows, wide, centered)
    x, gamma, beta, grad = (
        draw(each, dtype, generator) for each in ((rows, 2, wide), (wide,), (wide,), (rows, 2, wide))
    )
    leaf, weight, shift = (each.float().requires_grad_() for each in (x, gamma, beta))
    scaled = weight + 1 if centered else weight
    kind = names.DType({torch.float32: 4, torch.float16: 5, torch.bfloat16: 6}[dtype])
    if rms:
        expected = F.rms_norm(leaf, (wide,), scaled, 1e-5)
        out, _, scale = tex.rmsnorm_fwd(x, gamma, 1e-5, None, None, kind, 0, centered)
        found = tex.rmsnorm_bwd(grad, x, scale, gamma, 0, centered)
    else:
        expected = F.layer_norm(leaf, (wide,), scaled, shift if bias else None, 1e-5)
        out, mean, scale = tex.layernorm_fwd(x, gamma, beta if bias else None, 1e-5, None, None, kind, 0, centered)
        found = tex.layernorm_bwd(grad, x, mean, scale, gamma, 0, centered)
    close(out, expected.detach(), dtype)
    expected.backward(grad.float())
    for each, of in zip(found, (leaf, weight, shift), strict=False):
        if of.grad is not None:
            close(each, of.grad, dtype, 4)
    if rms:
        added = tex.rmsnorm_bwd_add(grad, x, x, scale, gamma, 0, centered)[0]
        close(added, leaf.grad + x.float(), dtype, 4)


SHAPES = {
    "glu": torch.sigmoid, "gelu": lambda x: F.gelu(x, approximate="tanh"), "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu, "srelu": lambda x: F.relu(x) ** 2, "silu": F.silu,
}  # fmt: skip
GATED = {"glu": "glu", "geglu": "gelu", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu", "swiglu": "silu"}


@pytest.mark.parametrize("name", [*activations.PLAIN, *activations.GATED, "clamped_swiglu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations(name, dtype):
    gated = name not in activations.PLAIN
    x = (3 * torch.randn(5, 8, generator=seeded(name))).to(dtype)
    grad = torch.randn(5, 4 if gated else 8, generator=seeded(name, 1)).to(dtype)
    leaf = x.float().requires_grad_()
    if name == "clamped_swiglu":
        first, second = leaf.chunk(2, -1)
        first, second = first.clamp(max=2.0), second.clamp(-2.0, 2.0)
        expected = first * torch.sigmoid(1.5 * first) * (second + 1)
        out = tex.clamped_swiglu(x, None, 2.0, 1.5)
        found = tex.clamped_dswiglu(grad, x, None, 2.0, 1.5)
    else:
        first, second = leaf.chunk(2, -1) if gated else (leaf, 1.0)
        expected = SHAPES[GATED.get(name, name)](first) * second
        out, found = getattr(tex, name)(x, None), getattr(tex, f"{'d'}{name}")(grad, x, None)
    close(out, expected.detach(), dtype)
    expected.backward(grad.float())
    close(found, leaf.grad, dtype)
    if not gated:
        dbias, dx = getattr(tex, f"dbias_d{name}")(grad, x, None)
        close(dbias, leaf.grad.sum(0), dtype)
        close(dx, leaf.grad, dtype)


def test_activations_with_scales():
    x, scales, grad = torch.randn(4, 8), torch.rand(4), torch.randn(4, 4)
    leaf, factor = x.clone().requires_grad_(), scales.clone().requires_grad_()
    first, second = leaf.chunk(2, -1)
    expected = F.silu(first) * second * factor[:, None]
    torch.testing.assert_close(tex.scaled_swiglu(x, scales, None, 0), expected.detach())
    expected.backward(grad)
    dx, dscales = tex.scaled_dswiglu(grad, x, scales, None, 0, True)
    torch.testing.assert_close(dx, leaf.grad)
    torch.testing.assert_close(dscales, factor.grad)


@pytest.mark.parametrize("how", ["plain", "masked", "causal", "aligned"])
def test_softmax(how):
    x = torch.randn(2, 3, 4, 4 if how == "causal" else 6)
    mask = torch.zeros(2, 1, *x.shape[2:], dtype=torch.bool)
    if how == "masked":
        mask = torch.rand(mask.shape, generator=seeded(1)) < 0.4
        mask[..., 0] = False
    elif how != "plain":
        mask[:] = torch.ones(x.shape[2:], dtype=torch.bool).triu(x.shape[3] - x.shape[2] + 1)
    leaf = x.clone().requires_grad_()
    expected = torch.softmax((0.5 * leaf).masked_fill(mask, -math.inf), -1)
    name = {
        "plain": "scaled_softmax", "masked": "scaled_masked_softmax", "causal": "scaled_upper_triang_masked_softmax",
        "aligned": "scaled_aligned_causal_masked_softmax",
    }[how]  # fmt: skip
    out = getattr(tex, f"{name}_forward")(x, *([mask] if how == "masked" else []), 0.5)
    torch.testing.assert_close(out, expected.detach())
    grad = torch.randn(x.shape)
    expected.backward(grad)
    given = grad.clone()
    torch.testing.assert_close(getattr(tex, f"{name}_backward")(given, out, 0.5), leaf.grad)
    assert torch.equal(given, grad)  # it is an operator of torch's that says so


# -- attention ------------------------------------------------------------------------------------------------------------

MASKS = {
    "no_mask": 0,
    "padding": 1,
    "causal": 2,
    "padding_causal": 3,
    "causal_bottom_right": 4,
    "padding_causal_bottom_right": 5,
}
LAYOUTS = {"sbhd": "NVTE_SBHD_SBHD_SBHD", "bshd": "NVTE_BSHD_BSHD_BSHD", "thd": "NVTE_THD_THD_THD"}


def by_definition(q, k, v, scale, seen, bias, extra):
    """One sequence, ``[heads, tokens, width]`` in float32."""
    scores = q @ k.transpose(1, 2) * scale
    scores = (scores if bias is None else scores + bias).masked_fill(~seen, -math.inf)
    whole = scores if extra is None else torch.cat([scores, extra.view(-1, 1, 1).expand(-1, q.shape[1], 1)], -1)
    shares = torch.softmax(whole, -1).nan_to_num(0.0)[..., : k.shape[1]]
    return shares @ v


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(list(LAYOUTS)), mask=st.sampled_from(list(MASKS)), groups=st.sampled_from([1, 2]),
    narrow=st.booleans(), window=st.sampled_from([(-1, -1), (2, 0), (1, 1)]), softmax=st.integers(0, 2),
    with_bias=st.booleans(), lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 7)), min_size=1, max_size=3),
    dtype=st.sampled_from(HALVES),
)  # fmt: skip
def test_attention_and_its_gradients(form, mask, groups, narrow, window, softmax, with_bias, lengths, dtype):
    generator = seeded(form, mask, tuple(lengths))
    padded, packed = "padding" in mask, form == "thd"
    if packed and not padded:
        mask = {"no_mask": "padding", "causal": "padding_causal"}.get(mask, "padding_causal_bottom_right")
    if not (packed or padded):
        lengths = [lengths[0]] * len(lengths)
    with_bias = with_bias and not packed
    heads, width, wide = 2 * groups, 8, 8 if narrow else 16
    most_q, most_k = (max(each[at] for each in lengths) for at in (0, 1))
    batch = len(lengths)

    def room(count, most, size, side):
        if packed:
            return draw((sum(each[side] for each in lengths), count, size), dtype, generator)
        return draw((most, batch, count, size) if form == "sbhd" else (batch, most, count, size), dtype, generator)

    q, k, v = room(heads, most_q, width, 0), room(2, most_k, width, 1), room(2, most_k, wide, 1)
    ends = [torch.tensor([0, *(each[at] for each in lengths)], dtype=torch.int32).cumsum(0).int() for at in (0, 1)]
    bias = draw((1, heads, most_q, most_k), dtype, generator) if with_bias else None
    offset = torch.randn(1, heads, 1, 1, generator=generator) if softmax else None
    scale, left, right = 0.3, *window

    def one(tensor, at, side):
        length = lengths[at][side]
        if packed:
            begin = int(ends[side][at])
            return tensor[begin : begin + length].transpose(0, 1)
        return (tensor[:length, at] if form == "sbhd" else tensor[at, :length]).transpose(0, 1)

    leaves = [each.float().requires_grad_() for each in (q, k, v)]
    learnt = None if bias is None else bias.float().requires_grad_()
    extra = (
        None if offset is None else (offset.clone().requires_grad_() if softmax == 2 else torch.zeros(1, heads, 1, 1))
    )
    results = []
    for at, (queries, keys) in enumerate(lengths):
        shift = keys - queries if "bottom_right" in mask else 0
        distance = torch.arange(keys) - torch.arange(queries)[:, None] - shift
        limit = 0 if "causal" in mask else right
        seen = torch.ones(queries, keys, dtype=torch.bool)
        seen = seen if limit < 0 else seen & (distance <= limit)
        seen = seen if left < 0 else seen & (distance >= -left)
        parts = [one(leaves[0], at, 0), *(one(each, at, 1).repeat_interleave(groups, 0) for each in leaves[1:])]
        here = None if learnt is None else learnt[0, :, :queries, :keys]
        results.append(by_definition(*parts, scale, seen, here, extra))
    layout, of = getattr(names.NVTE_QKV_Layout, LAYOUTS[form]), getattr(names.NVTE_QKV_Format, f"NVTE_{form.upper()}")
    kinds = (
        names.NVTE_Bias_Type(2 if with_bias else 0),
        names.NVTE_Mask_Type(MASKS[mask]),
        names.NVTE_Softmax_Type(softmax),
    )
    at_the_end = "bottom_right" in mask
    out, *saved = tex.fused_attn_fwd(
        most_q, most_k, True, scale, 0.0, True, layout, of, None, *kinds, window, at_the_end, *ends, q, k, v, dtype, None, None,
        None, None, None, None, bias, offset, None, 0, False, False,
    )  # fmt: skip
    for at, result in enumerate(results):
        close(one(out, at, 0), result.detach(), dtype)
    grad = draw(out.shape, dtype, generator)
    torch.autograd.backward(results, [one(grad, at, 0).float() for at in range(batch)])
    found = tex.fused_attn_bwd(
        most_q, most_k, scale, 0.0, True, layout, of, of, layout, None, None, *kinds, window, at_the_end, True, *ends, q, k, v,
        out, grad, dtype, saved, None, None, None, None, None, False,
    )  # fmt: skip
    # The scores' gradients are what is left of dO (V - O), where O has been rounded: all may cancel but that rounding.
    products = (out.float() * grad.float()).abs()
    scores = float(products.sum(-1).max())
    inside = [scores * scale * float(each.detach().abs().max()) for each in (k, q)]
    for each, leaf, rounded in zip(found, leaves, [*inside, 0.0], strict=False):
        close(each, leaf.grad, dtype, 3, rounded)
    if learnt is not None:
        close(found[3], learnt.grad, dtype, 3, scores)
    if softmax == 2:
        close(found[4], extra.grad, torch.bfloat16, 3, float(products.sum()))  # of all queries


def test_dropout_of_both_passes_is_the_same():
    q, k = torch.randn(6, 1, 1, 8).bfloat16(), torch.randn(6, 1, 1, 8).bfloat16()
    v = torch.eye(6, 8).view(6, 1, 1, 8).bfloat16()  # the result is the shares that are kept
    ends = torch.tensor([0, 6], dtype=torch.int32)
    layout, of = names.NVTE_QKV_Layout.NVTE_SBHD_SBHD_SBHD, names.NVTE_QKV_Format.NVTE_SBHD
    kinds = names.NVTE_Bias_Type(0), names.NVTE_Mask_Type(0), names.NVTE_Softmax_Type(0)
    torch.manual_seed(3)
    out, *saved = tex.fused_attn_fwd(
        6, 6, True, 0.3, 0.4, True, layout, of, None, *kinds, (-1, -1), False, ends, ends, q, k, v, torch.bfloat16, None, None,
        None, None, None, None, None, None, None, 0, False, False,
    )  # fmt: skip
    shares = torch.softmax(q[:, 0, 0].float() @ k[:, 0, 0].float().t() * 0.3, -1)
    kept = out[:, 0, 0, :6].float() / shares
    assert set(torch.unique((kept * 0.6).round()).tolist()) == {0.0, 1.0}
    grad = torch.randn(6, 1, 1, 8).bfloat16()
    _, _, dv, *_ = tex.fused_attn_bwd(
        6, 6, 0.3, 0.4, True, layout, of, of, layout, None, None, *kinds, (-1, -1), False, True, ends, ends, q, k, v, out, grad,
        torch.bfloat16, saved, None, None, None, None, None, False,
    )  # fmt: skip
    close(dv[:, 0, 0], (shares * (kept * 0.6).round() / 0.6).t() @ grad[:, 0, 0].float(), torch.bfloat16, 3)


@few
@given(
    form=st.sampled_from(["sbhd", "bshd", "thd"]), interleaved=st.booleans(), cp=st.sampled_from([(1, 0), (2, 0), (2, 1)]),
    rest=st.sampled_from([0, 4]),
)  # fmt: skip
def test_rope_and_its_gradient(form, interleaved, cp, rest):
    size, rank = cp
    tokens, batch, width = 8 * size, 2, 8
    generator = seeded(form, interleaved, cp, rest)
    freqs = torch.randn(tokens, 1, 1, width, generator=generator)
    chunks = torch.arange(tokens).chunk(2 * size)
    places = torch.cat([chunks[rank], chunks[2 * size - 1 - rank]]) if size > 1 else torch.arange(tokens)
    shape = {"sbhd": (8, batch, 3, width + rest), "bshd": (batch, 8, 3, width + rest), "thd": (8, 3, width + rest)}[
        form
    ]
    x, y = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    ends = torch.tensor([0, tokens], dtype=torch.int32) if form == "thd" else None
    angle = freqs[places, 0, 0]
    angle = {"sbhd": angle[:, None, None], "bshd": angle[None, :, None], "thd": angle[:, None]}[form]
    part = x[..., :width]
    if interleaved:
        rotated = torch.stack((-part[..., 1::2], part[..., ::2]), -1).flatten(-2)
    else:
        rotated = torch.cat((-part[..., width // 2 :], part[..., : width // 2]), -1)
    expected = torch.cat((part * angle.cos() + rotated * angle.sin(), x[..., width:]), -1)
    of = getattr(names.NVTE_QKV_Format, f"NVTE_{form.upper()}")
    found = tex.fused_rope_forward(x, freqs, None, of, interleaved, ends, size, rank)
    torch.testing.assert_close(found, expected)
    back = tex.fused_rope_backward(y, freqs, None, of, interleaved, ends, size, rank)
    torch.testing.assert_close(
        (found * y).sum(), (x * back).sum(), rtol=1e-4, atol=1e-4
    )  # each is the other's transpose


def test_rope_of_queries_and_keys_together():
    qkv, freqs = torch.randn(4, 2, 3, 2 * 8 + 8 + 8), torch.randn(4, 1, 1, 4).repeat(1, 1, 1, 2)
    of = names.NVTE_QKV_Format.NVTE_SBHD
    q, k, v = tex.fused_qkv_rope_forward(qkv, freqs, freqs, None, [16, 8, 8], of, False, 1, 0)
    apart = [each.contiguous() for each in qkv.split([16, 8, 8], -1)]
    torch.testing.assert_close(
        q, tex.fused_rope_forward(apart[0].reshape(4, 2, 6, 8), freqs, None, of, False, None, 1, 0)
    )
    torch.testing.assert_close(k, tex.fused_rope_forward(apart[1], freqs, None, of, False, None, 1, 0))
    torch.testing.assert_close(v, apart[2])
    back = tex.fused_qkv_rope_backward(q, k, v, freqs, freqs, [16, 8, 8], of, False, 1, 0)
    torch.testing.assert_close(back, qkv)  # a rotation's transpose is its inverse


# -- packed sequences over ranks ------------------------------------------------------------------------------------------


def test_packed_sequences_over_ranks():
    ends = torch.tensor([0, 4, 12], dtype=torch.int32)
    x = torch.arange(12.0)[:, None, None].expand(12, 2, 3).contiguous()
    assert tex.thd_read_half_tensor(x, ends, 1)[:, 0, 0].tolist() == [2, 3, 8, 9, 10, 11]
    assert tex.thd_get_partitioned_indices(ends, 12, 2, 1).tolist() == [1, 2, 6, 7, 8, 9]
    order = tex.thd_sequence_order_to_cp_rank_order(x, ends, 2, 12)
    assert order[:, 0, 0].tolist() == [0, 3, 4, 5, 10, 11, 1, 2, 6, 7, 8, 9]
    torch.testing.assert_close(tex.thd_cp_rank_order_to_sequence_order(order, ends, 2, 12), x)
    lse, step = torch.randn(2, 12), torch.randn(2, 6)
    expected, old = lse.clone(), lse.clone()
    expected[:, [2, 3, 8, 9, 10, 11]] = torch.logaddexp(expected[:, [2, 3, 8, 9, 10, 11]], step)
    torch.testing.assert_close(tex.thd_read_second_half_lse(lse, ends, True, 6), lse[:, [2, 3, 8, 9, 10, 11]])
    tex.thd_second_half_lse_correction(lse, step, ends, True)
    torch.testing.assert_close(lse, expected)
    out, part, rows = torch.randn(12, 2, 3), torch.randn(6, 2, 3), [2, 3, 8, 9, 10, 11]
    before = out.clone()
    tex.thd_out_correction(out, part, old, lse, step, ends, True, True)
    first, second = (torch.exp(each - lse[:, rows]).t()[..., None] for each in (old[:, rows], step))
    torch.testing.assert_close(first + second, torch.ones_like(first))
    torch.testing.assert_close(out[rows], before[rows] * first + part * second)
    torch.testing.assert_close(out[[0, 1, 4, 5, 6, 7]], before[[0, 1, 4, 5, 6, 7]])
    grad = torch.ones(12, 2, 3)
    tex.thd_grad_correction(grad, part, ends, "none", "add")
    torch.testing.assert_close(grad[[2, 3, 8, 9, 10, 11]], 1 + part)
    assert float(grad[[0, 1, 4, 5, 6, 7]].sum()) == 36
    rows = tex.convert_thd_to_bshd(x, ends, 2, 8)
    assert rows[0, :, 0, 0].tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    torch.testing.assert_close(tex.convert_bshd_to_thd(rows, ends, 12), x)


# -- experts --------------------------------------------------------------------------------------------------------------


@few
@given(tokens=st.integers(1, 7), count=st.integers(1, 3), dropped=st.integers(0, 3))
def test_tokens_to_experts_and_back(tokens, count, dropped):
    generator = seeded(tokens, count, dropped)
    x = torch.randn(tokens, 5, generator=generator)
    experts = torch.stack([torch.randperm(4, generator=generator)[:count] for _ in range(tokens)]).int()
    kept = max(tokens * count - dropped, 1)
    rows, places, _ = tex.moe_permute_fwd(x, None, experts, kept, [], 64)
    order = sorted(range(tokens * count), key=lambda at: (int(experts.view(-1)[at]), at))[:kept]
    torch.testing.assert_close(rows, x[[at // count for at in order]])
    shares = torch.rand(tokens, count, generator=generator)
    leaf, learnt = rows.clone().requires_grad_(), shares.clone().requires_grad_()
    expected = torch.zeros(tokens, 5)
    for row, at in enumerate(order):
        expected = expected.index_add(
            0, torch.tensor([at // count]), (leaf[row] * learnt[at // count, at % count])[None]
        )
    torch.testing.assert_close(tex.moe_unpermute_fwd(rows, None, places, shares, tokens, count), expected.detach())
    grad = torch.randn(tokens, 5, generator=generator)
    expected.backward(grad)
    dx, dshares = tex.moe_unpermute_bwd(grad, rows, None, places, shares)
    torch.testing.assert_close(dx, leaf.grad)
    torch.testing.assert_close(dshares, learnt.grad)


# -- optimizers and lists -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("master", [False, True])
def test_adam(mode, master):
    dtype = torch.bfloat16 if master else torch.float32
    starts = [torch.randn(3, 4, generator=seeded(1)), torch.randn(5, generator=seeded(2))]
    mine = [each.to(dtype) for each in starts]
    kept = [each.float() for each in mine]
    theirs = [each.clone().requires_grad_() for each in kept]
    how = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = (torch.optim.AdamW if mode else torch.optim.Adam)(theirs, **how)
    moments = [[torch.zeros_like(each, dtype=torch.float32) for each in mine] for _ in range(2)]
    for step in range(1, 4):
        grads = [torch.randn(each.shape, generator=seeded(step, each.dim())) for each in mine]
        for each, grad in zip(theirs, grads, strict=True):
            each.grad = grad
        optimizer.step()
        lists = [grads, mine, *moments, *([kept] if master else [])]
        tex.multi_tensor_adam(1, torch.zeros(1), lists, 0.01, 0.9, 0.95, 1e-8, step, mode, 1, 0.1)
    for each, expected, whole in zip(mine, theirs, kept, strict=True):
        torch.testing.assert_close(whole if master else each, expected.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(each, expected.detach().to(dtype), rtol=1e-2, atol=1e-2)


def test_adam_that_is_skipped_and_one_whose_step_is_on_the_device():
    p, g, m, v = torch.ones(3), torch.ones(3), torch.zeros(3), torch.zeros(3)
    tex.multi_tensor_adam(1, torch.ones(1), [[g], [p], [m], [v]], 0.1, 0.9, 0.95, 1e-8, 1, 1, 1, 0.0)
    assert p.tolist() == [1.0, 1.0, 1.0]
    tex.multi_tensor_adam_capturable(
        1,
        torch.zeros(1),
        [[2 * g], [p], [m], [v]],
        torch.tensor(0.1),
        0.9,
        0.95,
        0.0,
        torch.tensor(1),
        1,
        1,
        0.0,
        torch.tensor(0.5),
    )
    torch.testing.assert_close(p, torch.full((3,), 0.9))
    torch.testing.assert_close(m, torch.full((3,), 0.1))


def test_masters_of_which_remainders_are_kept():
    whole = torch.randn(64, generator=seeded(9))
    high = whole.bfloat16()  # rounded to nearest; the master is the parameter and its lower bits
    low = (whole.view(torch.int32) & 0xFFFF).to(torch.int32)
    low = torch.where(low >= 0x8000, low - 0x10000, low).to(torch.int16)
    ties = whole.view(torch.int32) & 0xFFFF == 0x8000
    assert not bool(ties.any())
    grads, moments = torch.randn(64, generator=seeded(10)), [torch.zeros(64), torch.zeros(64)]
    tex.multi_tensor_adam_param_remainder(
        1, torch.zeros(1), [[grads], [high], [moments[0]], [moments[1]], [low]], 0.01, 0.9, 0.95, 1e-8, 1, 1, 1, 0.1
    )
    expected = whole.clone().requires_grad_()
    expected.grad = grads
    torch.optim.AdamW([expected], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1).step()
    upper = high.view(torch.int16).int() - (low < 0).int()
    rebuilt = ((upper << 16) | (low.int() & 0xFFFF)).view(torch.float32)
    torch.testing.assert_close(rebuilt, expected.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(high, expected.detach().bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov):
    mine, momentum = torch.ones(4), torch.zeros(4)
    theirs = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    for step in range(3):
        grad = torch.randn(4, generator=seeded(step))
        theirs.grad = grad
        optimizer.step()
        tex.multi_tensor_sgd(
            1, torch.zeros(1), [[grad], [mine], [momentum]], 0.01, 0.9, 0.0, 0.1, nesterov, step == 0, False, 1.0
        )
    torch.testing.assert_close(mine, theirs.detach())


def test_norms_and_scales_of_lists():
    x, flag = [torch.randn(3), torch.randn(2, 2).bfloat16()], torch.zeros(1, dtype=torch.int)
    flat = torch.cat([each.float().flatten() for each in x])
    norm, each = amp_c.NAMES["multi_tensor_l2norm"](1, flag, [x], True)
    torch.testing.assert_close(norm, flat.norm()[None])
    torch.testing.assert_close(each, torch.stack([part.float().norm() for part in x]))
    half, none = tex.multi_tensor_unscale_l2norm(1, flag, [x], torch.tensor(0.5))
    torch.testing.assert_close(half, flat.norm()[None] / 2)
    assert none.numel() == 0
    out = [torch.empty(3), torch.empty(2, 2)]
    tex.multi_tensor_scale(1, flag, [x, out], 3.0)
    torch.testing.assert_close(out[0], 3 * x[0])
    assert int(flag) == 0
    tex.multi_tensor_scale(1, flag, [[torch.tensor([math.inf])], [torch.empty(1)]], 3.0)
    assert int(flag) == 1


# -- numbers of eight bits ------------------------------------------------------------------------------------------------


@few
@given(
    kind=st.sampled_from(["block1", "block2", "mx"]),
    rows=st.integers(1, 5),
    wide=st.integers(1, 9),
    by_columns=st.booleans(),
    powers=st.booleans(),
)
def test_blocks_share_a_scale_of_which_the_largest_element_is_the_format_s(kind, rows, wide, by_columns, powers):
    of = formats.KINDS[kind]
    x = torch.randn(32 * rows, 32 * wide, generator=seeded(kind, rows, wide)) * torch.logspace(-3, 3, 32 * wide)
    data, scales = formats.encode(x, of, torch.float8_e4m3fn, by_columns, powers, 0.0)
    assert tuple(scales.shape) == formats.scale_shape(of, *x.shape, by_columns)
    again = formats.decode(data, scales, of, torch.float8_e4m3fn, by_columns)
    block = of.columns if by_columns else of.rows
    for first in range(0, x.shape[0], block[0]):
        for second in range(0, x.shape[1], block[1]):
            part = x[first : first + block[0], second : second + block[1]]
            found = again[first : first + block[0], second : second + block[1]]
            top = float(part.abs().max())
            assert float((part - found).abs().max()) <= top * 2**-4 * 1.001  # half of e4m3's last place, of the largest
            unit = top / 448 if not (powers or kind == "mx") else 2.0 ** math.ceil(math.log2(top / 448))
            values = found / unit  # all are numbers of the format
            torch.testing.assert_close(values, values.to(torch.float8_e4m3fn).float(), rtol=1e-5, atol=1e-6)


def test_scales_of_maxima():
    amax = torch.tensor([0.0, 448.0, 100.0, math.inf, 1e-45])
    found = formats.scale_of(amax, 448.0, False, 0.0)
    assert found[:4].tolist() == [1.0, 1.0, pytest.approx(4.48), 1.0]
    assert float(found[4]) == torch.finfo(torch.float32).max
    assert formats.scale_of(amax, 448.0, True, 0.0)[:3].tolist() == [1.0, 1.0, 4.0]
    assert formats.scale_of(torch.tensor([0.5]), 448.0, False, 1.0).tolist() == [448.0]


def test_histories_of_maxima_roll():
    history = torch.tensor([[3.0, 0.0], [1.0, 5.0], [2.0, 6.0]])
    scale = torch.tensor([7.0, 7.0])
    tex.fused_amax_and_scale_update_after_reduction(
        torch.tensor([4.0, 0.0]), [history], [scale], "max", names.DType.kFloat8E4M3, 1.0
    )
    assert history.tolist() == [[0.0, 0.0], [2.0, 5.0], [4.0, 6.0]]  # nothing was seen of the second: it stays
    assert scale.tolist() == [448 / 4 / 2, 7.0]
    tex.fused_amax_and_scale_update_after_reduction(
        torch.tensor([1.0, 8.0]), [history], [scale], "most_recent", names.DType.kFloat8E5M2, 0.0
    )
    assert scale.tolist() == [57344.0, 57344 / 8]


def test_plain_operands_have_no_scales():
    x = torch.ones(2, 3)
    data, scales, how = stored(x)
    assert data is x
    assert scales is None
    assert str(how) == ":0:0"


# -- small ones, and what is not there ------------------------------------------------------------------------------------


def test_rows_that_are_filled_up():
    x, out = torch.arange(5.0)[:, None].expand(5, 2).contiguous(), torch.empty(7, 2)
    tex.fused_multi_row_padding(x, out, [2, 3], [3, 4])
    assert out[:, 0].tolist() == [0, 1, 0, 2, 3, 4, 0]
    back = torch.empty(5, 2)
    tex.fused_multi_row_unpadding(out, back, [3, 4], [2, 3])
    torch.testing.assert_close(back, x)
    torch.testing.assert_close(tex.swap_first_dims(x[None]), x[:, None])
    assert tex.splits_to_offsets(torch.tensor([2, 0, 3]), 4).tolist() == [0, 8, 8, 20]


def test_what_is_not_there_is_said():
    with pytest.raises(AttributeError, match=r"has no fused_topk_with_score_function_qb_fwd, .*balance by quantiles"):
        extension.NAMES["__getattr__"]("fused_topk_with_score_function_qb_fwd")
    with pytest.raises(NotImplementedError, match=r"userbuffers.*--tp-comm-overlap"):
        tex.CommOverlap()
    with pytest.raises(AttributeError, match=r"amp_C has no multi_tensor_lamb; what it has is multi_tensor_scale"):
        amp_c.NAMES["__getattr__"]("multi_tensor_lamb")
    with pytest.raises(NotImplementedError, match="over pages of a cache"):
        formats_of(names.NVTE_QKV_Layout.NVTE_Paged_KV_BSHD_BSHD_BSHD)


def test_members_are_numbers_as_pybind_has_them():
    assert int(names.DType.kBFloat16) == 6
    assert names.DType.kBFloat16 == 6
    assert names.NVTE_Mask_Type.NVTE_CAUSAL_MASK != 2
    assert [int(low) < int(high) for low, high in pairwise(names.NVTE_QKV_Layout)] == [True] * 26
