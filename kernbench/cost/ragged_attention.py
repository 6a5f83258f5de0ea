"""Attention over sequences of different lengths, as engines call it: queries one after the other, keys in pages of a cache.

What it takes depends on the lengths that are live, not on the room that the cache has. For sequences of one length it is
:func:`~kernbench.cost.attention.attention_time`'s figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernbench.cost.attention import attention_estimate, attention_parts
from kernbench.cost.estimate import Estimate
from kernbench.cost.generations import generation_of
from kernbench.cost.work import Cost
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES


def between(ends: Sequence[int]) -> list[int]:
    """The lengths of sequences that lie one after the other, by where they end; the first begins at the first."""
    return [end - begin for begin, end in pairwise(ends)]


@dataclass(frozen=True)
class RaggedAttention:
    """One call of a kernel.

    Attributes:
        sequences: queries and keys of each.
        heads, kv_heads: of the queries; of the keys, which several of those share.
        width: of a head.
        dtype: of the operands (``"bf16"``).
        causal: the last query sees all keys, each one before it one less.
        window: keys before a query's own that it sees; None: all.
        variant: whose kernel, as of :func:`~kernbench.cost.attention.attention_time`; ``"flash"`` where a generation lacks it.
        gradient: those of queries, keys and values are computed.
        value_width: of a head's values, where it is not that of its keys.
        latent: columns of the values that are keys, too, beyond ``width``, and are read once (multi-head latent attention).
    """

    sequences: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    width: int
    dtype: str
    causal: bool = True
    window: int | None = None
    variant: str = "flash"
    gradient: bool = False
    value_width: int | None = None
    latent: int = 0

    matrix = True

    @property
    def flops(self) -> int:
        """Floating-point operations of its products, of the pairs that are seen: of two, or of a gradient's five."""
        keys, values = self.width + self.latent, self.value_width or self.width
        per_pair = 2 * (3 * keys + 2 * values) if self.gradient else 2 * (keys + values)
        return sum(per_pair * self.heads * self._pairs(*each) for each in self.sequences)

    @property
    def nbytes(self) -> int:
        """Bytes of queries, results, and the keys and values that any query sees."""
        rows = sum(
            self.heads * queries + self.kv_heads * self._reached(queries, keys) for queries, keys in self.sequences
        )
        width = self.width + (self.value_width or self.width)
        more = self.latent * self.heads * sum(queries for queries, _ in self.sequences)
        return int((2.5 if self.gradient else 1) * (rows * width + more) * ITEM_BYTES[self.dtype])

    def _reached(self, queries: int, keys: int) -> int:
        return keys if self.window is None else min(keys, queries + self.window)

    def _pairs(self, queries: int, keys: int) -> int:
        """Pairs of a query and a key that it sees."""
        seen = keys * queries - (queries * (queries - 1) // 2 if self.causal else 0)
        return max(seen if self.window is None else min(seen, queries * (self.window + 1)), 0)

    def cost(self, device: DeviceSpec) -> Cost:
        """What it occupies a stream for."""
        variant = self.variant if self.variant in generation_of(device).attention else "flash"
        parts = [
            attention_parts(
                device, self.heads, queries, keys, self.width + self.latent, self.dtype, variant, causal=self.causal,
                window=self.window, gradient=self.gradient, value_dim=self.value_width,
                seen=None if keys == queries else self._pairs(queries, keys) / queries,
            )
            for queries, keys in self.sequences
            if queries and keys
        ]  # fmt: skip
        if not parts:
            return Cost.on_stream(
                Estimate(device.launch.latency, 0.0, 0.0, "launch"), device, kind="attention", nbytes=0
            )
        return Cost.on_stream(
            attention_estimate(device, parts, self.nbytes), device, kind="attention", nbytes=self.nbytes
        )
