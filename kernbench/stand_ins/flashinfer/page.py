"""``flashinfer.page``."""

from __future__ import annotations

import torch

from ._calls import Cache, Tensor, halves, launch


def get_seq_lens(kv_indptr: Tensor, kv_last_page_len: Tensor, page_size: int) -> Tensor:
    """Keys of each sequence."""
    return torch.clamp(kv_indptr[1:] - kv_indptr[:-1] - 1, min=0) * page_size + kv_last_page_len


def get_batch_indices_positions(
    append_indptr: Tensor,
    seq_lens: Tensor,
    nnz: int,
    batch_indices: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Of ``nnz`` tokens that are the last ones of their sequences, cut at ``append_indptr``: which, and where in it."""
    sequences, places = (
        torch.empty(nnz, dtype=torch.int32, device=append_indptr.device) if each is None else each
        for each in (batch_indices, positions)
    )
    launch("places", append_indptr, seq_lens, sequences, places)
    return sequences, places


def append_paged_kv_cache(
    append_key: Tensor, append_value: Tensor, batch_indices: Tensor, positions: Tensor, paged_kv_cache: Cache,
    kv_indices: Tensor, kv_indptr: Tensor, kv_last_page_len: Tensor, kv_layout: str = "NHD",
) -> None:  # fmt: skip
    """Put tokens ``[tokens, heads, size]`` at their positions of their sequences."""
    keys, values = halves(paged_kv_cache, kv_layout)
    launch("append", append_key, append_value, batch_indices, positions, keys, values, kv_indices, kv_indptr)
