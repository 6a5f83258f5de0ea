"""How long a fused attention takes (FlashAttention and its like): blocks of queries over waves of PEs (ADR 0033)."""

from __future__ import annotations

import math
from typing import Any

from kernbench.cost.devices import resolve_device
from kernbench.cost.estimate import Estimate
from kernbench.cost.generations import generation_of
from kernbench.errors import ConfigError
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES, canonical_dtype

US = 1e-6
_QUERIES = 128  # rows of one block
_NARROW = 64  # head dimensions whose softmax takes longer beside so few products
_START = 4.0 * US  # filling the pipeline of one block, and writing it back


def attention_time(
    device: Any,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    *,
    kv_heads: int | None = None,
    causal: bool = False,
    dtype: str = "float16",
    gradient: bool = False,
    variant: str = "flash",
    window: int | None = None,
) -> Estimate:
    """How long ``softmax(Q K^T) V`` takes as one kernel, or its gradient, which is five products instead of two.

    Args:
        device: shipped name, YAML path or DeviceSpec.
        batch, heads, queries, keys, head_dim: Q is ``[batch, heads, queries, head_dim]``, K and V have ``keys`` rows.
        kv_heads: heads of K and V, when they are shared between heads of Q.
        causal: the later half of the keys is skipped, but for the blocks on the diagonal.
        dtype: of the operands.
        gradient: those of Q, K and V are asked for.
        variant: whose kernel: ``"flash"`` (FlashAttention-2, torch's first choice), ``"efficient"`` or ``"cudnn"``.
        window: keys that a query sees at most; None: all.

    Raises:
        ConfigError: unknown device or dtype, a dimension below one.
    """
    spec = resolve_device(device)
    if min(batch, heads, queries, keys, head_dim, kv_heads or 1) < 1:
        raise ConfigError("attention: every dimension must be at least 1")
    try:
        name = canonical_dtype(dtype)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    blocks, block = attention_parts(
        spec, batch * heads, queries, keys, head_dim, name, variant, causal=causal, window=window, gradient=gradient
    )
    # Few queries leave PEs idle; kernels then split the keys over them.
    computing = max(math.ceil(blocks / spec.pes) if blocks > spec.pes else blocks / spec.pes, 1 / spec.pes) * block
    rows = batch * head_dim * (2 * heads * queries + 2 * (kv_heads or heads) * keys)
    return attention_estimate(spec, computing, (2.5 if gradient else 1) * rows * ITEM_BYTES[name])


def attention_parts(
    spec: DeviceSpec, heads: int, queries: int, keys: int, head_dim: int, dtype: str, variant: str, *, causal: bool,
    window: int | None = None, gradient: bool = False, seen: float | None = None,
) -> tuple[int, float]:  # fmt: skip
    """How many blocks ``heads`` of one length consist of, and the seconds that one PE needs for each.

    ``seen``: keys that a query sees on average; None: by ``causal`` and ``window``. Raises ConfigError for an unknown variant.
    """
    generation = generation_of(spec)
    if variant not in generation.attention:
        raise ConfigError(f"attention: no variant {variant!r}; known: {', '.join(generation.attention)}")
    share = generation.attention[variant][gradient] * (generation.attention_narrow if head_dim <= _NARROW else 1.0)
    rate = spec.matrix_rate(dtype) * share / spec.pes
    if seen is None:
        seen = min(keys, (keys + _QUERIES) / 2) if causal and queries == keys else keys
        if window is not None:
            seen = min(seen, window + _QUERIES)
    return heads * math.ceil(queries / _QUERIES), (10 if gradient else 4) * min(
        queries, _QUERIES
    ) * seen * head_dim / rate


def attention_estimate(spec: DeviceSpec, computing: float, nbytes: float) -> Estimate:
    """The estimate of a kernel that computes for ``computing`` seconds and moves ``nbytes``."""
    moving = nbytes / spec.hbm_copy_bandwidth
    seconds = spec.launch.latency + _START + max(computing, moving)
    limit = "compute" if computing > moving else "memory"
    return Estimate(seconds, seconds * 0.75, seconds * 1.3, limit, "", nbytes / seconds, nbytes / seconds)
