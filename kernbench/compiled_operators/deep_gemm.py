"""The kernels of ``deep_gemm``: products of eight and of sixteen bits, of one pair of matrices or of a group of rows each.

A tensor of eight bits has a scale for 128 numbers along the inner dimension, and for one row of the other or for 128, as the
shape of its scales says; scales are float32, or four exponents in an int32 (UE8M0). Sums are in float32, and are rounded once.

The cost is that of the products, sums kept in 32 bits (``MatrixWork``), by the rows that each group has where that is known;
all groups are one kernel. UNVERIFIED against measured kernels of the package's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kernbench.compiled_operators.kernel_table import KernelTable
from kernbench.cost.by_values import CallOperands
from kernbench.cost.matrix_work import MatrixWork

Tensor = torch.Tensor

_TABLE = KernelTable("deep_gemm")
operators, launch = _TABLE.operators, _TABLE.launch

INNER = 128
"""Numbers along the inner dimension that have a scale."""


def plain(stored: Tensor, scales: Tensor | None) -> Tensor:
    """``[.., rows, inner]`` as numbers, in float32."""
    if scales is None:
        return stored.float()
    if scales.dtype == torch.int32:
        scales = torch.exp2(scales.contiguous().view(torch.uint8).float() - 127)
    rows, inner = stored.shape[-2:]
    per = 1 if scales.shape[-2] == rows else INNER
    step = -(-inner // -(-inner // INNER)) if scales.shape[-1] < -(-inner // INNER) else INNER
    spread = scales.repeat_interleave(per, -2)[..., :rows, :].repeat_interleave(step, -1)[..., :inner]
    return stored.float() * spread


def _works(operands: CallOperands, rows: Iterable[int]) -> MatrixWork:
    a, out = operands["a"], operands["out"]
    width, inner = out.shape[-1], a.shape[-1]
    accumulates = "accumulate" in operands and bool(operands["accumulate"])
    narrow = a.format.startswith("fp8")
    return MatrixWork(
        tuple((each, width, inner) for each in rows if each),
        "fp8" if narrow else a.format,
        out.format,
        accumulates,
        narrow,
    )


@_TABLE.kernel(
    "product(Tensor a, Tensor? scales_a, Tensor b, Tensor? scales_b, bool accumulate, Tensor(a!) out)",
    cost=lambda operands: _works(operands, [operands["out"].shape[-2]]),
)
def _product(
    a: Tensor, scales_a: Tensor | None, b: Tensor, scales_b: Tensor | None, accumulate: bool, out: Tensor
) -> None:
    """``a [m, k] @ b[n, k].T``, added to what is there or not."""
    found = plain(a, scales_a) @ plain(b, scales_b).t()
    out.copy_(out.float() + found if accumulate else found)


def _rows_of_groups(operands: CallOperands) -> MatrixWork:
    rows, groups, known = operands["a"].shape[0], operands["b"].shape[0], operands["groups"].known
    return _works(
        operands, [rows // groups] * groups if known is None else [known.count(each) for each in range(groups)]
    )


@_TABLE.kernel(
    "rows_of_groups(Tensor a, Tensor? scales_a, Tensor b, Tensor? scales_b, Tensor groups, Tensor(a!) out)",
    cost=_rows_of_groups,
)
def _of_rows(
    a: Tensor, scales_a: Tensor | None, b: Tensor, scales_b: Tensor | None, groups: Tensor, out: Tensor
) -> None:
    """Each row of ``a [m, k]`` with the matrix of its group, of ``b [groups, n, k]``; of a negative group: zeros."""
    left, right = plain(a, scales_a), plain(b, scales_b)
    out.zero_()
    for group in range(len(b)):
        rows = groups == group
        out[rows] = (left[rows] @ right[group].t()).to(out.dtype)


def _first_rows(operands: CallOperands) -> MatrixWork:
    a, known = operands["a"], operands["counts"].known
    return _works(operands, [min(operands["expected"], a.shape[1])] * a.shape[0] if known is None else known)


@_TABLE.kernel(
    "first_rows(Tensor a, Tensor? scales_a, Tensor b, Tensor? scales_b, Tensor counts, int expected, Tensor(a!) out)",
    cost=_first_rows,
)
def _of_first_rows(
    a: Tensor, scales_a: Tensor | None, b: Tensor, scales_b: Tensor | None, counts: Tensor, expected: int, out: Tensor
) -> None:
    """Of each group the first rows, as many as ``counts`` says: ``a [groups, m, k]``, ``b [groups, n, k]``. Others stay."""
    left, right = plain(a, scales_a), plain(b, scales_b)
    for group, count in enumerate(counts.tolist()):
        out[group, :count] = (left[group, :count] @ right[group].t()).to(out.dtype)


NAMES = {"launch": launch}
"""What the package's functions call."""
