"""How long a torch operation takes: its name, shapes and dtypes say which model to ask.

The one place that knows how an operator's row (:mod:`kernbench.cost.operators`) becomes a duration: programs that are recorded,
and callers by name, get the same answer.

>>> from kernbench.cost.op_estimates import estimate_op
>>> estimate_op("aten::addmm.default", [(4096,), (512, 1024), (1024, 4096)], "float16", "h100_sxm").seconds  # doctest: +SKIP
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod
from typing import Any

from kernbench.cost.attention import attention_time
from kernbench.cost.batch_norms import batch_norm_time
from kernbench.cost.convolution_shapes import Convolution
from kernbench.cost.convolutions import convolution_time
from kernbench.cost.devices import GivenDevice, resolve_device
from kernbench.cost.estimate import Estimate
from kernbench.cost.gemm import gemm_time, kernels_of
from kernbench.cost.grouped import grouped_gemm_time
from kernbench.cost.memory_bound import OPS, start_of, traffic_time
from kernbench.cost.operands import Operand, Operands, Shape, Shapes, everything, nbytes_of
from kernbench.cost.operator import Kind, Model, Operator
from kernbench.cost.operators import find
from kernbench.cost.pools import pool_time
from kernbench.cost.recurrent import recurrent_time
from kernbench.cost.row_kernels import softmax_time, table_gradient_time
from kernbench.cost.rows_in_order import scan_time, selection_time, sort_time
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES

Tensors = tuple[tuple[Shape, Any], ...]
"""Shape and dtype of each tensor."""

CHANNELS_LAST = "channels last"
"""The layout of images whose pixels have their channels beside each other."""

SPREAD = "spread"
"""What is said besides of a convolution whose filters are dilated by more than 8."""

OUTER = "outer"
"""What is said besides of a scan along another dimension than the last."""

OVERLAPS = "overlapping"
"""What is said besides of a pool whose windows overlap."""

_FREE = Estimate(0.0, 0.0, 0.0, "view")
_NO_LAUNCH = (Kind.VIEW, Kind.METADATA, Kind.ALLOCATION)
UNKNOWN = Operator()
"""Of an operator of which nothing is known: every operand is read and every result written, once."""
_PANEL = 64  # columns of a matrix that a factorisation finishes before it goes on with the rest: two launches
_BY_INPUT = ("reduce", "extreme", "indexed", "ranked", "histogram", "folded")
"""Kinds of kernels that pass over what they are given, of which they make less."""
_OVER_ROWS = ("reduce", "extreme", "indexed")
_H100_CLOCK, _H100_PES = 1.83e9, 132
_UNMEASURED = (0.5, 2.0)  # of an estimate by operations, within which the true time is taken to lie


def is_matrix_operation(name: str) -> bool:
    """Whether the matrix engines do it: a product, a convolution, an attention."""
    row = find(name)
    return row is not None and row.uses_matrix_engines


def estimate_op(
    name: str,
    shapes: Shapes,
    dtype: object,
    device: GivenDevice,
    *,
    outputs: Shapes = (),
    causal: bool = False,
    exact: bool = False,
) -> Estimate:
    """How long one operation takes on a device, its operands warm.

    Args:
        name: as torch calls it, with or without namespace and overload (``"aten::add.Tensor"``, ``"add_"``).
        shapes: of its tensor arguments, in order.
        dtype: of them and of its results.
        device: shipped name, YAML path or DeviceSpec.
        outputs: shapes of its results, where known; without them the largest argument stands for the result.
        causal: of an attention: the later half of the keys is skipped.
        exact: of a product in eight bits: its sums are kept in 32 bits throughout (``use_fast_accum=False``).

    Returns:
        An :class:`Estimate`; an operation that is not known is counted by its bytes.

    Raises:
        ConfigError: unknown device.
    """
    given, made = (tuple(Operand.of(shape, dtype) for shape in each) for each in (shapes, outputs))
    return estimate_row(find(name) or UNKNOWN, given, made, resolve_device(device), causal or exact)


@lru_cache(1 << 14)
def estimate_row(
    row: Operator, given: tuple[Operand, ...], made: tuple[Operand, ...], device: DeviceSpec, flag: bool,
    cold: bool = False,
) -> Estimate:  # fmt: skip
    """The same by an operator's row.

    ``flag``: an attention is causal; a product in eight bits is exact; one of fp32 may be computed in TF32.
    """
    if row.kind in _NO_LAUNCH or not (given or made):
        return _FREE
    model = _MODELS.get(row.model)
    found = None if model is None else model(row, given, made, device, flag)
    if found is None:
        found = _by_traffic(row, given, made, device, flag, cold)
    further = row.count_launches(given, made) - 1
    return _after(found, start_of(device, False) * further) if further > 0 else found


def _by_traffic(
    row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool, cold: bool = False
) -> Estimate:
    of_input = max(given, key=lambda operand: prod(operand.shape), default=None)
    of_result = max(made, key=lambda operand: prod(operand.shape), default=None)
    whole = of_result or of_input
    assert whole is not None
    pace = row.pace
    if pace in _BY_INPUT:
        whole = of_input or whole
        made = made or [Operand((), whole.format)]
        pace = _reduction_pace(pace, whole.shape, made[0].shape)
    elif pace == "pointwise":
        pace = _pointwise_pace(given, made, whole, row.lists)
    elif row.kind is Kind.TRANSFER and made and given and ITEM_BYTES[given[-1].format] < ITEM_BYTES[made[0].format]:
        pace = "mixed"  # values become wider; becoming narrower, they are copied as fast as others [H]
    moved = (row.traffic or everything)(given, made or [whole])
    kind = OPS[pace]
    rows: Shape = whole.shape
    results = prod(made[0].shape) if made else 0
    if results and pace == "reduce_columns":  # dimensions that are left are one row, however many they are
        rows = (ceil(prod(whole.shape) / results), results)
    elif results and pace in _OVER_ROWS and not _keeps_last(whole.shape, made[0].shape):
        rows = (results, ceil(prod(whole.shape) / results))  # what one result is of, in however many dimensions it lies
    if kind.by_element:
        moved *= max(1.0, 4 * prod(whole.shape) / max(whole.nbytes, 1))
    return traffic_time(device, kind, rows, moved, cold=cold)


def _keeps_last(shape: Shape, result: Shape) -> bool:
    """Whether a reduction leaves the innermost dimension: then results lie beside each other, and are summed side by side."""
    return bool(result) and result[-1] == shape[-1] > 1


def _reduction_pace(pace: str, shape: Shape, result: Shape) -> str:
    """Which kernel a sum has: to one number, over rows, or over columns, whose results are beside each other."""
    if pace != "reduce":
        return pace
    if prod(result) <= 1:
        return "reduce_all"
    kept = [size for size in result if size > 1]
    return "reduce_columns" if kept == list(shape[-len(kept) :]) != list(shape[: len(kept)]) else pace


def _pointwise_pace(given: Operands, made: Operands, whole: Operand, lists: bool) -> str:
    """Which kernel a pointwise operation has: vectors are loaded where all operands are as the result is."""
    size = prod(whole.shape)
    if not lists:
        tensors = [each for each in given if prod(each.shape) > 1]
        if any(prod(each.shape) < size for each in tensors):
            return "strided"
        if len({each.format for each in tensors}) > 1:
            return "mixed"
    read, written = (sum(prod(each.shape) == size for each in side) for side in (given, made))
    return "binary" if read > max(written, 1) else "unary" if given else "fill"


def _by_products(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate | None:
    assert row.products is not None
    products = row.products([operand.shape for operand in given], [operand.shape for operand in made])
    if not products or any(min(dims) < 1 for dims in products):
        return None
    multiplied = [given[at] for at in row.multiplied if at < len(given)]
    dtype = engine_format(multiplied)
    if flag and dtype == "fp32":
        dtype = "tf32"
    if row.recurs:
        return recurrent_time(device, given, dtype, gradient=row.gradient)
    if row.convolves and not multiplied[0].complex:
        return _by_convolution(row, given, made, device, dtype)
    stored = made[0].format if made and not made[0].complex else None
    factor = 4 if multiplied[0].complex else 1  # a product of complex numbers is four of their parts
    packed = multiplied[0].values if dtype == "fp4" else 1
    out = _storable(stored)
    added = row.adds and bool(made) and given[0].shape == made[0].shape  # a row of them stays in registers
    parts = []
    for (batch, m, n, k), count in Counter(products).items():
        if row.groups:
            found = grouped_gemm_time(device, batch, m, n, k * packed, dtype=dtype, out_dtype=out)
        else:
            found = gemm_time(device, m, n, k * packed, dtype=dtype, batch=batch, out_dtype=out, accumulate=added)
        parts.append(_times(found, count * factor))
    found = parts[0] if len(parts) == 1 else _times(parts[0], sum(part.seconds for part in parts) / parts[0].seconds)
    if flag and dtype == "fp8" and found.algorithm == "compute":
        found = _times(found, kernels_of(device).exact_sums)
    return _narrower(found, multiplied, made, dtype, device, products)


def _by_convolution(row: Operator, given: Operands, made: Operands, device: DeviceSpec, dtype: str) -> Estimate | None:
    """``image, weight``; or ``gradient, image, weight``, of which wanted gradients have more than two dimensions."""
    shapes = [operand.shape for operand in given]
    image, weight = shapes[row.gradient : row.gradient + 2]
    result = shapes[0] if row.gradient else made[0].shape
    what = Convolution.of(image, weight, result, row.channels_last, row.spread)
    if what is None:
        return None
    wanted = ["result"]
    if row.gradient:
        found = [name for name, each in zip(("image", "weight"), made, strict=False) if len(each.shape) > 2]
        wanted = found or ["image", "weight"]
    return convolution_time(device, what, dtype, tuple(wanted))


def _narrower(
    found: Estimate, multiplied: Operands, made: Operands, dtype: str, device: DeviceSpec, products: Sequence[Any]
) -> Estimate:
    """A product that waits for its memory waits less where an operand is stored in fewer bits than it is multiplied in."""
    assumed = sum(prod(operand.shape) * operand.values * ITEM_BYTES[dtype] for operand in multiplied)
    if found.algorithm != "memory" or nbytes_of(multiplied) >= assumed:
        return found
    operations = 2.0 * sum(prod(dims) for dims in products)
    results = nbytes_of(made)
    least = max(operations / device.matrix_rate(dtype), (nbytes_of(multiplied) + results) / device.hbm_copy_bandwidth)
    share = (nbytes_of(multiplied) + results) / (assumed + results)
    return _times(found, max(share, min(1.0, (least + device.launch.latency) / found.seconds)))


def _by_attention(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate | None:
    if len(given) <= row.multiplied[-1]:
        return None
    seen = [given[at] for at in row.multiplied]
    shapes, dtype = [_batched(operand.shape, given, row) for operand in seen], engine_format(seen)
    if any(len(shape) != 4 or min(shape) < 1 for shape in shapes):
        return None
    tokens, heads = row.sequence, 3 - row.sequence
    query, key, value = shapes[:3]
    return attention_time(
        device, query[0], query[heads], query[tokens], key[tokens], query[3], kv_heads=key[heads], causal=flag, dtype=dtype,
        gradient=row.gradient, variant=row.variant, value_dim=value[3],
    )  # fmt: skip


def _batched(shape: Shape, given: Operands, row: Operator) -> Shape:
    """Sequences that are packed one after the other, ``[tokens, heads, width]``, as a batch of equal ones.

    Their boundaries, one more than sequences, are the first vector of integers behind the operands.
    """
    if len(shape) != 3 or row.sequence != 1:
        return shape
    after = given[row.multiplied[-1] + 1 :]
    bounds = next((o.shape[0] for o in after if len(o.shape) == 1 and o.format.startswith("int")), 2)
    return (max(bounds - 1, 1), ceil(shape[0] / max(bounds - 1, 1)), *shape[1:])


def _by_batch(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate | None:
    if device.target.backend != "cuda" or len(given[0].shape) < 2:
        return None
    return batch_norm_time(
        device, given[row.gradient and len(given) > 1], gradient=row.gradient, evaluated=flag or row.evaluated,
        channels_last=row.channels_last,
    )  # fmt: skip


def _by_pool(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate:
    return pool_time(
        device, row.variant, given, made, gradient=row.gradient, channels_last=row.channels_last, overlaps=row.overlaps
    )


def _by_table(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate | None:
    return table_gradient_time(device, given, made) if made and len(given) > 1 else None


def _by_rows(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate:
    return softmax_time(device, given, made, gradient=row.gradient)


def _by_sort(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate | None:
    return None if device.target.backend != "cuda" else sort_time(device, given, flat=row.flat)


def _by_selection(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate | None:
    return None if device.target.backend != "cuda" else selection_time(device, given)


def _by_scan(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate | None:
    return scan_time(device, given, made, outer=row.outer)


def _by_work(row: Operator, given: Operands, made: Operands, device: DeviceSpec, flag: bool) -> Estimate:
    """Operations at a share of the peak, no faster than the bytes or one column after the other, and a launch or two for each
    panel."""
    assert row.flops is not None
    shapes = [operand.shape for operand in given]
    flops = row.flops(shapes, [operand.shape for operand in made]) * (4 if given[0].complex else 1)
    dtype = engine_format(given)
    rate = (device.matrix_rate(dtype) if row.matrix else device.vector_rate(dtype)) * row.share
    side = max((min(shape[-2:]) for shape in shapes if len(shape) > 1), default=0) if row.panels else 0
    steps = 2 * ceil(side / _PANEL)
    moved = everything(given, made)
    computing, moving = flops / rate, moved / device.hbm_copy_bandwidth
    waiting = side * row.column * _H100_CLOCK / device.clock
    seconds = start_of(device, False) * max(steps, 1) + max(computing + waiting, moving)
    count = max((prod(shape[:-2]) for shape in shapes if len(shape) > 2), default=1)
    if row.batched is not None and count > 1 and moved:
        pace = _H100_CLOCK / device.clock
        if row.batched.alone and side > row.batched.alone:
            one = max(computing / count + waiting, moving / count)
            seconds = count * (start_of(device, False) * max(steps, 1) + one)
        elif row.batched.rate:
            lanes = _H100_PES / device.pes
            seconds = max(moving, pace * (side * row.batched.column + lanes * flops / row.batched.rate))
    low, high = (seconds * share for share in _UNMEASURED)
    return Estimate(
        seconds, low, high, "compute" if computing > moving else "memory", "", moved / seconds, moved / seconds
    )


_MODELS: Mapping[Model, Callable[[Operator, Operands, Operands, DeviceSpec, bool], Estimate | None]] = {
    Model.ROWS: _by_rows,
    Model.PRODUCT: _by_products,
    Model.ATTENTION: _by_attention,
    Model.BATCH_NORM: _by_batch,
    Model.POOL: _by_pool,
    Model.TABLE_GRADIENT: _by_table,
    Model.SORT: _by_sort,
    Model.SELECT: _by_selection,
    Model.SCAN: _by_scan,
    Model.WORK: _by_work,
}


def engine_format(multiplied: Operands) -> str:
    """The format whose engine multiplies: the widest float of the operands, else the widest integer.

    Integers without an engine are as wide floats.
    """
    names = [operand.format for operand in multiplied]
    floats = [name for name in names if not name.startswith("int")]
    name = max(floats or names, key=lambda each: ITEM_BYTES[each], default="fp32")
    return {"int64": "fp64", "int32": "fp32", "int16": "fp16"}.get(name, name)


def _storable(name: str | None) -> str | None:
    return {"int64": "fp64", "int32": "fp32", "int16": "fp16"}.get(name or "", name)


def _times(found: Estimate, factor: float) -> Estimate:
    if factor == 1:
        return found
    return replace(found, seconds=found.seconds * factor, low=found.low * factor, high=found.high * factor)


def _after(found: Estimate, seconds: float) -> Estimate:
    """An estimate with ``seconds`` of further launches, as sure as itself."""
    return _times(found, (found.seconds + seconds) / found.seconds)
