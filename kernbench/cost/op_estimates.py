"""How long a torch operation takes: its name and shapes say which model to ask.

The one place that knows what torch's operations do: programs that are recorded, and who asks by name, get the same answer.

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
from kernbench.cost.memory_bound import ITEM_BYTES, NAMES, OPS, memory_bound_time
from kernbench.cost.work import Cost
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import canonical_dtype

Shape = tuple[int, ...]
Shapes = Sequence[Shape]
Tensors = tuple[tuple[Shape, Any], ...]
"""Shape and dtype of each tensor."""

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


def plain_name(name: str) -> str:
    """An operation's name without namespace, overload and underscores: ``"aten::add_.Tensor"`` is ``"add"``."""
    return name.rsplit("::", 1)[-1].split(".", 1)[0].strip("_")


def is_matrix_operation(name: str) -> bool:
    """Whether the matrix engines do it: a product, a convolution, an attention."""
    plain = plain_name(name).removesuffix("_backward")
    return plain in _GEMMS or "convolution" in plain or plain.startswith(_ATTENTION)


def estimate_op(
    name: str, shapes: Shapes, dtype: str, device: Any, *, outputs: Shapes = (), causal: bool = False
) -> Estimate:
    """How long one operation takes on a device, its operands warm.

    Args:
        name: as torch calls it, with or without namespace and overload (``"aten::add.Tensor"``, ``"add_"``).
        shapes: of its tensor arguments, in order.
        dtype: of its first floating-point argument.
        device: shipped name, YAML path or DeviceSpec.
        outputs: shapes of its results, where known; without them the largest argument stands for the result.
        causal: of an attention: the later half of the keys is skipped.

    Returns:
        An :class:`Estimate`; an operation that is not known counts as an elementwise one over its largest operands.

    Raises:
        ConfigError: unknown device or dtype.
    """
    plain = plain_name(name)
    operands, results = _as_shapes(shapes), _as_shapes(outputs)
    if plain in VIEWS or not (operands or results):
        return _FREE
    return _estimate(plain, operands, results, str(dtype), resolve_device(device), causal)


def _as_shapes(shapes: Shapes) -> tuple[Shape, ...]:
    return tuple(tuple(int(dim) for dim in shape) for shape in shapes)


@lru_cache(1 << 14)
def _estimate(
    plain: str, operands: tuple[Shape, ...], results: tuple[Shape, ...], dtype: str, device: DeviceSpec, causal: bool
) -> Estimate:
    forward = plain.removesuffix("_backward")
    product = _GEMMS.get(plain) or (_convolution(plain, results) if "convolution" in plain else None)
    if product is not None:
        dims = product(operands)
        if dims is not None and min(dims) >= 1:
            batch, m, n, k = dims
            found = gemm_time(device, m, n, k, dtype=_product_dtype(dtype), batch=batch)
            return found if forward == plain else _times(found, 2.0)  # gradients of the input and of the weight
    if plain.startswith(_ATTENTION):
        seen = operands[1:] if forward != plain else operands  # the first is the gradient of the output
        if len(seen) >= 3 and all(len(shape) == 4 for shape in seen[:3]):
            (batch, heads, queries, width), key = seen[0], seen[1]
            if min(batch, heads, queries, key[2], width, key[1]) >= 1:
                found = attention_time(
                    device, batch, heads, queries, key[2], width, kv_heads=key[1], causal=causal,
                    dtype=_product_dtype(dtype),
                )  # fmt: skip
                return found if forward == plain else _times(found, _ATTENTION_BACKWARD)
    if plain.startswith(_LISTS):
        moved = sum(map(prod, operands)) + sum(map(prod, results or operands))
        return memory_bound_time(device, "unary", (-(-moved // 2),), dtype=dtype)
    of_input, of_result = max(operands, key=prod, default=()), max(results, key=prod, default=())
    kind = _kind(plain, operands, of_result if results else of_input)
    whole = of_input if kind == "reduce" or not results else of_result
    return memory_bound_time(device, kind, whole, dtype=dtype)


def _product_dtype(dtype: str) -> str:
    """The format whose engine multiplies: integers without one are as wide floats."""
    name = canonical_dtype(dtype)
    return {"int64": "fp64", "int32": "fp32", "int16": "fp16"}.get(name, name)


def _times(found: Estimate, factor: float) -> Estimate:
    return Estimate(
        found.seconds * factor, found.low * factor, found.high * factor, found.algorithm, found.protocol,
        found.algbw, found.busbw,
    )  # fmt: skip


def _kind(plain: str, operands: Shapes, result: Shape) -> str:
    for candidate in (plain, plain.removeprefix("native_"), plain.removesuffix("_backward")):
        kind = _TORCH.get(candidate) or NAMES.get(candidate) or (candidate if candidate in OPS else None)
        if kind is not None:
            return kind
    if not operands:
        return "fill"
    return "binary" if sum(prod(shape) == prod(result) for shape in operands) > 1 else "unary"


class OpCosts:
    """What a stream of one device is occupied for by each operation: estimates, kept per operation, shapes and dtypes.

    An estimate is of a launch that the device waits for. On a stream the launch's latency passes before the operation
    may begin, and is hidden when something runs meanwhile; so it is no part of the time that the stream is occupied for
    (ADR 0038). A kernel that does nothing still occupies it for :data:`LEAST`.

    Args:
        device: the SIP's description.
    """

    def __init__(self, device: DeviceSpec) -> None:
        self._device = device
        self._known: dict[Any, Cost] = {}
        self._known_flat: dict[tuple[Any, ...], Cost] = {}

    def of(self, name: str, inputs: Tensors, outputs: Tensors, *, causal: bool = False) -> Cost:
        """The cost of an operation called ``name``; ``inputs``, ``outputs``: ``(shape, dtype)`` of each tensor.

        A dtype is whatever ``str`` names: torch's own, or a name.
        """
        key = (name, inputs, outputs, causal)
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = self._estimate(name, inputs, outputs, causal)
        return cost

    def of_tensors(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], causal: bool = False) -> Cost:
        """As :meth:`of`, of what has a ``shape`` and a ``dtype``: for those who ask at every operation."""
        key: list[Any] = [name, causal, len(inputs)]
        for tensor in inputs:
            key += (tensor.shape, tensor.dtype)
        for tensor in outputs:
            key += (tensor.shape, tensor.dtype)
        flat = tuple(key)
        cost = self._known_flat.get(flat)
        if cost is None:
            given, made = (tuple([(each.shape, each.dtype) for each in tensors]) for tensors in (inputs, outputs))
            cost = self._known_flat[flat] = self._estimate(name, given, made, causal)
        return cost

    def _estimate(self, name: str, inputs: Tensors, outputs: Tensors, causal: bool) -> Cost:
        found = estimate_op(
            name, [shape for shape, _ in inputs], _widest([dtype for _, dtype in (*inputs, *outputs)]), self._device,
            outputs=[shape for shape, _ in outputs], causal=causal,
        )  # fmt: skip
        nbytes = sum(prod(shape) * _item_bytes(dtype) for shape, dtype in (*inputs, *outputs))
        kind = "gemm" if is_matrix_operation(name) else "math"
        return Cost.on_stream(found, self._device, kind=kind, nbytes=int(nbytes))


def _format(dtype: Any) -> str:
    """The number format of a dtype; those that descriptions do not list count as the widest float."""
    try:
        return canonical_dtype(dtype)
    except ValueError:
        return "fp64"


def _item_bytes(dtype: Any) -> float:
    return ITEM_BYTES[_format(dtype)]


def _widest(dtypes: Sequence[Any]) -> str:
    """The format that an operation computes in: its widest float, else its widest integer."""
    names = [_format(dtype) for dtype in dtypes]
    floats = [name for name in names if not name.startswith("int")]
    return max(floats or names, key=lambda name: ITEM_BYTES[name], default="fp32")


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
    "embedding": "copy",
    "index_select": "copy",
    "gather": "copy",
    "index": "copy",
    "rand": "fill",
    "randint": "fill",
    "arange": "fill",
    "uniform": "fill",
    "normal": "fill",
    "bernoulli": "fill",
    "max": "reduce",
    "min": "reduce",
    "argmax": "reduce",
    "norm": "reduce",
}
_ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention")
_ATTENTION_BACKWARD = 2.5  # five products instead of two
_LISTS = ("foreach", "fused_adam", "fused_sgd", "amp_foreach")  # one kernel over all tensors of a list

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


def _convolution(plain: str, results: Shapes) -> Callable[[Shapes], Dims | None]:
    """A convolution as the product that its kernel computes: pixels of the result x output channels x filter."""

    def dims(shapes: Shapes) -> Dims | None:
        # backward: the gradient of the result, the input, the weight; forward: the input, the weight
        backward = plain.endswith("_backward")
        if len(shapes) < 2 + backward:
            return None
        weight = shapes[2 if backward else 1]
        result = shapes[0] if backward else next(iter(results), ())
        if len(weight) < 3 or len(result) < 3:
            return None
        return 1, prod(result) // max(result[1], 1), weight[0], prod(weight[1:])

    return dims


_GEMMS: Mapping[str, Callable[[Shapes], Dims | None]] = {
    **dict.fromkeys(("mm", "matmul", "bmm", "mv", "dot", "rmatmul"), _of(0)),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "addmv"), _of(1)),
    "linear": _linear,
}
