"""``vllm._C_stable_libtorch``: what fills caches of keys and values, and of latents, and reads them."""

from __future__ import annotations

import torch

from kernbench.compiled_operators.moved import moving
from kernbench.compiled_operators.vllm.core import operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.work import StatedWork

Tensor = torch.Tensor


@operators.value
def reshape_and_cache_flash(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str,
    k_scale: Tensor, v_scale: Tensor,
) -> None:  # fmt: skip
    """``key``: ``[tokens, heads, size]``; a cache: ``[blocks, block size, heads, size]``; a token whose slot is negative is
    not kept."""
    kept, block, place = slots_of(slot_mapping, key_cache.shape[1])
    for given, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        cache[block, place] = stored_in(given[: slot_mapping.numel()][kept], cache, kv_cache_dtype, scale)


@operators.value
def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str,
    k_scale: Tensor, v_scale: Tensor,
) -> None:  # fmt: skip
    """``key_cache``: ``[blocks, heads, size / x, block size, x]``; ``value_cache``: ``[blocks, heads, size, block size]``."""
    kept, block, place = slots_of(slot_mapping, key_cache.shape[3])
    keys = stored_in(key[: slot_mapping.numel()][kept], key_cache, kv_cache_dtype, k_scale)
    key_cache[block, :, :, place] = keys.unflatten(-1, (-1, key_cache.shape[4]))
    value_cache[block, :, :, place] = stored_in(
        value[: slot_mapping.numel()][kept], value_cache, kv_cache_dtype, v_scale
    )


def slots_of(slots: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which tokens are kept, and the blocks and places of those."""
    kept = slots >= 0
    return kept, slots[kept] // size, slots[kept] % size


def stored_in(values: Tensor, cache: Tensor, format: str, scale: Tensor) -> Tensor:
    """Values as a cache has them: in eight bits they are divided by their scale."""
    if format == "auto":
        return values.to(cache.dtype)
    kind = torch.float8_e5m2 if format == "fp8_e5m2" else torch.float8_e4m3fn
    most = torch.finfo(kind).max
    return (values.float() / scale.float()).clamp(-most, most).to(kind).view(cache.dtype)


@operators.cost("reshape_and_cache_flash")
@operators.cost("reshape_and_cache")
def _of_caching(operands: CallOperands) -> StatedWork:
    """The tokens that have a slot are read, and written in the format of the cache."""
    key, value, slots = operands["key"], operands["value"], operands["slot_mapping"]
    kept = slots.shape[0] if slots.known is None else sum(slot >= 0 for slot in slots.known)
    moved = 0
    for given, cache in ((key, operands["key_cache"]), (value, operands["value_cache"])):
        row = given.row_bytes(1)
        moved += kept * row + kept * row * cache.nbytes * given.elements // (cache.elements * given.nbytes or 1)
    return StatedWork(moved + slots.nbytes)


# -- of latents: a row has the latent of a token's keys and values, and the part of its key that is turned ------------------


@operators.value
def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor
) -> None:
    """``kv_c``, ``k_pe``: ``[tokens, width]`` each; the cache: ``[blocks, block size, both widths]``."""
    if kv_cache_dtype == "fp8_ds_mla":
        raise NotImplementedError("vllm: the values of concat_and_cache_mla in its stand-in take no fp8_ds_mla")
    kept, block, place = slots_of(slot_mapping, kv_cache.shape[1])
    rows = torch.cat((kv_c, k_pe.reshape(len(k_pe), -1)), -1)[: slot_mapping.numel()][kept]
    kv_cache[block, place] = stored_in(rows, kv_cache, kv_cache_dtype, scale)


@operators.cost("concat_and_cache_mla")
def _of_caching_latents(operands: CallOperands) -> StatedWork:
    latents, turned, cache, slots = (operands[name] for name in ("kv_c", "k_pe", "kv_cache", "slot_mapping"))
    kept = slots.shape[0] if slots.known is None else sum(slot >= 0 for slot in slots.known)
    return StatedWork(kept * (latents.row_bytes(1) + turned.row_bytes(1) + cache.row_bytes(2)) + slots.nbytes)


for _name in ("cp_gather_cache", "gather_and_maybe_dequant_cache"):
    operators.cost(_name)(moving("dst", "dst"))  # as much is read, in sixteen bits, as is written
