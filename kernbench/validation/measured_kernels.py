"""Measured tables of kernels: what a row says was run, and the model that estimates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.cost.attention import attention_time
from kernbench.cost.devices import GivenDevice, resolve_device
from kernbench.cost.estimate import Estimate, Floats
from kernbench.cost.gemm import gemm_time, kernels_of
from kernbench.cost.grouped import grouped_gemm_time
from kernbench.cost.memory_bound import memory_bound_time, traffic_of
from kernbench.errors import ConfigError
from kernbench.topology.dtypes import ITEM_BYTES, canonical_dtype
from kernbench.validation.comparisons import Estimator, MeasuredTable, comparable
from kernbench.validation.manifests import Table, gemm_shape, number, operand_dtype, result_dtype, seconds_of
from kernbench.validation.measured_on import table_device

Rows = Sequence[Mapping[str, str]]
Times = tuple[Floats, Floats, Floats]

HEATED = 7.5e-3
"""Seconds of one row's products without a pause, from which on they are taken to run at the sustained clock: read off the
tables of B200, whose rows follow one another."""


def _gemm(table: Table, path: Path, rows: Rows, directory: Path) -> MeasuredTable:
    shapes = np.array([gemm_shape(row, path) for row in rows])
    flops = 2.0 * shapes.prod(axis=1)
    texts = np.array([row.get("dtype") or table.dtype or "float16" for row in rows])
    m, n, k, batch = shapes.T
    moved = 2.0 * batch * (m * k + k * n + m * n)
    points = [(size, seconds_of(row, path, table, flops=f)) for size, row, f in zip(moved, rows, flops, strict=True)]

    def build(keep: Any) -> Estimator:
        return lambda device: _gemm_times(device, shapes[keep], texts[keep])

    return comparable(table, path, points, table_device(table, directory), build)


def _gemm_times(device: GivenDevice, shapes: Any, texts: Any) -> Times:
    seconds, low, high = (np.empty(len(shapes)) for _ in range(3))
    for text in np.unique(texts):
        at, dtype, out = texts == text, operand_dtype(str(text)), result_dtype(str(text))
        m, n, k, batch = shapes[at].T
        found = gemm_time(device, m, n, k, dtype=dtype, batch=batch, out_dtype=out)
        seconds[at], low[at], high[at] = found.seconds, found.low, found.high
    return seconds, low, high


def _sustained_gemm(table: Table, path: Path, rows: Rows, directory: Path) -> MeasuredTable:
    """Each row's product ``repeats`` times without a pause, one row after the other."""
    shapes = np.array([gemm_shape(row, path) for row in rows])
    kinds = np.array([f"{row.get('out_dtype') or ''}/{row.get('accumulate') == 'True':d}" for row in rows])
    m, n, k, batch = shapes.T
    moved = 2.0 * batch * (m * k + k * n + m * n)
    flops = 2.0 * shapes.prod(axis=1)
    points = [(size, seconds_of(row, path, table, flops=f)) for size, row, f in zip(moved, rows, flops, strict=True)]

    def build(keep: Any) -> Estimator:
        def estimate(device: GivenDevice) -> Times:
            seconds, low, high = (np.empty(len(keep)) for _ in range(3))
            for kind in np.unique(kinds[keep]):
                at = kinds[keep] == kind
                m, n, k, batch = shapes[keep][at].T
                out, _, accumulate = str(kind).partition("/")
                found = gemm_time(
                    device, m, n, k, dtype=table.dtype or "bf16", batch=batch, out_dtype=out or None,
                    accumulate=accumulate == "1",
                )  # fmt: skip
                hot = (found.seconds * table.repeats >= HEATED) & (found.algorithm == "compute")
                slower = 1 + kernels_of(resolve_device(device)).sustained * hot
                seconds[at], low[at], high[at] = (each * slower for each in (found.seconds, found.low, found.high))
            return seconds, low, high

        return estimate

    return comparable(table, path, points, table_device(table, directory), build)


def _grouped_shape(row: Mapping[str, str], path: Path) -> tuple[float, float, float, float, float, bool]:
    """Groups, rows, columns and depth of a row's products, bytes of an element of the result, and whether it is added to.

    ``M`` tokens, ``N`` outputs and ``K`` inputs of a layer, whose gradients multiply them in another order.
    """
    groups, m, n, k = (number(row, name, path) for name in ("ng", "M", "N", "K"))
    stage = row.get("stage", "fwd")
    if stage == "bwd_grad_w":
        return groups, n, k, m, ITEM_BYTES[canonical_dtype(row.get("main_grad_dtype") or "bf16")], True
    return (groups, m, n, k, 2, False) if stage == "fwd" else (groups, m, k, n, 2, False)


def _grouped_gemm(table: Table, path: Path, rows: Rows, directory: Path) -> MeasuredTable:
    """Products of groups, at the sustained clock."""
    found = [_grouped_shape(row, path) for row in rows]
    points = []
    for row, (groups, m, n, k, out, added) in zip(rows, found, strict=True):
        moved = groups * (2 * (m * k + k * n) + out * (1 + added) * m * n)
        points.append((moved, seconds_of(row, path, table, flops=2 * groups * m * n * k)))
    dtype = table.dtype or "bf16"

    def build(keep: Any) -> Estimator:
        kept = [found[index] for index in keep]

        def estimate(device: GivenDevice) -> Times:
            each = [
                grouped_gemm_time(
                    device, groups, m, n, k, dtype=dtype, out_dtype="fp32" if out == 4 else None, accumulate=added,
                    issue=table.issue_us * 1e-6, slowdown=kernels_of(resolve_device(device)).sustained,
                )
                for groups, m, n, k, out, added in kept
            ]  # fmt: skip
            return _columns(each)

        return estimate

    return comparable(table, path, points, table_device(table, directory), build)


def _attention(table: Table, path: Path, rows: Rows, directory: Path) -> MeasuredTable:
    """Causal attention; rates count all pairs of tokens, those that the mask hides too, and of a gradient five products."""
    names = ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
    calls = [tuple(int(number(row, name, path)) for name in names) for row in rows]
    points = []
    for row, (batch, tokens, heads, kv_heads, width, values) in zip(rows, calls, strict=True):
        flops = (5.0 if table.gradient else 2.0) * batch * heads * tokens**2 * (width + values)
        moved = 2.0 * batch * tokens * (heads + kv_heads) * (width + values)
        points.append((moved, seconds_of(row, path, table, flops=flops)))

    def build(keep: Any) -> Estimator:
        kept = [calls[index] for index in keep]

        def estimate(device: GivenDevice) -> Times:
            found = []
            for batch, tokens, heads, kv_heads, width, values in kept:
                one = attention_time(
                    device, batch, heads, tokens, tokens, width, kv_heads=kv_heads, value_dim=values, causal=True,
                    dtype=table.dtype or "bf16", gradient=table.gradient, variant=table.variant,
                )  # fmt: skip
                found.append(one)
            return _columns(found)

        return estimate

    return comparable(table, path, points, table_device(table, directory), build)


def _columns(found: Sequence[Estimate]) -> Times:
    seconds, low, high = zip(*((item.seconds, item.low, item.high) for item in found), strict=True)
    return np.array(seconds), np.array(low), np.array(high)


# What a file's name says of its operation, where neither table nor manifest does.
_OP_IN_NAME = ("softmax", "layernorm", "rmsnorm", "gelu", "silu", "relu", "vecadd", "add", "copy")


def _op(table: Table, row: Mapping[str, str]) -> str:
    named = row.get("op") or table.op or next((op for op in _OP_IN_NAME if op in table.file.lower()), None)
    if named is None:
        raise ConfigError(f"table {table.file}: neither a column nor the manifest's entry says which `op` it is of")
    gated = row.get("gated")
    return named if gated is None else f"{named}/{'gated' if gated == 'True' else 'plain'}"


def _shape(row: Mapping[str, str], path: Path) -> tuple[int, ...]:
    for columns in (("tokens", "dim"), ("M", "N"), ("elements",)):
        if all(column in row for column in columns):
            return tuple(int(number(row, column, path)) for column in columns)
    raise ConfigError(f"table {path} has no shape columns; expected tokens and dim, M and N, or elements")


def _memory_bound(table: Table, path: Path, rows: Rows, directory: Path) -> MeasuredTable:
    calls, points = [], []
    for row in rows:
        op, shape = _op(table, row), _shape(row, path)
        dtype = row.get("dtype") or table.dtype or "float16"
        cold = "triton_us" in row if table.cold is None else table.cold
        calls.append((op, shape, dtype, cold))
        points.append((traffic_of(op, shape, dtype), seconds_of(row, path, table, elements=float(np.prod(shape)))))

    def build(keep: Any) -> Estimator:
        kept = [calls[index] for index in keep]

        def estimate(device: GivenDevice) -> Times:
            return _columns(
                [memory_bound_time(device, op, shape, dtype=dtype, cold=cold) for op, shape, dtype, cold in kept]
            )

        return estimate

    return comparable(table, path, points, table_device(table, directory), build)


LOADS: Mapping[str, Callable[[Table, Path, Rows, Path], MeasuredTable]] = {
    "gemm": _gemm,
    "sustained_gemm": _sustained_gemm,
    "grouped_gemm": _grouped_gemm,
    "attention": _attention,
    "memory_bound": _memory_bound,
}
"""How the rows of each kind become a measured table."""
