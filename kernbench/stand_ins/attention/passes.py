"""The two passes of attention apart, as ring and context-parallel attention call them.

They differ from the public functions in that autograd has no part in them: the forward pass gives the logarithms of the sums,
and the backward pass takes them, so that they may be those over more keys than it is given.
"""

from __future__ import annotations

import math

import torch

from kernbench.stand_ins.attention.definition import (
    Tensor,
    attend,
    right_of,
    seen_keys,
    sequences,
    slopes_bias,
    slopes_of,
)


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise NotImplementedError(
            f"The stand-in for flash_attn keeps no dropout mask between the passes (dropout_p={dropout_p}): "
            "use dropout_p=0 with _flash_attn_forward and _flash_attn_backward, or flash_attn_func."
        )


def forward_pass(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
    window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
) -> tuple[Tensor, Tensor, None, None]:  # fmt: skip
    """Output, and the logarithms of the sums ``[batch, heads, queries]`` in fp32; no mask and no state of a generator."""
    _refuse_dropout(dropout_p)
    with torch.no_grad():
        out, sums = attend(
            q, k, v, scale=softmax_scale, causal=causal, window=(window_size_left, window_size_right), softcap=softcap,
            alibi=alibi_slopes, statistics=True,
        )  # fmt: skip
    assert sums is not None
    return out, sums, None, None


def backward_pass(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, dropout_p: float, softmax_scale: float | None, causal: bool,
    window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, rng_state: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Writes the gradients into ``dq``, ``dk``, ``dv``; returns the sums of ``dout * out``, ``[batch, heads, queries]``."""
    _refuse_dropout(dropout_p)
    with torch.no_grad():
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        heads, groups = q.shape[2], q.shape[2] // k.shape[2]
        right = right_of(window_size_right, causal)
        wide = torch.promote_types(q.dtype, torch.float32)
        queries, keys, values, given, gave = (each.transpose(1, 2).to(wide) for each in (q, k, v, dout, out))
        keys, values = (each.repeat_interleave(groups, dim=1) for each in (keys, values))
        seen, distance = seen_keys(q.shape[1], k.shape[1], k.shape[1], window_size_left, right, q.device)
        scores = (queries @ keys.transpose(-1, -2)) * scale
        slope = None
        if softcap:
            bent = torch.tanh(scores / softcap)
            scores, slope = softcap * bent, 1 - bent * bent
        if alibi_slopes is not None:
            scores = scores + slopes_bias(alibi_slopes, distance)
        shares = torch.exp((scores - softmax_lse[..., None]).masked_fill(~seen, -math.inf))
        total = (given * gave).sum(-1)
        change = shares * (given @ values.transpose(-1, -2) - total[..., None])
        if slope is not None:
            change = change * slope
        to_keys, to_values = change.transpose(-1, -2) @ queries * scale, shares.transpose(-1, -2) @ given
        if groups > 1:
            to_keys, to_values = (each.unflatten(1, (heads // groups, groups)).sum(2) for each in (to_keys, to_values))
        for into, gradient in ((dq, change @ keys * scale), (dk, to_keys), (dv, to_values)):
            if into is not None:
                into.copy_(gradient.transpose(1, 2))
    return total


def varlen_forward_pass(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int = -1,
    window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    return_softmax: bool = False, block_table: Tensor | None = None, leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None, zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, None, None]:  # fmt: skip
    """Of sequences behind each other; the logarithms of the sums are ``[heads, queries of all]``."""
    if block_table is not None or leftpad_k is not None or seqused_k is not None:
        raise NotImplementedError(
            "The stand-in for flash_attn has block_table, leftpad_k and seqused_k not in _flash_attn_varlen_forward: "
            "use flash_attn_varlen_func or flash_attn_with_kvcache for caches in pages."
        )
    _refuse_dropout(dropout_p)
    if alibi_slopes is None:
        how = (_scale(q, softmax_scale), causal, window_size_left, window_size_right, softcap)
        with torch.no_grad():
            out, sums = torch.ops.flash_attn.packed(q, k, v, cu_seqlens_q, cu_seqlens_k, None, None, [], *how, True)
        return out, sums, None, None
    out, sums = torch.zeros_like(q), q.new_zeros((q.shape[1], q.shape[0]), dtype=torch.float32)
    for at, (q0, q1, k0, k1) in enumerate(sequences(cu_seqlens_q, cu_seqlens_k)):
        part, logs, *_ = forward_pass(
            q[None, q0:q1], k[None, k0:k1], v[None, k0:k1], dropout_p, softmax_scale, causal, window_size_left,
            window_size_right, softcap, slopes_of(alibi_slopes, at),
        )  # fmt: skip
        out[q0:q1], sums[:, q0:q1] = part[0], logs[0]
    return out, sums, None, None


def varlen_backward_pass(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int = -1,
    window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    rng_state: Tensor | None = None, zero_tensors: bool = False,
) -> Tensor:  # fmt: skip
    """Of sequences behind each other: writes the gradients; returns the sums of ``dout * out``, ``[heads, queries of all]``."""
    _refuse_dropout(dropout_p)
    how = (_scale(q, softmax_scale), causal, window_size_left, window_size_right, softcap)
    if alibi_slopes is None:
        dq, dk, dv = (torch.empty_like(of) if into is None else into for into, of in ((dq, q), (dk, k), (dv, v)))
        total: Tensor = torch.ops.flash_attn.packed_gradients(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, None, *how
        )
        return total
    spans = sequences(cu_seqlens_q, cu_seqlens_k)
    return backward_of_each(spans, dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, how)


def backward_of_each(
    spans: list[tuple[int, int, int, int]], dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor,
    dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, alibi: Tensor | None,
    how: tuple[float, bool, int, int, float],
) -> Tensor:  # fmt: skip
    """:func:`backward_pass` of each sequence (``definition.sequences``), ``how`` from its scale on."""
    total = torch.zeros_like(sums)
    for at, (q0, q1, k0, k1) in enumerate(spans):
        total[:, q0:q1] = backward_pass(
            dout[None, q0:q1], q[None, q0:q1], k[None, k0:k1], v[None, k0:k1], out[None, q0:q1], sums[None, :, q0:q1],
            _part(dq, q0, q1), _part(dk, k0, k1), _part(dv, k0, k1), 0.0, *how, slopes_of(alibi, at),
        )[0]  # fmt: skip
    return total


def _scale(q: Tensor, scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5) if scale is None else scale


def _part(into: Tensor | None, begin: int, end: int) -> Tensor | None:
    return None if into is None else into[None, begin:end]
