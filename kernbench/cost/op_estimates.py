"""How long a recorded torch operation takes: its name and shapes say which model to ask.

>>> from kernbench.cost.op_estimates import estimate_op
>>> estimate_op("aten::addmm.default", [(4096,), (512, 1024), (1024, 4096)], "float16", "h100_sxm").seconds  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from kernbench.cost.attention import attention_time
from kernbench.cost.devices import resolve_device
from kernbench.cost.estimate import Estimate
from kernbench.cost.gemm import gemm_time
from kernbench.cost.memory_bound import NAMES, OPS, memory_bound_time
from kernbench.topology.device import DeviceSpec

Shape = tuple[int, ...]
Shapes = Sequence[Shape]

# Operations that launch no kernel: they only describe memory that is there.
VIEWS = frozenset(
    [
        "view",
        "reshape",
        "expand",
        "transpose",
        "t",
        "permute",
        "squeeze",
        "unsqueeze",
        "slice",
        "select",
        "narrow",
        "split",
        "chunk",
        "unbind",
        "detach",
        "alias",
        "as_strided",
        "view_as",
        "unflatten",
        "flatten",
        "movedim",
        "swapaxes",
        "diagonal",
        "empty",
        "empty_like",
        "empty_strided",
        "numpy_T",
    ]
)
_FREE = Estimate(0.0, 0.0, 0.0, "view")


def estimate_op(name: str, shapes: Shapes, dtype: str, device: Any) -> Estimate:
    """How long one operation takes on a device, its operands warm.

    Args:
        name: as torch calls it, with or without namespace and overload (``"aten::add.Tensor"``, ``"add_"``).
        shapes: of its tensor arguments, in order.
        dtype: of its first floating-point argument.
        device: shipped name, YAML path or DeviceSpec.

    Returns:
        An :class:`Estimate`; an operation that is not known counts as an elementwise one over its largest operands.

    Raises:
        ConfigError: unknown device or dtype.
    """
    plain = name.rsplit("::", 1)[-1].split(".", 1)[0].strip("_")
    operands = tuple(tuple(int(dim) for dim in shape) for shape in shapes)
    if plain in VIEWS or not operands:
        return _FREE
    return _estimate(plain, operands, str(dtype), resolve_device(device))


@lru_cache(1 << 14)
def _estimate(plain: str, operands: tuple[Shape, ...], dtype: str, device: DeviceSpec) -> Estimate:
    product = _GEMMS.get(plain)
    if product is not None:
        dims = product(operands)
        if dims is not None and min(dims) >= 1:
            batch, m, n, k = dims
            return gemm_time(device, m, n, k, dtype=dtype, batch=batch)
    if plain in _ATTENTION and len(operands) >= 3 and all(len(shape) == 4 for shape in operands[:3]):
        (batch, heads, queries, width), key = operands[0], operands[1]
        return attention_time(device, batch, heads, queries, key[2], width, kv_heads=key[1], dtype=dtype)
    result = max(operands, key=prod)
    return memory_bound_time(device, _kind(plain, operands, result), result, dtype=dtype)


def _kind(plain: str, operands: Shapes, result: Shape) -> str:
    for candidate in (plain, plain.removeprefix("native_"), plain.removesuffix("_backward")):
        kind = _TORCH.get(candidate) or NAMES.get(candidate) or (candidate if candidate in OPS else None)
        if kind is not None:
            return kind
    return "binary" if sum(prod(shape) == prod(result) for shape in operands) > 1 else "unary"


_TORCH: Mapping[str, str] = {
    "layer_norm": "layer_norm",
    "group_norm": "layer_norm",
    "batch_norm": "layer_norm",
    "fused_rms_norm": "rms_norm",
    "softmax": "softmax",
    "safe_softmax": "softmax",
    "cross_entropy": "softmax",
    "nll_loss": "reduce",
    "zeros": "fill",
    "ones": "fill",
    "full": "fill",
    "zero": "fill",
    "fill": "fill",
    "randn": "fill",
    "copy": "copy",
    "to_copy": "copy",
    "cat": "copy",
    "stack": "copy",
    "max": "reduce",
    "min": "reduce",
    "argmax": "reduce",
    "norm": "reduce",
}
_ATTENTION = frozenset(
    [
        "scaled_dot_product_attention",
        "scaled_dot_product_flash_attention",
        "scaled_dot_product_efficient_attention",
        "flash_attention_forward",
    ]
)

Dims = tuple[int, int, int, int]


def _matmul(left: Shape, right: Shape) -> Dims | None:
    """Batch, M, N and K of ``left @ right``; a matrix on the right takes all rows of the left as one."""
    if not left or not right:
        return None
    columns = right[-1] if len(right) > 1 else 1
    depth = left[-1]
    if len(right) <= 2:
        return 1, max(prod(left[:-1]), 1), columns, depth
    rows = left[-2] if len(left) > 1 else 1
    return max(prod(left[:-2]), prod(right[:-2])), rows, columns, depth


def _of(first: int) -> Callable[[Shapes], Dims | None]:
    return lambda shapes: _matmul(shapes[first], shapes[first + 1]) if len(shapes) > first + 1 else None


def _linear(shapes: Shapes) -> Dims | None:
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    return 1, max(prod(shapes[0][:-1]), 1), shapes[1][0], shapes[0][-1]


_GEMMS: Mapping[str, Callable[[Shapes], Dims | None]] = {
    **dict.fromkeys(("mm", "matmul", "bmm", "mv", "dot", "rmatmul"), _of(0)),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "addmv"), _of(1)),
    "linear": _linear,
}
