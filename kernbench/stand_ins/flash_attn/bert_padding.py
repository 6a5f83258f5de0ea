"""The functions of ``flash_attn.bert_padding``: sequences without their padding, and with it again."""

from __future__ import annotations

import torch
from torch.nn import functional as F

Tensor = torch.Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows of ``input``."""
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """``first_axis_dim`` rows, those of ``indices`` from ``values``, the others zero."""
    out = values.new_zeros(first_axis_dim, *values.shape[1:])
    return out.index_put((indices,), values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """``[batch, length, ...]`` without padding: rows, their indices, where sequences end, the longest, and lengths."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten()).flatten()
    ends = F.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[indices], indices, ends, int(lengths.max().item()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Rows with their padding again, ``[batch, seqlen, ...]``."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
