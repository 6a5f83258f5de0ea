"""Where the keys and values of a sequence lie in a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernbench.stand_ins.attention.definition import Tensor


@dataclass(frozen=True)
class Places:
    """Of the sequences of a batch.

    Args:
        rows: of the cache, one a sequence, ``[batch]``; None: the first ones.
        pages: of the cache, ``[batch, pages of each]``, those behind a sequence's end may be any number; None: a sequence lies
            in one row.
        length: of a row, or of a page.
    """

    rows: Tensor | None
    pages: Tensor | None
    length: int

    def read(self, cache: Tensor, end: int, at: int | None = None) -> Tensor:
        """The first ``end`` keys of sequence ``at``, ``[1, end, heads, size]``, or of each, ``[batch, end, heads, size]``."""
        if self.pages is not None:
            pages = self.pages[:, : -(-end // self.length)]
            if at is not None:
                pages = pages[at, None]
            # a page that is not there is behind the end, and is not read
            return cache[pages.clamp(0, cache.shape[0] - 1)].flatten(1, 2)[:, :end]
        if self.rows is not None:
            rows = self.rows if at is None else self.rows[at, None]
            return cache[rows, :end]
        return cache[:, :end] if at is None else cache[at, None, :end]

    def write(self, cache: Tensor, fresh: Tensor, lengths: Tensor) -> None:
        """Put ``fresh`` ``[batch, keys, heads, size]`` behind what sequences have, ``lengths`` ``[batch]``."""
        batch = torch.arange(fresh.shape[0], device=fresh.device)[:, None]
        at = lengths[:, None] + torch.arange(fresh.shape[1], device=fresh.device)
        if self.pages is not None:
            rows, at = self.pages[batch, at // self.length], at % self.length
        elif self.rows is not None:
            rows = self.rows[:, None].expand_as(at)
        else:
            rows = batch.expand_as(at)
        cache[rows, at] = fresh
