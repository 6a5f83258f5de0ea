"""Loops inside the combine function of a reduction, a scan or ``tl.map_elementwise``.

A combine function runs on whole tiles in place of its scalars, so elements leave a loop one by one: every turn runs for all of
them, and those that have left keep what they had. Those that do not come by the loop at all, by its *guard*, leave before its
first turn. The first argument of its body says which elements take the turn: assertions there hold for these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.values import Value, dense_int

from .reduce import run_region
from .registry import op


def _dense(v: Value, batch: Batch, ty: Ty) -> Any:
    return dense_int(v, batch.lanes, (), ty.dtype) if ty.is_int and ty.elem != "i1" else v


def _keep(going: object, new: object, old: object, ty: Ty) -> Any:
    """``new`` where ``going``, else ``old``."""
    if type(going) is not Tensor:
        return new if going else old
    return torch.where(going, *(v if type(v) is Tensor else torch.tensor(v, dtype=ty.dtype) for v in (new, old)))


def _any(going: object) -> bool:
    return bool(going.any()) if type(going) is Tensor else bool(going)


def _result(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


@op("scf.for")
def _for(info: OpInfo) -> Callable[..., object]:
    body = info.regions[0]
    types = info.result_types
    counter = info.operand_types[0]
    if info.attrs.get("unsigned"):
        raise NotImplementedError("an unsigned counter in a combine function")

    def run(batch: Batch, guard: object, *args: Any) -> Any:
        at, end, step = (_dense(v, batch, counter) for v in args[:3])
        carried = list(args[3:])
        going = guard & (at < end)
        while _any(going):
            new = run_region(batch, body, [going, at, *carried])
            carried = [_keep(going, n, c, t) for n, c, t in zip(new, carried, types, strict=True)]
            at = at + step
            going = going & (at < end)
        return _result(carried)

    return run


@op("scf.while")
def _while(info: OpInfo) -> Callable[..., object]:
    before, body = info.regions
    types, carried_types = info.result_types, info.operand_types

    def run(batch: Batch, guard: object, *args: object) -> Any:
        carried = list(args)
        going = guard
        results: list[Any] | None = None
        while True:
            condition, *passed = run_region(batch, before, [going, *carried])
            results = (
                passed
                if results is None
                else [_keep(going, n, r, t) for n, r, t in zip(passed, results, types, strict=True)]
            )
            going = condition & going
            if not _any(going):
                return _result(results)
            new = run_region(batch, body, [going, *passed])
            carried = [_keep(going, n, c, t) for n, c, t in zip(new, carried, carried_types, strict=True)]

    return run
