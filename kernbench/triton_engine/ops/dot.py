"""Matrix products: ``tt.dot`` and ``tt.dot_scaled``.

Lane axes on which only one side depends become rows (or columns) of one large product; axes on which both depend are
batch dimensions. Products of narrow types are exact in fp32 and accumulate in fp32 (fp64 for fp64); the order of
accumulation is the CPU library's, not the tensor core's. int8 products are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.lift.program import OpInfo
from kernbench.triton_engine.lift.types import Ty
from kernbench.triton_engine.values import Value

from .registry import op
from .shape import materialise


def _compute_type(a: Ty, out: Ty) -> torch.dtype:
    if a.is_int:
        # |sum| <= k * 2**14 must be exact: fp32 holds integers below 2**24.
        return torch.float32 if a.shape[-1] <= 512 else torch.float64
    return torch.float64 if out.elem == "f64" or a.elem == "f64" else torch.float32


def contract(a: Tensor, b: Tensor, nl: int, dtype: torch.dtype, acc: Tensor | None, in_place: bool) -> Tensor:
    """``a @ b (+ acc)`` over lanes: ``a`` is ``[lanes, *batch, M, K]``, ``b`` ``[lanes, *batch, K, N]``.

    Returns ``[lanes, *batch, M, N]``; its storage keeps rows and columns of the joined product together, and ``acc``
    in that layout is accumulated into without a copy.
    """
    nb = a.dim() - nl - 2
    m, k = a.shape[-2:]
    n = b.shape[-1]
    a_lanes, b_lanes = a.shape[:nl], b.shape[:nl]
    both = [i for i in range(nl) if a_lanes[i] > 1 and b_lanes[i] > 1] + [nl + i for i in range(nb)]
    rows = [i for i in range(nl) if a_lanes[i] > 1 and b_lanes[i] == 1]
    cols = [i for i in range(nl) if b_lanes[i] > 1 and a_lanes[i] == 1]
    none = [i for i in range(nl) if a_lanes[i] == 1 and b_lanes[i] == 1]
    row_dim, k_dim, col_dim = a.dim() - 2, a.dim() - 1, a.dim() - 1
    batch_sizes = [a.shape[i] for i in both]
    row_sizes = [a_lanes[i] for i in rows]
    col_sizes = [b_lanes[i] for i in cols]
    nbatch = prod(batch_sizes)
    # a -> [batch, rows..., M, K]; b -> [batch, K, cols..., N]
    left = a.permute(*none, *cols, *both, *rows, row_dim, k_dim)
    right = b.permute(*none, *rows, *both, b.dim() - 2, *cols, b.dim() - 1)
    left = _matrix(left, dtype).reshape(nbatch, prod(row_sizes) * m, k)
    right = _matrix(right, dtype).reshape(nbatch, k, prod(col_sizes) * n)
    # the joined result: [batch, rows, M, cols, N]
    order = [*none, *both, *rows, row_dim, *cols, col_dim]
    inverse = [order.index(i) for i in range(len(order))]
    if acc is not None:
        sizes = [1] * len(none) + batch_sizes + row_sizes + [m] + col_sizes + [n]
        lanes_now = tuple([max(p, q) for p, q in zip(a_lanes, b_lanes, strict=True)])
        if tuple(acc.shape[:nl]) != lanes_now:
            # acc varies along lanes that neither side does
            out = contract(a, b, nl, dtype, None, False)
            return acc + out.to(acc.dtype)
        joined = acc.permute(*order)
        if in_place and acc.dtype == dtype:
            try:
                flat = joined.view(nbatch, prod(row_sizes) * m, prod(col_sizes) * n)
            except RuntimeError:
                flat = None
            if flat is not None:
                if nbatch == 1:
                    torch.addmm(flat[0], left[0], right[0], out=flat[0])
                else:
                    torch.baddbmm(flat, left, right, out=flat)
                return acc
        flat = joined.reshape(nbatch, prod(row_sizes) * m, prod(col_sizes) * n)
        if acc.dtype == dtype:
            out = torch.addmm(flat[0], left[0], right[0]) if nbatch == 1 else torch.baddbmm(flat, left, right)
        else:
            out = (flat.to(dtype) + torch.bmm(left, right)).to(acc.dtype)
        return out.view(sizes).permute(*inverse)
    out = torch.mm(left[0], right[0]) if nbatch == 1 else torch.bmm(left, right)
    return out.view([1] * len(none) + batch_sizes + row_sizes + [m] + col_sizes + [n]).permute(*inverse)


def _matrix(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in ``dtype`` in row-major order, in one pass."""
    if x.dtype == dtype:
        return x
    return x.to(dtype, memory_format=torch.contiguous_format)


@op("tt.dot", inplace=True)
def _dot(info: OpInfo) -> Callable[..., Value]:
    a_ty, b_ty, _ = info.operand_types
    out_ty = info.ty
    dtype = _compute_type(a_ty, out_ty)
    in_place = 2 in info.reusable
    exact_int = a_ty.is_int

    def run(b: Any, x: Any, y: Any, acc: Any) -> Value:
        if b.x.wave is not None:
            return acc
        nl = len(b.lanes)
        x, y = materialise(x, b, a_ty), materialise(y, b, b_ty)
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


#: Values of the sixteen fp4 (e2m1) codes.
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def _unpack_fp4(x: Tensor, dim: int) -> Tensor:
    """Two fp4 numbers per byte, low nibble first, along ``dim``."""
    raw = x.view(torch.uint8).to(torch.int64)
    low, high = _E2M1[raw & 15], _E2M1[raw >> 4]
    return torch.stack((low, high), dim=dim + 1).flatten(dim, dim + 1)


def _scales(s: Tensor) -> Tensor:
    """e8m0 exponents: 2**(byte - 127); 255 is NaN. fp8 scales are numbers as they are."""
    if s.dtype.is_floating_point:
        return s.to(torch.float32)
    raw = s.view(torch.uint8).to(torch.int32)
    out = torch.ldexp(torch.ones(raw.shape, dtype=torch.float32), raw - 127)
    return torch.where(raw == 255, torch.tensor(float("nan")), out)


def _decode(x: Tensor, kind: str, dim: int, packed_along_k: bool) -> Tensor:
    if kind == "e2m1":
        return _unpack_fp4(x, dim if packed_along_k else (-1 if dim == x.dim() - 2 else -2) % x.dim())
    if not x.dtype.is_floating_point:
        x = x.contiguous().view({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind])
    return x.to(torch.float32)


@op("tt.dot_scaled")
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

    def run(b: Any, *xs: Any) -> Value:
        if b.x.wave is not None:
            return xs[at["c"]]
        nl = len(b.lanes)
        x, y = (materialise(xs[at[role]], b, types[at[role]]) for role in ("a", "b"))
        acc = xs[at["c"]]
        x = _decode(x, lhs, x.dim() - 1, lhs_along_k)
        y = _decode(y, rhs, y.dim() - 2, rhs_along_k)
        if "sa" in at:
            s = _scales(materialise(xs[at["sa"]], b, types[at["sa"]]))
            x = x * s.repeat_interleave(x.shape[-1] // s.shape[-1], dim=-1)
        if "sb" in at:
            s = _scales(materialise(xs[at["sb"]], b, types[at["sb"]]))  # [N, K / group]
            y = y * s.repeat_interleave(y.shape[-2] // s.shape[-1], dim=-1).transpose(-1, -2)
        if type(acc) is Tensor:
            acc = acc.expand(acc.shape[:nl] + out_ty.shape)
        out = contract(x, y, nl, torch.float32, acc if type(acc) is Tensor else None, False)
        if type(acc) is not Tensor and acc:
            out = out + acc
        return out.to(out_ty.dtype)

    return run
