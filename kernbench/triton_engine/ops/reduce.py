"""``tt.reduce`` and ``tt.scan`` with any combine region.

Regions that are one known operation use torch's own reduction; any other region runs as it is, on halves of the tile:
neighbours are combined pairwise, so that a combine function need only be associative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo, SubProgram
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.values import Value, from_lane_array

from .registry import Work, op
from .shape import materialise


def run_region(batch: Batch, region: SubProgram, values: list[Any]) -> list[Any]:
    """Run a combine region on tiles in place of scalars."""
    env: list[Any] = batch.env
    for slot, v in zip(region.args, values, strict=True):
        env[slot] = v
    for instr in region.code:
        out = instr.fn(batch, *[env[a] for a in instr.args])
        if len(instr.results) == 1:
            env[instr.results[0]] = out
        elif instr.results:
            for slot, v in zip(instr.results, out, strict=True):
                env[slot] = v
    results = [env[r] for r in region.results]
    for slot in region.args:
        env[slot] = None
    return results


def only_op(region: SubProgram) -> str | None:
    """The name of the single operation that combines the two arguments, if that is all there is."""
    if len(region.code) != 1 or len(region.args) != 2:
        return None
    instr = region.code[0]
    if sorted(instr.args) != sorted(region.args) or region.results != instr.results:
        return None
    return instr.info.name


def _sum(x: Tensor, dim: int) -> Tensor:
    return torch.sum(x, dim, dtype=x.dtype)


def _bits(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    def run(x: Tensor, dim: int) -> Tensor:
        while x.shape[dim] > 1:
            half = x.shape[dim] // 2
            x = f(x.narrow(dim, 0, half), x.narrow(dim, half, half))
        return x.squeeze(dim)

    return run


def _number_extremum(reduce: Callable[[Tensor, int], Tensor], worst: float) -> Callable[[Tensor, int], Tensor]:
    """Extremum that ignores NaN: ``reduce`` propagates NaN, so look again, with ``worst`` there, only when one came out."""

    def run(x: Tensor, dim: int) -> Tensor:
        out = reduce(x, dim)
        if out.dtype.is_floating_point and bool(torch.isnan(out).any()):
            nan = torch.isnan(x)
            clean = torch.where(nan, torch.tensor(worst, dtype=x.dtype), x)
            out = torch.where(nan.all(dim), out, reduce(clean, dim))
        return out

    return run


_KNOWN: dict[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": _sum,
    "arith.addi": _sum,
    "arith.mulf": lambda x, dim: torch.prod(x, dim, dtype=x.dtype),
    "arith.muli": lambda x, dim: torch.prod(x, dim, dtype=x.dtype),
    "arith.maxnumf": _number_extremum(torch.amax, float("-inf")),
    "arith.minnumf": _number_extremum(torch.amin, float("inf")),
    "arith.maximumf": torch.amax,
    "arith.minimumf": torch.amin,
    "arith.maxsi": torch.amax,
    "arith.minsi": torch.amin,
    "arith.andi": _bits(torch.bitwise_and),
    "arith.ori": _bits(torch.bitwise_or),
    "arith.xori": _bits(torch.bitwise_xor),
}
_KNOWN_BOOL = {
    "arith.andi": lambda x, dim: torch.all(x, dim),
    "arith.ori": lambda x, dim: torch.any(x, dim),
    "arith.xori": _bits(torch.bitwise_xor),
    "arith.maxui": lambda x, dim: torch.any(x, dim),
    "arith.minui": lambda x, dim: torch.all(x, dim),
}


def _settle(out: Any, ty: Ty) -> Value:
    if ty.is_int and not ty.shape and ty.elem != "i1" and type(out) is Tensor:
        return from_lane_array(out.to(torch.int64).numpy())
    return out


def _argument_reduce(region: SubProgram) -> str | None:
    """``max``/``min`` if the region is the value-and-index reduction that picks the lowest index on ties."""
    if len(region.args) != 4 or len(region.results) != 2:
        return None
    names = [i.info.name for i in region.code]
    if names != ["arith.cmpf", "arith.cmpi", "arith.andi", "arith.cmpf", "arith.ori", "arith.select", "arith.select"]:
        return None
    first, tie, _, better, _, pick, pick_index = region.code
    a, i, c, j = region.args
    if first.info.words[0] != "oeq" or tie.info.words[0] != "slt" or first.args != (a, c) or tie.args != (i, j):
        return None
    if better.args != (a, c) or pick.args[1:] != (a, c) or pick_index.args[1:] != (i, j):
        return None
    return {"ogt": "max", "olt": "min"}.get(better.info.words[0])


def _combined(info: OpInfo) -> Work:
    """The floating-point operations of the region, for every element."""
    tile = info.operand_types[0]
    if not tile.is_float:
        return 0, ("", "")
    return sum(bool(inner.row.flops) for inner in info.regions[0].ops) * tile.numel, (tile.elem, "vector")


@op("tt.reduce", exchanges=True, work=_combined)
def _reduce(info: OpInfo) -> Callable[..., Any]:
    axis = info.attrs["axis"]
    region = info.regions[0]
    types = info.operand_types
    name = only_op(region)
    known = None
    if name is not None and len(types) == 1:
        known = (_KNOWN_BOOL if types[0].elem == "i1" else _KNOWN).get(name)
    results = info.result_types
    if known is not None:
        ty = types[0]
        extent = ty.shape[axis]

        def simple(batch: Batch, x: Value) -> Value:
            nl = len(batch.lanes)
            if type(x) is not Tensor or x.shape[nl + axis] != extent:
                x = _full_along(x, batch, ty, axis)
            return _settle(known(x, nl + axis), results[0])

        return simple

    direction = _argument_reduce(region)

    def general(batch: Batch, *xs: Value) -> Any:
        nl = len(batch.lanes)
        tiles = [materialise(x, batch, t) for x, t in zip(xs, types, strict=True)]
        dim = nl + axis
        if direction is not None and not bool(torch.isnan(tiles[0]).any()):
            return _pick_extremum(tiles, dim, direction, results)
        while tiles[0].shape[dim] > 1:
            left = [t[(slice(None),) * dim + (slice(0, None, 2),)] for t in tiles]
            right = [t[(slice(None),) * dim + (slice(1, None, 2),)] for t in tiles]
            tiles = _as_tensors(run_region(batch, region, left + right), left)
        out = tuple(_settle(t.squeeze(dim), r) for t, r in zip(tiles, results, strict=True))
        return out if len(out) > 1 else out[0]

    return general


def _as_tensors(values: list[Any], like: list[Tensor]) -> list[Tensor]:
    return [v if type(v) is Tensor else torch.full_like(t, v) for v, t in zip(values, like, strict=True)]


def _full_along(x: Value, batch: Batch, ty: Ty, axis: int) -> Tensor:
    """The tile with dimension ``axis`` at full size."""
    if type(x) is not Tensor:
        return materialise(x, batch, ty)
    shape = list(x.shape)
    shape[len(batch.lanes) + axis] = ty.shape[axis]
    return x.expand(shape)


def _pick_extremum(tiles: list[Tensor], dim: int, direction: str, results: list[Ty]) -> tuple[Value, Value]:
    """Arg-max with the lowest index among equals, for any index operand."""
    values, index = tiles
    best = torch.amax(values, dim) if direction == "max" else torch.amin(values, dim)
    top = torch.iinfo(index.dtype).max
    chosen = torch.where(values == best.unsqueeze(dim), index, torch.tensor(top, dtype=index.dtype)).amin(dim)
    return _settle(best, results[0]), _settle(chosen, results[1])


_KNOWN_SCAN: dict[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype),
    "arith.addi": lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype),
    "arith.mulf": lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype),
    "arith.muli": lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype),
    "arith.maximumf": lambda x, dim: torch.cummax(x, dim).values,
    "arith.maxsi": lambda x, dim: torch.cummax(x, dim).values,
    "arith.minsi": lambda x, dim: torch.cummin(x, dim).values,
}


@op("tt.scan", exchanges=True, work=_combined)
def _scan(info: OpInfo) -> Callable[..., object]:
    axis, reverse = info.attrs["axis"], bool(info.attrs.get("reverse"))
    region = info.regions[0]
    types = info.operand_types
    name = only_op(region)
    known = _KNOWN_SCAN.get(name or "") if len(types) == 1 and types[0].elem != "i1" else None

    def run(batch: Batch, *xs: Value) -> Any:
        dim = len(batch.lanes) + axis
        tiles = [materialise(x, batch, t) for x, t in zip(xs, types, strict=True)]
        if reverse:
            tiles = [t.flip(dim) for t in tiles]
        if known is not None:
            tiles = [known(tiles[0], dim)]
        else:
            tiles = [t.clone() for t in torch.broadcast_tensors(*tiles)]  # one may be the same in every lane
            n = tiles[0].shape[dim]
            step = 1
            while step < n:  # Hillis and Steele: after each round every element covers twice as many before it
                before = [t.narrow(dim, 0, n - step) for t in tiles]
                here = [t.narrow(dim, step, n - step) for t in tiles]
                joined = _as_tensors(run_region(batch, region, before + here), here)
                tiles = [torch.cat((t.narrow(dim, 0, step), j), dim) for t, j in zip(tiles, joined, strict=True)]
                step *= 2
        if reverse:
            tiles = [t.flip(dim) for t in tiles]
        return tuple(tiles) if len(tiles) > 1 else tiles[0]

    return run


@op("tt.map_elementwise", work=_combined)
def _map_elementwise(info: OpInfo) -> Callable[..., Any]:
    """A scalar function applied to each element, or to ``pack`` neighbours at a time."""
    region = info.regions[0]
    types = info.operand_types
    pack = int(info.attrs.get("pack", 1))

    def run(batch: Batch, *xs: Value) -> Any:
        tiles = [materialise(x, batch, t) for x, t in zip(xs, types, strict=True)]
        if pack == 1:
            out = _as_tensors(run_region(batch, region, tiles), [tiles[0]] * len(region.results))
            return tuple(out) if len(out) > 1 else out[0]
        parts = [t.reshape(*t.shape[:-1], t.shape[-1] // pack, pack)[..., i] for t in tiles for i in range(pack)]
        out = _as_tensors(run_region(batch, region, parts), [parts[0]] * len(region.results))
        joined = [torch.stack(out[i : i + pack], dim=-1).flatten(-2, -1) for i in range(0, len(out), pack)]
        return tuple(joined) if len(joined) > 1 else joined[0]

    return run
