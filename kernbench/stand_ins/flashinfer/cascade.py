"""``flashinfer.cascade``: attention over all keys, of that over parts, with logarithms of sums to the base 2."""

from __future__ import annotations

import torch

from ._calls import Tensor, launch


def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``[tokens, parts, heads, size]``, and ``[tokens, parts, heads]``."""
    out = v.new_empty(v.shape[0], *v.shape[2:])
    sums = s.new_empty(s.shape[0], s.shape[2], dtype=torch.float32)
    launch("merge", v, s, out, sums)
    return out, sums


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Of two parts, ``[tokens, heads, size]`` and ``[tokens, heads]``, one kernel."""
    out, sums = torch.empty_like(v_a), torch.empty_like(s_a, dtype=torch.float32)
    launch("merge_two", v_a, s_a, v_b, s_b, out, sums)
    return out, sums


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None) -> None:
    """The same into the first; ``mask``: of which tokens."""
    launch("merge_into", v, s, v_other, s_other, mask)
