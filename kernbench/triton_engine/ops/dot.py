"""Matrix products: ``tt.dot`` and ``tt.dot_scaled``.

Lane axes on which only one side depends become rows (or columns) of one large product; axes on which both depend are
batch dimensions. Products of narrow types are exact in fp32 and accumulate in fp32 (fp64 for fp64); the order of
accumulation is the CPU library's, not the tensor core's. int8 products are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.four_bits import unpacked
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.threads import with_threads
from kernbench.triton_engine.values import Value

from .registry import Work, op
from .shape import materialise


def _compute_type(a: Ty, out: Ty) -> torch.dtype:
    if a.is_int:
        # |sum| <= k * 2**14 must be exact: fp32 holds integers below 2**24.
        return torch.float32 if a.shape[-1] <= 512 else torch.float64
    return torch.float64 if out.elem == "f64" or a.elem == "f64" else torch.float32


class _MatrixForm:
    """How the operands of one pair of shapes become matrices, and the product lanes and tiles again.

    ``a`` is ``[lanes, *batch, M, K]``, ``b`` ``[lanes, *batch, K, N]``. Lane axes that both sides vary with are batch
    dimensions, like the tile's own; the others become rows (``a``) and columns (``b``) of one large product.
    """

    __slots__ = ("inverse", "lanes", "left", "left_shape", "order", "right", "right_shape", "shape", "sizes")

    def __init__(self, a: torch.Size, b: torch.Size, nl: int) -> None:
        m, k, n = a[-2], a[-1], b[-1]
        last = len(a) - 1
        tile_batch = range(nl, last - 1)
        both = [i for i in range(nl) if a[i] > 1 and b[i] > 1] + list(tile_batch)
        rows = [i for i in range(nl) if a[i] > 1 and b[i] == 1]
        cols = [i for i in range(nl) if b[i] > 1 and a[i] == 1]
        none = [i for i in range(nl) if a[i] == 1 and b[i] == 1]
        batch_sizes = [a[i] for i in both]
        row_sizes, col_sizes = [a[i] for i in rows], [b[i] for i in cols]
        batch, height, width = prod(batch_sizes), prod(row_sizes) * m, prod(col_sizes) * n
        lead = (batch,) if batch != 1 else ()
        #: a -> [batch, rows..., M, K]; b -> [batch, K, cols..., N]
        self.left = (*none, *cols, *both, *rows, last - 1, last)
        self.right = (*none, *rows, *both, last - 1, *cols, last)
        self.left_shape = (*lead, height, k)
        self.right_shape = (*lead, k, width)
        self.shape = (*lead, height, width)
        #: the joined result: [batch, rows, M, cols, N]
        self.order = (*none, *both, *rows, last - 1, *cols, last)
        self.inverse = tuple([self.order.index(i) for i in range(len(self.order))])
        self.sizes = ([1] * len(none)) + batch_sizes + row_sizes + [m] + col_sizes + [n]
        self.lanes = tuple([max(p, q) for p, q in zip(a[:nl], b[:nl], strict=True)])


_matrix_form = lru_cache(maxsize=512)(_MatrixForm)


def contract(a: Tensor, b: Tensor, nl: int, dtype: torch.dtype, acc: Tensor | None, in_place: bool) -> Tensor:
    """``a @ b (+ acc)`` over lanes: ``a`` is ``[lanes, *batch, M, K]``, ``b`` ``[lanes, *batch, K, N]``.

    Returns ``[lanes, *batch, M, N]``; its storage keeps rows and columns of the joined product together, and ``acc``
    in that form is accumulated into without a copy.
    """
    form = _matrix_form(a.shape, b.shape, nl)
    if acc is not None and tuple(acc.shape[:nl]) != form.lanes:
        # acc varies along lanes that neither side does
        return acc + contract(a, b, nl, dtype, None, False).to(acc.dtype)
    left = _matrix(a.permute(form.left), dtype, form.left_shape)
    right = _matrix(b.permute(form.right), dtype, form.right_shape)
    if acc is not None:
        joined = acc.permute(form.order)
        if in_place and acc.dtype == dtype:
            try:
                flat = joined.view(form.shape)
            except RuntimeError:
                flat = None
            if flat is not None:
                product(left, right, flat, flat)
                return acc
        flat = joined.reshape(form.shape)
        if acc.dtype == dtype:
            out = product(left, right, flat)
        else:
            out = (flat.to(dtype) + product(left, right)).to(acc.dtype)
    else:
        out = product(left, right)
    return out.view(form.sizes).permute(form.inverse)


def _matrix(x: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """``x`` in ``dtype`` as ``shape``, in one pass: row by row, or column by column if it lies in memory so."""
    if x.dtype == dtype:
        return x.reshape(shape)
    strides = x.stride()
    if strides[-2] == 1 and strides[-1] != 1 and _stays_a_matrix(x.shape, strides, shape):
        return x.to(dtype).reshape(shape)
    return x.to(dtype, memory_format=torch.contiguous_format).view(shape)


@lru_cache(maxsize=512)
def _stays_a_matrix(sizes: torch.Size, strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a dense copy of a tensor that keeps the order of its strides can be seen as ``shape``."""
    dims = [i for i, n in enumerate(sizes) if n > 1]
    if any(strides[i] <= 0 for i in dims):
        return False
    dense: dict[int, int] = {}
    step = 1
    for i in sorted(dims, key=lambda i: strides[i]):
        dense[i] = step
        step *= sizes[i]
    left = iter(dims)
    for n in shape:
        before, covered = None, 1
        while covered < n:
            i = next(left)
            if before is not None and dense[before] != dense[i] * sizes[i]:
                return False
            before, covered = i, covered * sizes[i]
    return True


#: Floating-point operations above which a product is worth several threads: about 0.1 ms.
_LARGE = 1 << 23
#: Least rows of a part: the library copies the right side for every part anew.
_PART_ROWS = 256
#: Rows of a part are a multiple of this: the library computes rows in groups, and what is left of a group in another way.
_GROUP_ROWS = 64


def product(left: Tensor, right: Tensor, add: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """``left @ right (+ add)`` of matrices or batches of matrices, written to ``out`` (which may be ``add``) if given.

    Where torch has one thread, a large product of matrices is computed as a batch of parts of its rows, which threads share.
    The parts depend on the shapes alone, and there are never more threads than parts.
    """
    rows = left.shape[-2]
    flops = 2 * left.numel() * right.shape[-1]
    if flops < _LARGE or torch.get_num_threads() > 1:
        return _product(left, right, add, out)
    if left.dim() == 3:
        return with_threads(left.shape[0], flops, lambda: _product(left, right, add, out))
    parts = rows // _PART_ROWS
    if parts < 2:
        return _product(left, right, add, out)
    if out is None:
        out = left.new_empty((rows, right.shape[-1]))
    size = rows // parts // _GROUP_ROWS * _GROUP_ROWS
    whole = parts * size
    cut = lambda x: None if x is None else x[:whole].unflatten(0, (parts, size))  # noqa: E731
    with_threads(
        parts,
        flops,
        lambda: _product(cut(left), right.expand(parts, *right.shape), cut(add), cut(out)),  # type: ignore[arg-type]
    )
    if whole < rows:
        _product(left[whole:], right, None if add is None else add[whole:], out[whole:])
    return out


def _product(left: Tensor, right: Tensor, add: Tensor | None, out: Tensor | None) -> Tensor:
    if add is None:
        return (torch.bmm if left.dim() == 3 else torch.mm)(left, right, out=out)
    return (torch.baddbmm if left.dim() == 3 else torch.addmm)(add, left, right, out=out)


def _work(info: OpInfo) -> Work:
    """Two operations per product; a byte of fp4 holds two numbers."""
    left = info.operand_types[0]
    depth = left.shape[-1] * (2 if info.attrs.get("lhs") == "e2m1" else 1)
    return 2 * info.ty.numel * depth, (left.elem, "tensor")


@op("tt.dot", exchanges=True, inplace=True, product=True, plain_product=True, work=_work)
def _dot(info: OpInfo) -> Callable[..., Value]:
    a_ty, b_ty, _ = info.operand_types
    out_ty = info.ty
    dtype = _compute_type(a_ty, out_ty)
    in_place = 2 in info.reusable
    exact_int = a_ty.is_int

    def run(batch: Batch, x: Value, y: Value, acc: Any) -> Value:
        if batch.execution.wave is not None:
            return acc
        nl = len(batch.lanes)
        x, y = materialise(x, batch, a_ty), materialise(y, batch, b_ty)
        if type(acc) is Tensor:
            whole = acc.shape[nl:] == out_ty.shape
            if not whole:
                acc = acc.expand(acc.shape[:nl] + out_ty.shape)
            if exact_int:
                return acc + contract(x, y, nl, dtype, None, False).to(out_ty.dtype)
            return contract(x, y, nl, dtype, acc, in_place and whole)
        out = contract(x, y, nl, dtype, None, False)
        if exact_int:
            out = out.to(out_ty.dtype)
            return out + acc if not isinstance(acc, int) or acc else out
        if acc != 0.0:
            out = out + acc
        return out if dtype == out_ty.dtype else out.to(out_ty.dtype)

    return run


def _scales(s: Tensor) -> Tensor:
    """e8m0 exponents: 2**(byte - 127); 255 is NaN. fp8 scales are numbers as they are."""
    if s.dtype.is_floating_point:
        return s.to(torch.float32)
    raw = s.view(torch.uint8).to(torch.int32)
    out = torch.ldexp(torch.ones(raw.shape, dtype=torch.float32), raw - 127)
    return torch.where(raw == 255, torch.tensor(float("nan")), out)


def _decode(x: Tensor, kind: str, dim: int, packed_along_k: bool) -> Tensor:
    if kind == "e2m1":
        return unpacked(x, dim if packed_along_k else (-1 if dim == x.dim() - 2 else -2) % x.dim())
    if not x.dtype.is_floating_point:
        x = x.contiguous().view({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind])
    return x.to(torch.float32)


@op("tt.dot_scaled", exchanges=True, product=True, work=_work)
def _dot_scaled(info: OpInfo) -> Callable[..., Value]:
    """Each group of 32 (or 16) elements along K shares a scale. Products and sums are fp32."""
    lhs, rhs = str(info.attrs["lhs"]), str(info.attrs["rhs"])
    types = info.operand_types
    # printed as: a [scale s], b [scale t], c lhs = .. rhs = ..
    left, right = info.text.split(",")[:2]
    roles = ["a", *(["sa"] if " scale " in left else []), "b", *(["sb"] if " scale " in right else []), "c"]
    at = {role: i for i, role in enumerate(roles)}
    lhs_along_k = info.attrs.get("lhs_k_pack", True) is not False
    rhs_along_k = info.attrs.get("rhs_k_pack", True) is not False
    out_ty = info.ty

    def run(batch: Batch, *xs: Any) -> Value:
        if batch.execution.wave is not None:
            return xs[at["c"]]
        nl = len(batch.lanes)
        x, y = (materialise(xs[at[role]], batch, types[at[role]]) for role in ("a", "b"))
        acc = xs[at["c"]]
        x = _decode(x, lhs, x.dim() - 1, lhs_along_k)
        y = _decode(y, rhs, y.dim() - 2, rhs_along_k)
        if "sa" in at:
            s = _scales(materialise(xs[at["sa"]], batch, types[at["sa"]]))
            x = x * s.repeat_interleave(x.shape[-1] // s.shape[-1], dim=-1)
        if "sb" in at:
            s = _scales(materialise(xs[at["sb"]], batch, types[at["sb"]]))  # [N, K / group]
            y = y * s.repeat_interleave(y.shape[-2] // s.shape[-1], dim=-1).transpose(-1, -2)
        if type(acc) is Tensor:
            acc = acc.expand(acc.shape[:nl] + out_ty.shape)
        out = contract(x, y, nl, torch.float32, acc if type(acc) is Tensor else None, False)
        if type(acc) is not Tensor and acc:
            out = out + acc
        return out.to(out_ty.dtype)

    return run
