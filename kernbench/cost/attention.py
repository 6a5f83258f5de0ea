"""How long a fused attention takes (FlashAttention and its like): blocks of queries over waves of PEs (ADR 0033)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kernbench.cost.devices import GivenDevice, resolve_device
from kernbench.cost.estimate import Estimate
from kernbench.cost.generations import generation_of
from kernbench.errors import ConfigError
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES, canonical_dtype

US = 1e-6
_QUERIES = 128  # rows of one block, where a generation says nothing else
_NARROW = 64  # head dimensions whose softmax takes longer beside so few products
_WIDE = 128  # head dimensions beyond which less fits beside them
_TAIL = 0.5  # of a causal block that sees all keys, by which PEs end apart: those blocks are up to twice as long as the mean
_PRODUCTS_OF_FP32 = 3  # in TF32, of high and low parts, by which the memory-efficient kernel multiplies fp32 (CUTLASS)
_START = 4.0 * US  # filling the pipeline of one block, and writing it back


def attention_time(
    device: GivenDevice,
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
    value_dim: int | None = None,
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
        value_dim: head dimension of V, where it is not that of Q and K.

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
    parts = attention_parts(
        spec, batch * heads, queries, keys, head_dim, name, variant, causal=causal, window=window, gradient=gradient,
        value_dim=value_dim,
    )  # fmt: skip
    elements = batch * (heads * queries + (kv_heads or heads) * keys) * (head_dim + (value_dim or head_dim))
    return attention_estimate(spec, [parts], (2.5 if gradient else 1) * elements * ITEM_BYTES[name])


class Blocks(NamedTuple):
    """The blocks of heads whose sequences have one length.

    Attributes:
        number: how many.
        mean: seconds that a PE needs for one, on average.
        longest: for one whose queries see all the keys that any does.
    """

    number: int
    mean: float
    longest: float


def attention_parts(
    spec: DeviceSpec, heads: int, queries: int, keys: int, head_dim: int, dtype: str, variant: str, *, causal: bool,
    window: int | None = None, gradient: bool = False, value_dim: int | None = None, seen: float | None = None,
) -> Blocks:  # fmt: skip
    """The blocks of ``heads`` heads of one length.

    ``seen``: keys that a query sees on average; None: by ``causal`` and ``window``. Raises ConfigError for an unknown variant.
    """
    generation = generation_of(spec)
    if variant not in generation.attention:
        raise ConfigError(f"attention: no variant {variant!r}; known: {', '.join(generation.attention)}")
    values = value_dim or head_dim
    if variant == "efficient":
        head_dim, values = max(head_dim, _NARROW), max(values, _NARROW)  # tiles are no narrower [H]
    share = generation.attention[variant][gradient]
    if head_dim <= _NARROW:
        share *= generation.attention_narrow
    elif head_dim > _WIDE:
        share *= generation.attention_wide[gradient]
    rate = spec.matrix_rate(dtype) * share / spec.pes
    if variant == "efficient" and dtype == "fp32" and spec.matrix.tf32 is not None:
        # so much to multiply that a gradient loses no more than what it is the gradient of [H]
        share *= generation.attention[variant][False] / generation.attention[variant][gradient]
        rate = spec.matrix_rate("tf32") / _PRODUCTS_OF_FP32 * share / spec.pes
    rows = _QUERIES if gradient else generation.attention_rows.get(variant, _QUERIES)
    most = keys if window is None else min(keys, window + rows)
    if seen is None:
        seen = min(most, (keys + rows) / 2) if causal and queries == keys else most
    # Products of one query and one key: scores and result; of a gradient two for each operand, and the scores again.
    per_pair = 2 * (3 * head_dim + 2 * values) if gradient else 2 * (head_dim + values)
    mean, longest = (per_pair * min(queries, rows) * each / rate for each in (min(seen, most), most))
    return Blocks(heads * math.ceil(queries / rows), mean, longest)


def attention_estimate(spec: DeviceSpec, parts: Sequence[Blocks], nbytes: float) -> Estimate:
    """The estimate of one kernel of these blocks that moves ``nbytes``."""
    count, work = sum(part.number for part in parts), sum(part.number * part.mean for part in parts) / spec.pes
    computing = work
    if any(part.mean < part.longest for part in parts):  # uneven blocks
        longest = max(part.longest for part in parts)
        computing = max(work + _TAIL * longest, longest)
    elif count > spec.pes:
        computing = work * math.ceil(count / spec.pes) / (count / spec.pes)
    # else few queries leave PEs idle; kernels then split the keys over them
    moving = nbytes / spec.hbm_copy_bandwidth
    seconds = spec.launch.latency + _START + max(computing, moving)
    limit = "compute" if computing > moving else "memory"
    return Estimate(seconds, seconds * 0.75, seconds * 1.3, limit, "", nbytes / seconds, nbytes / seconds)
