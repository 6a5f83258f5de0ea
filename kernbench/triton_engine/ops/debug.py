"""``tl.device_print`` and ``tl.device_assert``, which name the rank and the program; and what has no effect at all."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import KernbenchError
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.values import Value

from .registry import op
from .shape import materialise


class DeviceAssertionError(KernbenchError, torch.AcceleratorError, AssertionError):
    """A ``tl.device_assert`` failed. The message names rank, program, source line and the user's text.

    Programs meet torch's error for what CUDA calls so (``cudaErrorAssert``), with its words and its number."""

    error_code = 710


def _lane_names(batch: Batch) -> list[tuple[int | None, tuple[int, int, int]]]:
    ids = np.broadcast_to(batch.ids, batch.lanes).reshape(-1)
    if batch.rank_index is None:
        ranks = [batch.rank] * len(ids)
    else:
        ranks = np.broadcast_to(batch.rank_index, batch.lanes).reshape(-1).tolist()
    return [
        (batch.execution.launches[r].rank, batch.execution.program_of(int(i))) for r, i in zip(ranks, ids, strict=True)
    ]


def _name(rank: int | None, program: tuple[int, int, int]) -> str:
    text = f"pid {program}"
    return text if rank is None else f"rank {rank} {text}"


@op("llvm.intr.assume", no_effect=True)
@op("ttg.barrier", "ttg.local_barrier", "gpu.barrier", "nvvm.barrier0", no_effect=True, meets=lambda attrs: True)
def _left_out(info: OpInfo) -> Callable[..., Value]:
    raise AssertionError(f"{info.name} is not part of a program")


@op("tt.print", pure=False)
def _print(info: OpInfo) -> Callable[..., Value]:
    """One line per program and element, as on a device: ``pid (0, 0, 0) idx (3) prefix value``."""
    prefix = str(info.attrs.get("string", ""))
    as_hex = bool(info.attrs.get("hex"))
    types = info.operand_types

    def run(batch: Batch, *xs: Value) -> Value:
        if batch.execution.dry:
            return None
        names = _lane_names(batch)
        if not xs:
            for name in names:
                print(f"{_name(*name)}{prefix}", file=sys.stdout)
        for x, ty in zip(xs, types, strict=True):
            full = materialise(x, batch, ty).expand(batch.lanes + ty.shape).reshape(len(names), *ty.shape)
            for name, tile in zip(names, full, strict=True):
                for index in np.ndindex(*ty.shape):
                    v = tile[index].item()
                    text = hex(v & ((1 << ty.bits) - 1)) if as_hex and ty.is_int else str(v)
                    where = f" idx ({', '.join(map(str, index))})" if index else ""
                    print(f"{_name(*name)}{where}{prefix}{text}", file=sys.stdout)
        return None

    return run


@op("tt.assert", pure=False, asserts=True)
def _assert(info: OpInfo) -> Callable[..., Value]:
    message = str(info.attrs.get("string", ""))
    ty = info.operand_types[0]

    def run(batch: Batch, x: Value) -> Value:
        if batch.execution.blind:
            return None
        if type(x) is Tensor and bool(x.all()):
            return None
        if type(x) in (bool, int) and x:
            return None
        # in a combine function a scalar's place is taken by a tile
        tile = tuple(x.shape[len(batch.lanes) :]) if type(x) is Tensor else ty.shape
        full = materialise(x, batch, Ty(ty.elem, tile)).expand(batch.lanes + tile)
        if full.dtype is not torch.bool:
            full = full != 0
        if bool(full.all()):
            return None
        names = _lane_names(batch)
        flat = full.reshape(len(names), -1)
        lane = int((~flat.all(dim=1)).nonzero()[0])
        at = (~flat[lane]).nonzero().reshape(-1)[:4].tolist()
        where = f", elements {at}" if ty.shape else ""
        error = DeviceAssertionError(
            "CUDA error: device-side assert triggered\n"
            f"kernel {info.kernel}: device_assert failed: {message}\n  {_name(*names[lane])}{where}\n  at {info.loc}"
        )
        error.ranks = (names[lane][0],)
        raise error

    return run
