"""Integer arithmetic, exact: two's complement wrap, truncating division, unsigned where the operation says so.

Three implementations per operation: on Python integers (uniform values), on affine values (symbolic, or per lane with
numpy when a scalar is not affine), and on tensors. The lane and tensor forms share one numpy function where torch
lacks the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.lift.program import OpInfo
from kernbench.triton_engine.values import (
    Aff,
    Box,
    Ptr,
    Value,
    dense_int,
    dense_mask,
    exact_bounds,
    from_lane_array,
    lane_array,
    wrap,
)

from .registry import UnsupportedOpError, op

NP_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
NP_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


# Affine forms: return None where the result is not affine.


def fits(v: Aff, bits: int, b: Any, tile: tuple[int, ...]) -> Aff | None:
    """``v`` if no element leaves the signed range of ``bits``; bounds are made exact before giving up."""
    half = 1 << (bits - 1)
    if v.lo >= -half and v.hi < half:
        return v
    v.lo, v.hi = exact_bounds(v, b.lanes, tile)
    return v if v.lo >= -half and v.hi < half else None


def _arr_sum(a: np.ndarray | None, b: np.ndarray | None, sign: int) -> np.ndarray | None:
    if b is None:
        return a
    if a is None:
        return b if sign > 0 else -b
    return a + b if sign > 0 else a - b


def aff_add(x: int | Aff, y: int | Aff) -> int | Aff:
    if type(x) is not Aff:
        if type(y) is not Aff:
            return x + y
        x, y = y, x
    if type(y) is not Aff:
        return Aff(x.c + y, x.ls, x.ts, x.lo + y, x.hi + y, x.arr)
    return Aff(
        x.c + y.c,
        tuple([a + b for a, b in zip(x.ls, y.ls, strict=True)]),
        tuple([a + b for a, b in zip(x.ts, y.ts, strict=True)]),
        x.lo + y.lo,
        x.hi + y.hi,
        _arr_sum(x.arr, y.arr, 1),
    )


def aff_neg(x: Aff) -> Aff:
    return Aff(
        -x.c, tuple([-a for a in x.ls]), tuple([-a for a in x.ts]), -x.hi, -x.lo, None if x.arr is None else -x.arr
    )


def aff_sub(x: int | Aff, y: int | Aff) -> int | Aff:
    if type(y) is not Aff:
        return aff_add(x, -y)
    return aff_add(x, aff_neg(y))


def aff_scale(x: int | Aff, k: int) -> int | Aff:
    if type(x) is not Aff:
        return x * k
    if k == 0:
        return 0
    lo, hi = (x.lo * k, x.hi * k) if k > 0 else (x.hi * k, x.lo * k)
    return Aff(
        x.c * k,
        tuple([a * k for a in x.ls]),
        tuple([a * k for a in x.ts]),
        lo,
        hi,
        None if x.arr is None else x.arr * k,
    )


def _mul(x: int | Aff, y: int | Aff) -> int | Aff | None:
    if type(y) is not Aff:
        return aff_scale(x, y)
    if type(x) is not Aff:
        return aff_scale(y, x)
    return None


def _div(x: int | Aff, y: int | Aff) -> int | Aff | None:
    """Quotient by a uniform divisor where it stays affine (truncating: only for operands of one sign)."""
    if type(y) is Aff or type(x) is not Aff or y <= 0 or x.lo < 0 or x.arr is not None:
        return None
    if x.hi < y:
        return 0
    if all(s % y == 0 for s in x.ls + x.ts):
        return Aff(x.c // y, tuple([s // y for s in x.ls]), tuple([s // y for s in x.ts]), x.lo // y, x.hi // y)
    return None


def _rem(x: int | Aff, y: int | Aff) -> int | Aff | None:
    if type(y) is Aff or type(x) is not Aff or y <= 0 or x.lo < 0:
        return None
    if x.hi < y:
        return x
    if x.arr is None and all(s % y == 0 for s in x.ls + x.ts):
        return x.c % y
    return None


def _shl(x: int | Aff, y: int | Aff) -> int | Aff | None:
    return aff_scale(x, 1 << y) if type(y) is not Aff and 0 <= y < 63 else None


def _minmax(pick_low: bool) -> Callable[[Any, Any], Any]:
    def run(x: int | Aff, y: int | Aff) -> int | Aff | None:
        xlo, xhi = (x.lo, x.hi) if type(x) is Aff else (x, x)
        ylo, yhi = (y.lo, y.hi) if type(y) is Aff else (y, y)
        if xhi <= ylo:
            return x if pick_low else y
        if yhi <= xlo:
            return y if pick_low else x
        return None

    return run


# Python forms, on signed integers


def _trunc_div(a: int, b: int) -> int:
    if b == 0:
        return 0
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _trunc_rem(a: int, b: int) -> int:
    return a - b * _trunc_div(a, b) if b else 0


def _unsigned(bits: int, f: Callable[[int, int], int]) -> Callable[[int, int], int]:
    mask = (1 << bits) - 1
    return lambda a, b: f(a & mask, b & mask)


# numpy forms, on arrays of the operation's width


def _np_unsigned(f: Callable[[Any, Any], Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        signed = a.dtype
        unsigned = NP_UNSIGNED[signed.itemsize * 8]
        return f(a.view(unsigned), b.view(unsigned)).astype(unsigned, copy=False).view(signed)

    return run


def _safe(b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, b.dtype.type(1), b)


def _np_divs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    b = _safe(b)
    q = np.floor_divide(a, b)
    r = a - q * b
    return q + ((r != 0) & ((r < 0) != (a < 0))).astype(a.dtype)


def _np_shift(f: Callable[[Any, Any], Any], saturate: bool = False) -> Callable[[Any, Any], Any]:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = a.dtype.itemsize * 8
        big = (b < 0) | (b >= width) if b.dtype.kind == "i" else b >= width
        shift = np.where(big, width - 1 if saturate else 0, b).astype(b.dtype)
        out = f(a, shift)
        return out if saturate else np.where(big, a.dtype.type(0), out)

    return run


def _np_mulhi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    if bits < 64:
        product = np.multiply(a, b, dtype=NP_UNSIGNED[bits * 2])
        if product.ndim:  # little-endian: the upper half is every other element
            return np.ascontiguousarray(product).view(a.dtype)[..., 1::2]
        return (product >> NP_UNSIGNED[bits * 2](bits)).astype(a.dtype)
    low = np.uint64(0xFFFFFFFF)
    s = np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> s, b & low, b >> s
    mid = a1 * b0 + ((a0 * b0) >> s)
    mid2 = a0 * b1 + (mid & low)
    return a1 * b1 + (mid >> s) + (mid2 >> s)


def _torch_numpy(f: Callable[[np.ndarray, np.ndarray], np.ndarray], dtype: torch.dtype) -> Callable[[Any, Any], Tensor]:
    np_type = NP_SIGNED[dtype.itemsize * 8]

    def as_array(v: Tensor | int) -> np.ndarray:
        return v.numpy() if isinstance(v, Tensor) else np.array(v, dtype=np_type)

    def run(a: Tensor | int, b: Tensor | int) -> Tensor:
        x, y = as_array(a), as_array(b)
        ndim = max(x.ndim, y.ndim)
        out = np.asarray(f(np.ascontiguousarray(x), np.ascontiguousarray(y)))
        return torch.from_numpy(np.ascontiguousarray(out)).reshape(out.shape if out.ndim else (1,) * ndim)

    return run


#: name: (python, affine, numpy, torch function or None to go through numpy)
_BINARY: dict[str, tuple[Any, Any, Any, Any]] = {
    "addi": (lambda a, b: a + b, aff_add, np.add, torch.add),
    "subi": (lambda a, b: a - b, aff_sub, np.subtract, torch.sub),
    "muli": (lambda a, b: a * b, _mul, np.multiply, torch.mul),
    "divsi": (_trunc_div, _div, _np_divs, None),
    "remsi": (_trunc_rem, _rem, lambda a, b: np.where(b == 0, a.dtype.type(0), np.fmod(a, _safe(b))), None),
    "divui": (lambda a, b: a // b if b else 0, _div, _np_unsigned(lambda a, b: a // _safe(b)), None),
    "remui": (lambda a, b: a % b if b else 0, _rem, _np_unsigned(lambda a, b: a % _safe(b)), None),
    "floordivsi": (lambda a, b: a // b if b else 0, _div, lambda a, b: np.floor_divide(a, _safe(b)), None),
    "ceildivsi": (lambda a, b: -(-a // b) if b else 0, None, lambda a, b: -np.floor_divide(-a, _safe(b)), None),
    "andi": (lambda a, b: a & b, None, np.bitwise_and, torch.bitwise_and),
    "ori": (lambda a, b: a | b, None, np.bitwise_or, torch.bitwise_or),
    "xori": (lambda a, b: a ^ b, None, np.bitwise_xor, torch.bitwise_xor),
    "shli": (lambda a, b: a << b if 0 <= b < 64 else 0, _shl, _np_shift(np.left_shift), None),
    "shrsi": (lambda a, b: a >> min(max(b, 0), 63), None, _np_shift(np.right_shift, saturate=True), None),
    "shrui": (lambda a, b: a >> b if b < 64 else 0, None, _np_unsigned(_np_shift(np.right_shift)), None),
    "minsi": (min, _minmax(True), np.minimum, torch.minimum),
    "maxsi": (max, _minmax(False), np.maximum, torch.maximum),
    "minui": (min, None, _np_unsigned(np.minimum), None),
    "maxui": (max, None, _np_unsigned(np.maximum), None),
    "mulhiui": (None, None, _np_unsigned(_np_mulhi), None),
}
_UNSIGNED = {"divui", "remui", "shrui", "minui", "maxui", "mulhiui"}


def _binary(info: OpInfo) -> Callable[..., Value]:
    name = info.name.rpartition(".")[2]
    ty = info.ty
    if ty.elem == "i1":
        return _boolean(name, ty.shape)
    python, affine, numpy, dense = _BINARY[name]
    bits, dtype, tile = ty.bits, ty.dtype, ty.shape
    if name == "mulhiui":
        python = lambda a, b: (a * b) >> bits  # noqa: E731
    if name in _UNSIGNED:
        python = _unsigned(bits, python)
    np_type = NP_SIGNED[bits]
    through_torch = dense or _torch_numpy(numpy, dtype)
    half = 1 << (bits - 1)

    def run(b: Any, x: Any, y: Any) -> Value:
        tx, ty_ = type(x), type(y)
        if tx is not Tensor and ty_ is not Tensor:
            if tx is not Aff and ty_ is not Aff:
                v = python(int(x), int(y))
                return v if -half <= v < half else wrap(v, bits)
            if affine is not None:
                v = affine(x, y)
                if v is not None:
                    if type(v) is not Aff:
                        return wrap(v, bits)
                    v = fits(v, bits, b, tile)
                    if v is not None:
                        return v
            if not _varies_in_tile(x) and not _varies_in_tile(y):
                lanes = b.lanes
                with np.errstate(over="ignore"):
                    out = numpy(lane_array(x, lanes).astype(np_type), lane_array(y, lanes).astype(np_type))
                return from_lane_array(out.astype(np.int64), len(tile))
        lanes = b.lanes
        x, y = dense_int(x, lanes, tile, dtype), dense_int(y, lanes, tile, dtype)
        if dense is torch.minimum or dense is torch.maximum:
            x, y = _both(x, dtype), _both(y, dtype)
        return through_torch(x, y)

    return run


def _both(v: Tensor | int, dtype: torch.dtype) -> Tensor:
    return v if isinstance(v, Tensor) else torch.tensor(v, dtype=dtype)


def _varies_in_tile(v: Any) -> bool:
    return type(v) is Aff and any(v.ts)


# Masks


def _intersect(x: Box, y: Box) -> Box:
    bounds = []
    for p, q in zip(x.bounds, y.bounds, strict=True):
        if p is None or q is None:
            bounds.append(p if q is None else q)
            continue
        lo: Any = np.maximum(p[0], q[0])
        hi: Any = np.minimum(p[1], q[1])
        bounds.append((lo if np.ndim(lo) else int(lo), hi if np.ndim(hi) else int(hi)))
    return Box(tuple(bounds))


def mask_and(b: Any, x: Value, y: Value, tile: tuple[int, ...]) -> Value:
    """Conjunction of two masks; boxes stay boxes."""
    if type(x) is not Tensor and type(x) is not Box:
        return y if x else False
    if type(y) is not Tensor and type(y) is not Box:
        return x if y else False
    if type(x) is Box and type(y) is Box:
        return _intersect(x, y)
    return dense_mask(x, b.lanes, tile) & dense_mask(y, b.lanes, tile)


def _boolean(name: str, tile: tuple[int, ...]) -> Callable[..., Value]:
    if name in ("andi", "muli", "minui", "maxsi"):
        return lambda b, x, y: mask_and(b, x, y, tile)
    if name in ("ori", "maxui", "minsi"):

        def either(b: Any, x: Any, y: Any) -> Value:
            for p, q in ((x, y), (y, x)):
                if type(p) is not Tensor and type(p) is not Box:
                    return True if p else q
            return dense_mask(x, b.lanes, tile) | dense_mask(y, b.lanes, tile)

        return either
    if name in ("xori", "addi", "subi"):

        def differ(b: Any, x: Any, y: Any) -> Value:
            x, y = dense_mask(x, b.lanes, tile), dense_mask(y, b.lanes, tile)
            if type(x) is Tensor or type(y) is Tensor:
                if type(y) is not Tensor:
                    return ~x if y else x
                if type(x) is not Tensor:
                    return ~y if x else y
                return x ^ y
            return bool(x) != bool(y)

        return differ
    if name in ("divui", "divsi"):  # by 1, as by 0 gives 0; -1 // -1 wraps to -1
        return lambda b, x, y: mask_and(b, x, y, tile)
    if name == "shrsi":  # the sign fills
        return lambda b, x, y: x
    if name in ("shli", "shrui"):  # a shift by 1 leaves nothing

        def shifted(b: Any, x: Any, y: Any) -> Value:
            y = dense_mask(y, b.lanes, tile)
            return mask_and(b, x, ~y if type(y) is Tensor else not y, tile)

        return shifted
    if name in ("remui", "remsi"):
        return lambda b, x, y: False
    raise UnsupportedOpError(f"arith.{name} of booleans")


op(*(f"arith.{n}" for n in _BINARY if n != "mulhiui"), "tt.mulhiui")(_binary)

# Comparisons

_SIGNED_COMPARE: dict[str, tuple[Any, Any]] = {
    "eq": (lambda a, b: a == b, torch.eq),
    "ne": (lambda a, b: a != b, torch.ne),
    "slt": (lambda a, b: a < b, torch.lt),
    "sle": (lambda a, b: a <= b, torch.le),
    "sgt": (lambda a, b: a > b, torch.gt),
    "sge": (lambda a, b: a >= b, torch.ge),
}


def _decided(predicate: str, lo: int, hi: int) -> bool | None:
    """The truth of ``d predicate 0`` for every d in [lo, hi], or None."""
    if predicate == "slt":
        return True if hi < 0 else False if lo >= 0 else None
    if predicate == "sle":
        return True if hi <= 0 else False if lo > 0 else None
    if predicate == "sgt":
        return True if lo > 0 else False if hi <= 0 else None
    if predicate == "sge":
        return True if lo >= 0 else False if hi < 0 else None
    if predicate == "eq":
        return False if lo > 0 or hi < 0 else True if lo == hi == 0 else None
    return True if lo > 0 or hi < 0 else False if lo == hi == 0 else None


_NO_BOUND = 1 << 62


def _box(predicate: str, d: Aff, lanes: tuple[int, ...]) -> Box | None:
    """``d predicate 0`` as a range of the one tile index that ``d`` varies with."""
    varying = [j for j, s in enumerate(d.ts) if s]
    if len(varying) != 1 or predicate in ("eq", "ne"):
        return None
    j = varying[0]
    s = d.ts[j]
    base: Any = d.c
    if d.arr is not None or any(d.ls):
        base = lane_array(Aff(d.c, d.ls, (), 0, 0, d.arr), lanes)
    strict = predicate in ("slt", "sgt")
    below = predicate in ("slt", "sle")
    if not below:  # -d < 0
        s, base = -s, -base
    if not strict:  # d <= 0  <=>  d - 1 < 0
        base = base - 1
    # s*i + base < 0
    if s > 0:
        limit: Any = -(base // s)  # i < ceil(-base / s)
        bound = (-_NO_BOUND, limit)
    else:
        bound = (base // (-s) + 1, _NO_BOUND)
    if isinstance(base, np.ndarray) and base.size == 1:
        bound = (int(np.asarray(bound[0]).reshape(-1)[0]), int(np.asarray(bound[1]).reshape(-1)[0]))
    bounds: list[Any] = [None] * len(d.ts)
    bounds[j] = bound
    return Box(tuple(bounds))


@op("arith.cmpi")
def _cmpi(info: OpInfo) -> Callable[..., Value]:
    predicate = info.words[0]
    ty = info.operand_types[0]
    tile = ty.shape
    if ty.is_ptr:
        return _compare_pointers(predicate, tile)
    bits, dtype = ty.bits, ty.dtype
    unsigned = predicate.startswith("u")
    signed = "s" + predicate[1:] if unsigned else predicate
    python, dense = _SIGNED_COMPARE[signed]
    if ty.elem == "i1":
        return _compare_masks(signed, unsigned, tile)
    mask = (1 << bits) - 1
    flip = -(1 << (bits - 1))

    def run(b: Any, x: Any, y: Any) -> Value:
        tx, ty_ = type(x), type(y)
        if tx is not Tensor and ty_ is not Tensor:
            if tx is not Aff and ty_ is not Aff:
                return python(x & mask, y & mask) if unsigned else python(x, y)
            plain = not unsigned or ((x.lo if tx is Aff else x) >= 0 and (y.lo if ty_ is Aff else y) >= 0)
            if plain:
                d = aff_sub(x, y)
                if type(d) is not Aff:
                    return python(d, 0)
                known = _decided(signed, d.lo, d.hi)
                if known is not None:
                    return known
                d.lo, d.hi = exact_bounds(d, b.lanes, tile)
                known = _decided(signed, d.lo, d.hi)
                if known is not None:
                    return known
                box = _box(signed, d, b.lanes)
                if box is not None:
                    return box
                if not any(d.ts):
                    lane = python(lane_array(d, b.lanes), 0)
                    return torch.from_numpy(np.asarray(lane)).reshape(lane.shape + (1,) * len(tile))
        x, y = dense_int(x, b.lanes, tile, dtype), dense_int(y, b.lanes, tile, dtype)
        if unsigned:
            x, y = x ^ flip, y ^ flip
        return dense(x, y) if type(x) is Tensor else dense(_both(x, dtype), y)

    return run


def _compare_masks(predicate: str, unsigned: bool, tile: tuple[int, ...]) -> Callable[..., Value]:
    python, dense = _SIGNED_COMPARE[predicate]

    def run(b: Any, x: Any, y: Any) -> Value:
        x, y = dense_mask(x, b.lanes, tile), dense_mask(y, b.lanes, tile)
        if type(x) is not Tensor and type(y) is not Tensor:
            return python(int(x), int(y)) if unsigned else python(-int(x), -int(y))
        x = x if type(x) is Tensor else torch.tensor(x)
        y = y if type(y) is Tensor else torch.tensor(y)
        x, y = x.to(torch.int8), y.to(torch.int8)
        return dense(x, y) if unsigned or predicate in ("eq", "ne") else dense(-x, -y)

    return run


def _compare_pointers(predicate: str, tile: tuple[int, ...]) -> Callable[..., Value]:
    _, dense = _SIGNED_COMPARE["s" + predicate[1:] if predicate.startswith("u") else predicate]

    def run(b: Any, x: Ptr, y: Ptr) -> Value:
        p, q = b.x.addresses(b, x, tile), b.x.addresses(b, y, tile)
        return dense(p, q)

    return run


@op("arith.select")
def _select(info: OpInfo) -> Callable[..., Value]:
    ty = info.ty
    tile = ty.shape
    if ty.is_ptr:
        return _select_pointers(tile)
    dtype = ty.dtype
    is_mask = ty.elem == "i1"
    is_int = ty.is_int

    def run(b: Any, c: Any, x: Any, y: Any) -> Value:
        if type(c) is bool or type(c) is int:
            return x if c else y
        lanes = b.lanes
        if is_mask:
            x, y = dense_mask(x, lanes, tile), dense_mask(y, lanes, tile)
        elif is_int:
            if not tile and type(c) is Tensor and type(x) is not Tensor and type(y) is not Tensor:
                return from_lane_array(np.where(c.numpy(), lane_array(x, lanes), lane_array(y, lanes)))
            x, y = dense_int(x, lanes, tile, dtype), dense_int(y, lanes, tile, dtype)
        c = dense_mask(c, lanes, tile)
        if type(c) is bool:
            return x if c else y
        if c.dim() < len(lanes) + len(tile):
            c = c.reshape(c.shape + (1,) * (len(lanes) + len(tile) - c.dim()))
        if type(x) is not Tensor and type(y) is not Tensor:
            x = torch.full((1,) * c.dim(), x, dtype=torch.float32 if dtype.itemsize == 1 and not is_int else dtype).to(
                dtype
            )
        if type(x) is not Tensor:
            return torch.where(c, _scalar(x, dtype), y)
        return torch.where(c, x, y if type(y) is Tensor else _scalar(y, dtype))

    return run


def _scalar(v: Any, dtype: torch.dtype) -> Tensor:
    return torch.tensor(v, dtype=dtype)


def _select_pointers(tile: tuple[int, ...]) -> Callable[..., Value]:
    def run(b: Any, c: Any, x: Ptr, y: Ptr) -> Value:
        if type(c) is bool or type(c) is int:
            return x if c else y
        c = dense_mask(c, b.lanes, tile)
        if type(c) is bool:
            return x if c else y
        if c.dim() < len(b.lanes) + len(tile):
            c = c.reshape(c.shape + (1,) * (len(b.lanes) + len(tile) - c.dim()))
        one = x.root == y.root  # offsets into one argument, else addresses
        numbers = b.x.offsets if one else b.x.addresses
        chosen = torch.where(c, numbers(b, x, tile), numbers(b, y, tile))
        root = x.root if one else None
        if not tile:
            return Ptr(root, from_lane_array(chosen.numpy()))
        return Ptr(root, Aff(0, (0,) * len(b.lanes), (0,) * len(tile), 0, 0), chosen)

    return run


@op("math.absi")
def _absi(info: OpInfo) -> Callable[..., Value]:
    ty = info.ty

    def run(b: Any, x: Any) -> Value:
        if type(x) is int:
            return wrap(abs(x), ty.bits)
        if type(x) is Aff and x.lo >= 0:
            return x
        return torch.abs(dense_int(x, b.lanes, ty.shape, ty.dtype))  # type: ignore[arg-type]

    return run
