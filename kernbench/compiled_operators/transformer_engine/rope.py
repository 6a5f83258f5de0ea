"""Rotary embedding, in float32: ``x cos + rotate(x) sin`` over the first elements of each head, of one tensor or of
queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch

Tensor = torch.Tensor

_SBHD, _THD = 0, 2


def _places(length: int, start: int, cp_size: int, cp_rank: int) -> Tensor:
    """The positions of a rank's tokens of one sequence: of context parallelism the rank has a chunk from each end."""
    at = torch.arange(length) + start
    if cp_size > 1:
        half = length // 2
        at[:half] += cp_rank * half
        at[half:] += length * cp_size - (cp_rank + 1) * half - half
    return at


def _angles(
    x: Tensor, freqs: Tensor, starts: Tensor | None, form: int, ends: Tensor | None, cp_size: int, cp_rank: int
) -> Tensor:
    """For each token, ``[..., 1, width]``, to be broadcast over heads."""
    table = freqs.reshape(freqs.shape[0], -1).float()
    if form == _THD:
        assert ends is not None
        bounds = torch.div(ends, cp_size, rounding_mode="floor").tolist()
        found = torch.zeros(x.shape[0], dtype=torch.int64)
        for at, (begin, end) in enumerate(pairwise(bounds)):
            start = 0 if starts is None else int(starts[at])
            found[begin:end] = _places(end - begin, start, cp_size, cp_rank)
        return table[found][:, None]
    length, batch = (x.shape[0], x.shape[1]) if form == _SBHD else (x.shape[1], x.shape[0])
    begins = [0] * batch if starts is None else starts.tolist()
    places = torch.stack([_places(length, start, cp_size, cp_rank) for start in begins])
    return table[places.t() if form == _SBHD else places][:, :, None]


def _turned(x: Tensor, angles: Tensor, interleaved: bool, backward: bool) -> Tensor:
    width = angles.shape[-1]
    part = x[..., :width].float()
    cos, sin = angles.cos(), angles.sin()
    part_sin = part * sin if backward else part
    if interleaved:
        first, second = part_sin.unflatten(-1, (-1, 2)).unbind(-1)
        rotated = torch.stack((second, -first) if backward else (-second, first), -1).flatten(-2)
    else:
        first, second = part_sin.chunk(2, -1)
        rotated = torch.cat((second, -first) if backward else (-second, first), -1)
    found = part * cos + (rotated if backward else rotated * sin)
    return torch.cat((found, x[..., width:].float()), -1)


@kernel(
    """rope(Tensor x, Tensor freqs, Tensor? starts, Tensor? ends, Tensor! out, int form, bool interleaved, int cp_size,
    int cp_rank, bool backward)""",
    "x", "freqs", "out",
)  # fmt: skip
def _rope(
    x: Tensor, freqs: Tensor, starts: Tensor | None, ends: Tensor | None, out: Tensor, form: int, interleaved: bool,
    cp_size: int, cp_rank: int, backward: bool,
) -> None:  # fmt: skip
    angles = _angles(x, freqs, starts, form, ends, cp_size, cp_rank)
    out.copy_(_turned(x, angles, interleaved, backward))


@kernel(
    """qkv_rope(Tensor qkv, Tensor q_freqs, Tensor k_freqs, Tensor? starts, Tensor! q, Tensor! k, Tensor! v, int form, bool
    interleaved, int cp_size, int cp_rank)""",
    "qkv", "q_freqs", "k_freqs", "q", "k", "v",
)  # fmt: skip
def _qkv_rope(
    qkv: Tensor, q_freqs: Tensor, k_freqs: Tensor, starts: Tensor | None, q: Tensor, k: Tensor, v: Tensor, form: int,
    interleaved: bool, cp_size: int, cp_rank: int,
) -> None:  # fmt: skip
    width_q = q.shape[2] * q.shape[3] // qkv.shape[2]
    parts = qkv.split([width_q, k.shape[-1], v.shape[-1]], -1)
    for x, freqs, out in ((parts[0].reshape(q.shape), q_freqs, q), (parts[1], k_freqs, k)):
        out.copy_(_turned(x, _angles(x, freqs, starts, form, None, cp_size, cp_rank), interleaved, False))
    v.copy_(parts[2])


@kernel(
    """qkv_rope_backward(Tensor dq, Tensor dk, Tensor dv, Tensor q_freqs, Tensor k_freqs, Tensor! dqkv, int form, bool
    interleaved, int cp_size, int cp_rank)""",
    "dq", "dk", "dv", "q_freqs", "k_freqs", "dqkv",
)  # fmt: skip
def _qkv_rope_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, q_freqs: Tensor, k_freqs: Tensor, dqkv: Tensor, form: int, interleaved: bool,
    cp_size: int, cp_rank: int,
) -> None:  # fmt: skip
    turned = [
        _turned(each, _angles(each, freqs, None, form, None, cp_size, cp_rank), interleaved, True)
        for each, freqs in ((dq, q_freqs), (dk, k_freqs))
    ]
    groups = dqkv.shape[:3]
    dqkv.copy_(torch.cat([turned[0].reshape(*groups, -1), turned[1], dv.float()], -1))


def fused_rope_forward(
    input: Tensor, freqs: Tensor, start_positions: Tensor | None, qkv_format: Any, interleaved: bool,
    cu_seqlens: Tensor | None, cp_size: int, cp_rank: int,
) -> Tensor:  # fmt: skip
    """Of ``[tokens, batch, heads, width]``, ``[batch, tokens, ...]``, or packed ``[tokens, heads, width]``."""
    out = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    launch(
        "rope", input, freqs, start_positions, cu_seqlens, out, int(qkv_format), interleaved, cp_size, cp_rank, False
    )
    return out


def fused_rope_backward(
    output_grads: Tensor, freqs: Tensor, start_positions: Tensor | None, qkv_format: Any, interleaved: bool,
    cu_seqlens: Tensor | None, cp_size: int, cp_rank: int,
) -> Tensor:  # fmt: skip
    """Its gradient."""
    out = torch.empty(output_grads.shape, dtype=output_grads.dtype, device=output_grads.device)
    launch(
        "rope",
        output_grads,
        freqs,
        start_positions,
        cu_seqlens,
        out,
        int(qkv_format),
        interleaved,
        cp_size,
        cp_rank,
        True,
    )
    return out


def fused_qkv_rope_forward(
    qkv_input: Tensor, q_freqs: Tensor, k_freqs: Tensor, start_positions: Tensor | None, qkv_split_arg_list: Sequence[int],
    qkv_format: Any, interleaved: bool, cp_size: int, cp_rank: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, keys and values of groups ``[.., .., groups, widths of all three]``."""
    wide, one, last = qkv_split_arg_list
    first = qkv_input.shape[:2]
    groups = qkv_input.shape[2]
    shapes = (*first, groups * wide // one, one), (*first, groups, one), (*first, groups, last)
    q, k, v = (torch.empty(shape, dtype=qkv_input.dtype, device=qkv_input.device) for shape in shapes)
    launch(
        "qkv_rope",
        qkv_input,
        q_freqs,
        k_freqs,
        start_positions,
        q,
        k,
        v,
        int(qkv_format),
        interleaved,
        cp_size,
        cp_rank,
    )
    return q, k, v


def fused_qkv_rope_backward(
    q_grad_out: Tensor, k_grad_out: Tensor, v_grad_out: Tensor, q_freqs: Tensor, k_freqs: Tensor,
    qkv_split_arg_list: Sequence[int], qkv_format: Any, interleaved: bool, cp_size: int, cp_rank: int,
) -> Tensor:  # fmt: skip
    """The gradient of the groups."""
    shape = (*k_grad_out.shape[:3], sum(qkv_split_arg_list))
    dqkv = torch.empty(shape, dtype=q_grad_out.dtype, device=q_grad_out.device)
    launch(
        "qkv_rope_backward", q_grad_out, k_grad_out, v_grad_out, q_freqs, k_freqs, dqkv, int(qkv_format), interleaved,
        cp_size, cp_rank,
    )  # fmt: skip
    return dqkv
