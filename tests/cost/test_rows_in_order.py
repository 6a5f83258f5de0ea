"""Sorts, selections, scans, draws, factorisations of many matrices and recurrent layers, beside readings of an H100 (80GB HBM3,
torch 2.11, between events where kernels are longer than their launches)."""

from __future__ import annotations

import pytest

from kernbench.cost.devices import resolve_device
from kernbench.cost.op_costs import OpCosts
from kernbench.cost.op_estimates import estimate_op
from kernbench.cost.operands import Operand
from kernbench.cost.operators import find
from kernbench.cost.recurrent_shapes import Recurrence, packed, recurrent_launches

H100 = resolve_device("h100_sxm")

READINGS = [
    ("sort", [(64, 128256)], "float32", 707.7),
    ("sort", [(64, 128256)], "int64", 1213.5),
    ("sort", [(1, 10_000_000)], "float32", 595.3),
    ("sort", [(1, 10_000_000)], "int64", 1197.8),
    ("sort", [(32768, 256)], "float32", 780.0),
    ("sort", [(16384, 2048)], "bfloat16", 681.7),
    ("argsort", [(16384,)], "int64", 81.9),
    ("unique2", [(64, 128256)], "int64", 807.9),
    ("unique2", [(32768, 256)], "int64", 737.7),
    ("topk", [(32768, 256)], "float32", 575.0),
    ("topk", [(1, 10_000_000)], "float32", 263.4),
    ("topk", [(16384, 2048)], "bfloat16", 426.6),
    ("cumsum", [(64, 128256)], "float32", 209.2),
    ("cumsum", [(8, 1_000_000)], "float32", 1535.0),
    ("cumsum", [(512, 32768)], "bfloat16", 190.1),
    ("cumsum", [(4096, 32000)], "bfloat16", 669.2),
    ("sum.dim_IntList", [(4, 16, 64, 1024, 16)], "float32", 344.1),
    ("max.dim", [(16, 128, 1024, 20)], "float32", 259.7),
    ("linalg_cholesky_ex", [(64, 512, 512)], "float32", 1212.6),
    ("linalg_cholesky_ex", [(16, 2048, 2048)], "float32", 8093.1),
    ("linalg_lu_factor_ex", [(64, 512, 512)], "float32", 5359.6),
    ("linalg_lu_factor_ex", [(16, 2048, 2048)], "float32", 62648.5),
    ("linalg_lu_factor_ex", [(4096, 4096)], "float32", 12172.3),
    ("linalg_inv_ex", [(64, 512, 512)], "float32", 7728.8),
    ("linalg_inv_ex", [(16, 2048, 2048)], "float32", 76423.8),
    ("linalg_eigh", [(64, 512, 512)], "float32", 930486.0),
    ("linalg_eigh", [(512, 512)], "float32", 15053.9),
    ("linalg_eigh", [(1024, 32, 32)], "float32", 812.0),
    ("linalg_svd", [(64, 512, 512)], "float32", 1183763.9),
]


@pytest.mark.parametrize(("name", "shapes", "dtype", "microseconds"), READINGS)
def test_as_on_an_h100(name, shapes, dtype, microseconds) -> None:
    outputs = [shapes[0][:-1]] if name.startswith(("sum", "max")) else [shapes[0]]
    found = estimate_op(name, shapes, dtype, H100, outputs=outputs)
    assert found.seconds * 1e6 == pytest.approx(microseconds, rel=0.35)


def test_a_scan_along_another_dimension_is_bound_by_bytes() -> None:
    """4 x 16 x 64 x 16384 numbers along 64: 220 us; with 64 neighbours beside each other it is steps that take the time."""
    x = ((64, 64, 16384), "float32")
    outer = OpCosts(H100).of("cumsum", (x,), (x,), layout="outer").seconds
    inner = OpCosts(H100).of("cumsum", (((64 * 64, 16384), "float32"),), (((64 * 64, 16384), "float32"),)).seconds
    assert outer == pytest.approx(220e-6, rel=0.15)
    assert inner > 1.5 * outer


def _layer(kind: str, batch: int, steps: int, units: int, layers: int, sides: int, dtype: str = "float32"):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    given = [((steps, batch, units), dtype)]
    for layer in range(layers):
        for _ in range(sides):
            width = units if not layer else units * sides
            given += [
                ((gates * units, width), dtype),
                ((gates * units, units), dtype),
                *[((gates * units,), dtype)] * 2,
            ]
    state = ((layers * sides, batch, units), dtype)
    return [*given, *[state] * (2 if kind == "LSTM" else 1)]


@pytest.mark.parametrize(
    ("kind", "of", "dtype", "microseconds"),
    [  # in a graph, without the host
        ("LSTM", (20, 35, 650, 2, 1), "float32", 858.8),
        ("LSTM", (512, 20, 1024, 1, 1), "float32", 909.7),
        ("LSTM", (1, 256, 128, 1, 1), "float32", 465.3),
        ("LSTM", (64, 128, 512, 1, 1), "bfloat16", 880.6),
        ("GRU", (32, 400, 128, 1, 2), "float32", 650.2),
        ("RNN", (64, 100, 256, 1, 1), "float32", 247.6),
    ],
)
def test_recurrent_layers_as_on_an_h100(kind, of, dtype, microseconds) -> None:
    given = _layer(kind, *of, dtype=dtype)
    found = OpCosts(H100).of("_cudnn_rnn", tuple(given), (given[0],), flag=True).seconds
    assert found * 1e6 == pytest.approx(microseconds, rel=0.5)


def test_recurrent_layers_by_their_steps() -> None:
    given = [Operand.of(*each) for each in _layer("GRU", 16, 100, 256, 2, 2)]
    found = Recurrence.of([each.shape for each in given])
    assert found is not None
    assert (found.batch, found.steps, found.rows) == (16, 100, 1600)
    assert found.layers == ((3, 256, 256, 256),) * 2 + ((3, 512, 256, 256),) * 2
    flops = sum(2 * b * m * n * k for b, m, n, k in found.products(gradient=False))
    assert flops == 2 * 1600 * 3 * 256 * (2 * (256 + 256) + 2 * (512 + 256))
    assert recurrent_launches(False, given, []) == 4 * (1 + 2 * 100)
    rows = Operand.of((1600, 256), "float32")
    longer = Recurrence.of([packed(rows, 250).shape, *(each.shape for each in given[1:])])
    assert longer is not None
    assert (longer.batch, longer.steps) == (16, 250)
    row = find("aten::_cudnn_rnn_backward")
    assert row is not None
    assert row.gradient
