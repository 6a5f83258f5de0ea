"""Calls of device math libraries (``libdevice``, ``ocml``) by symbol.

CUDA symbols are ``__nv_<name>f`` for fp32 and ``__nv_<name>`` for fp64; AMD ones ``__ocml_<name>_f32``/``_f64``, and
``__triton_hip_<name>`` for what Triton's compiler for AMD writes itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.device_math import FUNCTIONS
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.values import Value, dense_int, from_lane_array, wrap

from .registry import UnsupportedOpError, op
from .special_registers import KNOWN_REGISTERS, OF_THREADS, register_of, special_registers

#: What a CUDA symbol may say of its type, around a function's name.
_CUDA_TYPES = (
    (r"f$", ""),
    (r"^[fd](add|sub|mul|div|sqrt|rsqrt|rcp)_", r"\1_"),
    (r"^fmaf?_", "fma_"),
    (r"^(isinf|isnan|isfinite|signbit)d$", r"\1"),
    (r"^fast_fdividef$", "fast_divide"),
)


def function_of(symbol: str) -> Callable[..., Tensor] | None:
    """The implementation of a device-library symbol, or None."""
    if match := re.fullmatch(r"__nv_(\w+)", symbol):
        name = match[1]
        plain = [name, *(re.sub(pattern, by, name) for pattern, by in _CUDA_TYPES)]
        return next((FUNCTIONS[name] for name in plain if name in FUNCTIONS), None)
    if match := re.fullmatch(r"__triton_hip_(\w+)", symbol):
        return function_of(f"__nv_{match[1]}")
    match = re.fullmatch(r"__ocml_(?:native_)?(\w+?)_(?:f16|f32|f64)", symbol)
    return FUNCTIONS.get(match[1] if match else symbol)


def _tells_threads(info: OpInfo) -> bool:
    register = register_of(str(info.attrs.get("symbol", "")))
    return register is not None and OF_THREADS.fullmatch(register.partition(".")[0]) is not None


def _special_register(info: OpInfo, name: str) -> Callable[..., Value]:
    """What a special register holds in each lane."""

    def run(batch: Batch) -> Value:
        nowhere = np.zeros((1,) * len(batch.lanes), dtype=np.int64)
        thread = nowhere if batch.threads is None else batch.threads
        value = special_registers(batch.ids, batch.execution.grid, thread, info.threads, info.warp_size)[name]
        if type(value) is not np.ndarray:
            return wrap(int(value), info.ty.bits)
        dtype = np.int32 if info.ty.bits == 32 else np.int64
        return from_lane_array(value.astype(np.uint64).astype(dtype).astype(np.int64))

    return run


@op("tt.extern_elementwise", flops=1, unit="special", tells_threads=_tells_threads)
def _extern(info: OpInfo) -> Callable[..., Value]:
    symbol = str(info.attrs.get("symbol", ""))
    register = register_of(symbol)
    if register is not None and register in KNOWN_REGISTERS and not info.operand_types:
        return _special_register(info, register)
    found = function_of(symbol)
    if found is None:
        raise UnsupportedOpError(f"kernel {info.kernel}: device function {symbol} is not supported\n  at {info.loc}")
    function: Callable[..., Tensor] = found
    types = info.operand_types
    ty = info.ty

    def run(batch: Batch, *xs: Any) -> Value:
        tensors = []
        uniform = True
        for x, t in zip(xs, types, strict=True):
            if t.is_int:
                x = dense_int(x, batch.lanes, t.shape, t.dtype)
            if type(x) is Tensor:
                uniform = False
            else:
                x = torch.full((1,) * (len(batch.lanes) + len(t.shape)), x, dtype=t.dtype)
            tensors.append(x)
        out = function(*tensors)
        if out.dtype is not ty.dtype:
            out = (out != 0) if ty.elem == "i1" else out.to(ty.dtype)
        if uniform and not ty.is_int:
            return float(out.reshape(-1)[0].to(torch.float64))
        return out

    return run
