"""In which format products of fp32 may be computed, for which torch has two interfaces that look at each other.

The older one is ``torch.set_float32_matmul_precision`` and ``allow_tf32``, the newer ``fp32_precision`` of
``torch.backends`` and of their parts. What one has set the other may refuse to read, by an error of C++ which, raised where
ranks are switched, can end a process of Python 3.10; so the older is read unless the newer has been used after it.
The newer is written last, since writing the older writes it too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_C: Any = torch._C

SETTERS = {"_set_float32_matmul_precision": True, "_set_cublas_allow_tf32": True, "_set_fp32_precision_setter": False}
"""Functions of ``torch._C`` that set one, as torch looks them up at each call; whether the older can be read after it."""

SETTERS_OF_SUMS = (
    "_set_cublas_allow_fp16_reduced_precision_reduction", "_set_cublas_allow_bf16_reduced_precision_reduction",
)  # fmt: skip
"""Likewise, of whether products' sums may be rounded on their way."""

_PARTS = (
    ("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
    ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip

RELIES_ON = (
    Reliance("torch._C", "the precision of products and convolutions is kept there", has=(
        *SETTERS, *SETTERS_OF_SUMS, *(name.replace("_set_", "_get_") for name in SETTERS_OF_SUMS),
        "_get_float32_matmul_precision", "_get_fp32_precision_getter", "_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32",
    )),
)  # fmt: skip

_set_products, _set_part = _C._set_float32_matmul_precision, _C._set_fp32_precision_setter
_sums = [getattr(_C, name) for name in SETTERS_OF_SUMS]
_set_convolutions = _C._set_cudnn_allow_tf32


class Precisions(NamedTuple):
    """All of them; ``products``: by the older interface, None where it is not read."""

    products: str | None
    parts: tuple[str, ...]


_readable = True  # the older interface, in the state of the rank that runs


def install(patches: Patches) -> None:
    """From here on it is noticed which interface has been used last."""
    global _readable
    _readable = True
    for name, readable in SETTERS.items():
        patches.set(_C, name, _noticed(getattr(_C, name), readable))


def _noticed(stock: Callable[..., None], readable: bool) -> Callable[..., None]:
    @functools.wraps(stock)
    def set_one(*args: object) -> None:
        global _readable
        stock(*args)
        _readable = readable

    return set_one


def read() -> Precisions:
    """As they are."""
    parts = tuple([_C._get_fp32_precision_getter(*part) for part in _PARTS])
    try:
        return Precisions(_C._get_float32_matmul_precision() if _readable else None, parts)
    except RuntimeError:  # it was set so before there was a simulation
        return Precisions(None, parts)


def write(precisions: Precisions) -> None:
    """Set them."""
    global _readable
    _readable = precisions.products is not None
    if precisions.products is not None:
        _set_products(precisions.products)
    for part, value in zip(_PARTS, precisions.parts, strict=True):
        if _C._get_fp32_precision_getter(*part) != value:
            _set_part(*part, value)


def read_sums() -> list[tuple[bool, bool]]:
    """Of fp16 and bf16: whether sums may be rounded, and whether parts of them may be computed apart."""
    return [getattr(_C, name.replace("_set_", "_get_"))() for name in SETTERS_OF_SUMS]


def write_sums(allowed: list[tuple[bool, bool]]) -> None:
    """Set them."""
    for write_one, each in zip(_sums, allowed, strict=True):
        write_one(*each)


def legacy_convolutions() -> bool | None:
    """``torch.backends.cudnn.allow_tf32``; None where the newer interface has said otherwise."""
    try:
        return bool(_C._get_cudnn_allow_tf32())
    except RuntimeError:
        return None


def set_legacy_convolutions(allowed: bool | None) -> None:
    """Set it, if it is one."""
    if allowed is not None:
        _set_convolutions(allowed)
