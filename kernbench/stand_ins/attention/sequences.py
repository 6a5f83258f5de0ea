"""Attention of sequences of several lengths: packed one after the other, or over caches. Each is a call of its own.

Where the lengths are on a GPU, the host reads them.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.stand_ins.attention.caches import Places
from kernbench.stand_ins.attention.definition import Tensor, attend, sequences, slopes_of


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor | None, pages: Tensor | None,
    alibi: Tensor | None = None, lengths: Tensor | None = None, **how: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Of ``[all queries, heads, size]``, cut at ``ends_q`` ``[sequences + 1]``, over keys that are cut likewise.

    Args:
        ends_k: of the keys; None: they begin at the first of their pages.
        lengths: how many of its keys each sequence has, ``[sequences]``; None: as many as lie between its ends.
        pages: ``[sequences, pages of each]``, in a cache ``[pages, page, heads, size]``; None: keys are packed.
        how: as of :func:`attend`.

    Returns:
        As :func:`attend`, statistics ``[heads, all queries]``.
    """
    places = None if pages is None else Places(None, pages, k.shape[1])
    found = []
    for at, (begin_q, end_q, begin_k, end_k) in enumerate(sequences(ends_q, ends_k, lengths)):
        keys, values = (
            each[None, begin_k:end_k] if places is None else places.read(each, end_k - begin_k, at) for each in (k, v)
        )
        found.append(attend(q[None, begin_q:end_q], keys, values, alibi=slopes_of(alibi, at), **how))
    statistics = [each[0] for _, each in found if each is not None]
    return torch.cat([each[0] for each, _ in found]), torch.cat(statistics, dim=-1) if statistics else None


def attend_cached(
    q: Tensor, k: Tensor, v: Tensor, places: Places, lengths: Tensor, alibi: Tensor | None = None, **how: Any
) -> tuple[Tensor, Tensor | None]:
    """Of a batch ``[batch, queries, heads, size]`` over caches, of which ``lengths`` keys ``[batch]`` are live.

    ``how``, and what it returns: as of :func:`attend`.
    """
    found = []
    for at, end in enumerate(lengths.tolist()):
        keys, values = (places.read(each, end, at) for each in (k, v))
        found.append(attend(q[at, None], keys, values, alibi=slopes_of(alibi, at), **how))
    statistics = [each for _, each in found if each is not None]
    return torch.cat([each for each, _ in found]), torch.cat(statistics) if statistics else None
