"""Products of 16-bit floats on a CPU that has no engine for them: computed in 32 bits, and rounded once.

A CPU without matrix instructions for ``bfloat16`` (AMX) or vector ones for ``float16`` (AVX512-FP16) takes 4 to 100 times as
long for a 16-bit product as for one of 32 bits. So values of products on simulated GPUs are computed from operands that are
widened, which loses nothing, with sums in 32 bits as the GPU has them, and the result is rounded to the operands' format once.
That is no less accurate than what the CPU does by itself: the same products in the same precision, in an order that differs.
``exact_dtype`` keeps the CPU's own (ADR 0107).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from kernbench.simulation.tensors import tells_of_looks
from kernbench.torch_backend.gpu.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.cpu.get_capabilities", "it says which instructions the CPU has",
             holds=lambda capabilities: hasattr(capabilities(), "get")),
)  # fmt: skip

_ENGINES = {torch.bfloat16: "amx_bf16", torch.float16: "avx512_fp16"}
"""Instructions with which torch's own product of a format is faster than a wide one (``python -m benches.wide_products``)."""

_PRODUCTS = (
    "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "linear", "convolution", "convolution_backward",
)  # fmt: skip


@cache
def slow_formats() -> frozenset[torch.dtype]:
    """Formats whose products this CPU is quicker at in 32 bits."""
    has = torch.cpu.get_capabilities()
    return frozenset(format for format, engine in _ENGINES.items() if not has.get(engine))


def widened(func: Any) -> Callable[..., Any] | None:
    """What computes an operator's overload in 32 bits where that is called for; None for what is no product.

    It is for operands on a simulated GPU, and of a context; others are the host's, whose arithmetic is its own.
    """
    if getattr(func, "namespace", "") != "aten" or func._opname not in _PRODUCTS or func._overloadname != "default":
        return None
    return _in_32_bits(func._op)


def _in_32_bits(call: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        format = first.dtype
        if format not in slow_formats() or (block_of(first) is None and not tells_of_looks(first)):
            return call(*args, **kwargs)
        return _rounded(call(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()}), format)

    return compute


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _ENGINES else value


def _rounded(result: Any, format: torch.dtype) -> Any:
    if isinstance(result, tuple):
        return tuple(None if each is None else each.to(format) for each in result)
    return result.to(format)
