"""The function of ``flash_attn.ops.triton.rotary``."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def _positions(x: Tensor, offsets: int | Tensor, ends: Tensor | None) -> Tensor | slice:
    """Of the tokens of ``x``: which rows of the tables are theirs."""
    if ends is None:
        if isinstance(offsets, int):
            return slice(offsets, offsets + x.shape[1])
        return torch.arange(x.shape[1], device=x.device) + offsets[:, None]
    lengths = ends.diff()
    first = -ends[:-1] if isinstance(offsets, int) else offsets - ends[:-1]
    moved = torch.repeat_interleave(first, lengths, output_size=x.shape[0])
    return torch.arange(x.shape[0], device=x.device) + moved + (offsets if isinstance(offsets, int) else 0)


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None, interleaved: bool = False, inplace: bool = False, conjugate: bool = False,
) -> Tensor:  # fmt: skip
    """Turn pairs of coordinates by an angle per position.

    Args:
        x: ``[batch, length, heads, size]``, or ``[all, heads, size]`` of sequences that end at ``cu_seqlens``.
        cos, sin: ``[positions, rotated / 2]``; what is behind the first ``rotated`` coordinates stays.
        seqlen_offsets: positions of the first tokens, one for all or ``[batch]``.
        interleaved: pairs are neighbours; otherwise the halves of what is rotated.
        conjugate: turn back.
    """
    rows = _positions(x, seqlen_offsets, cu_seqlens)
    cos, sin = (each[rows][..., None, :].float() for each in (cos, sin))
    if conjugate:
        sin = -sin
    rotated = 2 * cos.shape[-1]
    turned, rest = x[..., :rotated], x[..., rotated:]
    pairs = turned.float().unflatten(-1, (-1, 2) if interleaved else (2, -1))
    at = -1 if interleaved else -2
    first, second = pairs.unbind(at)
    out = torch.stack((first * cos - second * sin, first * sin + second * cos), at).flatten(-2).to(x.dtype)
    if inplace:
        turned.copy_(out)
        return x
    return torch.cat((out, rest), -1) if rest.shape[-1] else out
