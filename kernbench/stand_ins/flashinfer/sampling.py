"""``flashinfer.sampling``: one choice of each row ``[rows, choices]``, of what stays of its probabilities.

The number by which a row is drawn is one of torch's generator of the GPU, by an operation of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from ._calls import Tensor, launch, refuse

Many = Tensor | float
"""Of each row, or the same of all."""

_NONE: tuple[None, float] = (None, -1.0)


def _each(given: Many | None) -> tuple[Tensor | None, float]:
    """As kernels take it: a tensor, or a number; below zero, it is none."""
    if given is None:
        return _NONE
    return (given, -1.0) if isinstance(given, torch.Tensor) else (None, given)


def _counts(given: Many | None) -> tuple[Tensor | None, int]:
    values, value = _each(given)
    return values, int(value)


def _draw(
    name: str, probs: Tensor, indices: Tensor | None, generator: torch.Generator | None, check_nan: bool, seed: Any,
    offset: object, return_valid: bool = False, *, logits: bool = False, top_k: Many | None = None, top_p: Many | None = None,
    min_p: Many | None = None,
) -> Any:  # fmt: skip
    if isinstance(seed, torch.Tensor) or isinstance(offset, torch.Tensor):
        refuse(name, seed=seed, offset=offset)
    if check_nan and bool(torch.isnan(probs).any()):
        raise ValueError(f"Input {'logits' if logits else 'probs'} contains NaN.")
    if seed is not None:
        generator = torch.Generator(device=probs.device).manual_seed(seed * 1_000_003 + (offset or 0))
    rows = len(probs) if indices is None else len(indices)
    numbers = torch.rand(rows, device=probs.device, generator=generator)
    out = torch.empty(rows, dtype=torch.int32 if indices is None else indices.dtype, device=probs.device)
    valid = torch.empty(rows, dtype=torch.bool, device=probs.device) if return_valid else None
    launch("draw", probs, numbers, indices, logits, *_counts(top_k), *_each(top_p), *_each(min_p), out, valid)
    return out if valid is None else (out, valid)


def softmax(logits: Tensor, temperature: Many | None = None, enable_pdl: bool | None = None) -> Tensor:
    """Probabilities in float32, of logits over their temperature."""
    values, value = _each(1.0 if temperature is None else temperature)
    out = torch.empty_like(logits, dtype=torch.float32)
    launch("softmax", logits, values, value, out)
    return out


def sampling_from_logits(
    logits: Tensor, indices: Tensor | None = None, deterministic: bool = True, generator: torch.Generator | None = None,
    check_nan: bool = False, seed: object = None, offset: object = None,
) -> Tensor:  # fmt: skip
    """Of the softmax of logits."""
    found: Tensor = _draw("sampling_from_logits", logits, indices, generator, check_nan, seed, offset, logits=True)
    return found


def sampling_from_probs(
    probs: Tensor, indices: Tensor | None = None, deterministic: bool = True, generator: torch.Generator | None = None,
    check_nan: bool = False, seed: object = None, offset: object = None, return_valid: bool = False,
) -> Any:  # fmt: skip
    """Of all; ``indices``: the row of each that is drawn."""
    return _draw("sampling_from_probs", probs, indices, generator, check_nan, seed, offset, return_valid)


def top_p_sampling_from_probs(
    probs: Tensor, top_p: Many, indices: Tensor | None = None, deterministic: bool = True,
    generator: torch.Generator | None = None, check_nan: bool = False, seed: object = None, offset: object = None,
    return_valid: bool = False,
) -> Any:  # fmt: skip
    """Of the fewest that have ``top_p`` of the whole."""
    return _draw(
        "top_p_sampling_from_probs", probs, indices, generator, check_nan, seed, offset, return_valid, top_p=top_p
    )


def top_k_sampling_from_probs(
    probs: Tensor, top_k: Many, indices: Tensor | None = None, deterministic: bool = True,
    generator: torch.Generator | None = None, check_nan: bool = False, seed: object = None, offset: object = None,
    return_valid: bool = False,
) -> Any:  # fmt: skip
    """Of the ``top_k`` greatest."""
    return _draw(
        "top_k_sampling_from_probs", probs, indices, generator, check_nan, seed, offset, return_valid, top_k=top_k
    )


def min_p_sampling_from_probs(
    probs: Tensor, min_p: Many, indices: Tensor | None = None, deterministic: bool = True,
    generator: torch.Generator | None = None, check_nan: bool = False, seed: object = None, offset: object = None,
    return_valid: bool = False,
) -> Any:  # fmt: skip
    """Of those that are ``min_p`` times the greatest or more."""
    return _draw(
        "min_p_sampling_from_probs", probs, indices, generator, check_nan, seed, offset, return_valid, min_p=min_p
    )


def top_k_top_p_sampling_from_logits(
    logits: Tensor, top_k: Many, top_p: Many, indices: Tensor | None = None, filter_apply_order: str = "top_k_first",
    deterministic: bool = True, generator: torch.Generator | None = None, check_nan: bool = False, seed: object = None,
    offset: object = None,
) -> Tensor:  # fmt: skip
    """``filter_apply_order``: ``"top_k_first"``: the nucleus is that of the greatest ones; ``"joint"``: of all."""
    _require_order(filter_apply_order)
    first = filter_apply_order == "top_k_first"
    found: Tensor = _draw(
        "top_k_top_p_sampling_from_logits", softmax(top_k_mask_logits(logits, top_k) if first else logits), indices,
        generator, check_nan, seed, offset, top_k=None if first else top_k, top_p=top_p,
    )  # fmt: skip
    return found


def top_k_top_p_sampling_from_probs(
    probs: Tensor, top_k: Many, top_p: Many, indices: Tensor | None = None, filter_apply_order: str = "top_k_first",
    deterministic: bool = True, generator: torch.Generator | None = None, check_nan: bool = False, seed: object = None,
    offset: object = None, return_valid: bool = False,
) -> Any:  # fmt: skip
    """See :func:`top_k_top_p_sampling_from_logits`."""
    _require_order(filter_apply_order)
    first = filter_apply_order == "top_k_first"
    return _draw(
        "top_k_top_p_sampling_from_probs", top_k_renorm_probs(probs, top_k) if first else probs, indices, generator,
        check_nan, seed, offset, return_valid, top_k=None if first else top_k, top_p=top_p,
    )  # fmt: skip


def _require_order(order: str) -> None:
    if order not in ("top_k_first", "joint"):
        raise ValueError(f"Invalid filter_apply_order: {order}")


def top_p_renorm_probs(probs: Tensor, top_p: Many, is_deterministic: bool = False) -> Tensor:
    """The fewest that have ``top_p`` of the whole, as shares of their sum."""
    out = torch.empty_like(probs, dtype=torch.float32)
    launch("renorm", probs, None, -1, *_each(top_p), out)
    return out


def top_k_renorm_probs(probs: Tensor, top_k: Many, is_deterministic: bool = False) -> Tensor:
    """The ``top_k`` greatest, as shares of their sum."""
    out = torch.empty_like(probs)
    launch("renorm", probs, *_counts(top_k), None, -1.0, out)
    return out


def top_k_mask_logits(logits: Tensor, top_k: Many) -> Tensor:
    """The ``top_k`` greatest, the others as minus infinity."""
    out = torch.empty_like(logits)
    launch("mask", logits, *_counts(top_k), out)
    return out
