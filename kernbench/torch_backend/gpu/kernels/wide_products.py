"""Products of 16-bit floats on a CPU that has no engine for them, and some sums: computed in 32 bits, and rounded once.

A CPU without matrix instructions for ``bfloat16`` (AMX) or vector ones for ``float16`` (AVX512-FP16) takes 4 to 100 times as
long for a 16-bit product as for one of 32 bits. So values of products on simulated GPUs are computed from operands that are
widened, which loses nothing, with sums in 32 bits as the GPU has them, and the result is rounded to the operands' format once.
That is no less accurate than what the CPU does by itself: the same products in the same precision, in an order that differs.
``exact_dtype`` keeps the CPU's own (ADR 0107).

A GPU keeps the sums of 16-bit floats in 32 bits; the CPU's kernels do for nearly all operators. The others (:data:`KERNELS`),
whose results are tens of roundings away, are computed in 32 bits as well, always. So are products whose result is to have 32
bits (``torch.mm(a, b, out_dtype=torch.float32)``), for which the CPU has no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import tells_of_looks
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.cpu.get_capabilities", "it says which instructions the CPU has",
             holds=lambda capabilities: hasattr(capabilities(), "get")),
    Reliance("torch.ops.aten._embedding_bag_backward.default", "its first argument and its result have 16 bits", has=("_op",)),
)  # fmt: skip

_ENGINES = {torch.bfloat16: "amx_bf16", torch.float16: "avx512_fp16"}
"""Instructions with which torch's own product of a format is faster than a wide one (``kernbench bench wide_products``)."""

_PRODUCTS = (
    "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "linear", "convolution", "convolution_backward",
)  # fmt: skip


@cache
def slow_formats() -> frozenset[torch.dtype]:
    """Formats whose products this CPU is quicker at in 32 bits."""
    has = torch.cpu.get_capabilities()
    return frozenset(format for format, engine in _ENGINES.items() if not has.get(engine))


def widened(func: OpOverload) -> Callable[..., Any] | None:
    """What computes an operator's overload in 32 bits where that is called for; None for what is never.

    It is for operands on a simulated GPU, and of a context; others are the host's, whose arithmetic is its own.
    """
    if getattr(func, "namespace", "") != "aten" or func._opname not in _PRODUCTS or func._overloadname != "default":
        return None
    return _in_32_bits(func._op, slow_formats)


def _in_32_bits(
    call: Callable[..., Any], formats: Callable[[], Collection[torch.dtype]], rounded: int | None = None
) -> Callable[..., Any]:
    """``rounded``: how many of its results are; default: all."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        format = first.dtype
        on_a_gpu = block_of(first) is not None or tells_of_looks(first)
        if not on_a_gpu or format not in formats() or kwargs.get("dtype") is not None:
            return call(*args, **kwargs)
        result = call(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})
        if rounded is None:
            return _rounded(result, format)
        return (*_rounded(result[:rounded], format), *result[rounded:])

    return compute


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _ENGINES else value


def _rounded(result: Any, format: torch.dtype) -> Any:
    if isinstance(result, tuple):
        return tuple(None if each is None else each.to(format) for each in result)
    return result.to(format)


_aten = torch.ops.aten


def _with_result_format(call: Callable[..., Any], product: Callable[..., Any]) -> Callable[..., Any]:
    """A product whose last argument is the format of its result: that of its operands or, for 16 bits, ``float32``."""

    def compute(*args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> Any:
        *given, format = args
        if block_of(given[0]) is None and not tells_of_looks(given[0]):
            return call(*args, **kwargs) if out is None else call(*args, out=out, **kwargs)
        operands = given[-1].dtype
        if format is not operands and (format is not torch.float32 or operands not in _ENGINES):
            raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
        result = product(*map(_wide, given), **kwargs).to(format)
        return result if out is None else out.copy_(result)

    return compute


KERNELS: dict[str, Callable[..., object]] = {
    func.name(): _in_32_bits(func._op, lambda: _ENGINES, rounded)
    for func, rounded in (
        (_aten.native_layer_norm.default, 1),  # what it keeps for its gradient has 32 bits on a GPU
        (_aten.native_layer_norm_backward.default, None),
        (_aten.embedding_dense_backward.default, None),
        (_aten._embedding_bag_backward.default, None),
        (_aten.nll_loss_forward.default, None),
        (_aten.nll_loss2d_forward.default, None),
        (_aten.prod.default, None),
        (_aten.prod.dim_int, None),
    )
} | {
    func.name(): _with_result_format(func._op, packet.default._op)
    for packet in (_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm)
    for func in (packet.dtype, packet.dtype_out)
}
"""Operators whose sums the CPU keeps in 16 bits, and products that it has no kernel for."""
