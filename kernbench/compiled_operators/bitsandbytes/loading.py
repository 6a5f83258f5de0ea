"""How the package's own functions for CUDA come to launch the kernels here.

``bitsandbytes.backends.cuda.ops`` registers a function for each of the package's operators with torch, and most of them call
the library through a handful of functions of that module. While it is executed, those that call the library themselves are
registered as functions of ours; then the handful is replaced. What decides between kernels, and what makes their results, is
the package's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_REGISTERED = {
    "bitsandbytes::quantize_blockwise": "quantize_blockwise", "bitsandbytes::quantize_4bit": "quantize_4bit",
    "bitsandbytes::int8_vectorwise_quant": "int8_vectorwise_quant", "bitsandbytes::int8_mm_dequant": "int8_mm_dequant",
    "bitsandbytes::optimizer_update_8bit_blockwise": "update_8bit", "bitsandbytes::optimizer_update_32bit": "update_32bit",
}  # fmt: skip
_REPLACED = {
    "_dequantize_blockwise_impl": "dequantize_blockwise_into", "_dequantize_4bit_impl": "dequantize_4bit_into",
    "_gemv_4bit_impl": "gemv_4bit_into", "_gemm_4bit_kernel_impl": "gemm_4bit", "_int8_linear_matmul_impl": "int8_product_into",
}  # fmt: skip


@contextmanager
def without_library(module: ModuleType) -> Iterator[None]:
    """Around the execution of ``bitsandbytes.backends.cuda.ops``."""
    ours = vars(importlib.import_module("bitsandbytes._kernels"))
    package: Any = importlib.import_module("bitsandbytes._ops")
    theirs: Callable[..., Any] = package.register_kernel

    def register_kernel(name: str, device: str, *more: object, **named: object) -> Any:
        mine = _REGISTERED.get(name)
        register = theirs(name, device, *more, **named)
        return register if mine is None else lambda function: register(ours[mine])

    package.register_kernel = register_kernel
    try:
        yield
    finally:
        package.register_kernel = theirs
    for name, mine in _REPLACED.items():
        setattr(module, name, ours[mine])
