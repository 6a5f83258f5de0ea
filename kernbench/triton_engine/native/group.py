"""Instructions that one native function computes, and how it is called on values: sizes, strides, addresses."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.types import INT_BITS, TORCH_DTYPE
from kernbench.triton_engine.values import Affine, Late, wrap

from . import function
from .compiler import Function, compiled

#: Ways to lie in memory of which a group keeps how to go through them.
_GEOMETRIES = 256


@dataclass(frozen=True)
class _Geometry:
    """How operands of given shapes and strides are gone through: what is called, on what but the addresses.

    ``offsets``: of each operand, for every turn of the loops that are more than a nest has.
    """

    call: Function
    words: list[int]
    offsets: list[tuple[int, ...]]


@dataclass(eq=False)
class FusedGroup:
    """Instructions whose results have one shape: ``lanes`` tells its lane axes of size 1, ``tile`` the sizes of its tile."""

    shape: function.Formula
    lanes: tuple[bool, ...]
    tile: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: Of each output, the input whose memory it may take over: it has no other reader left.
    over: tuple[int | None, ...]
    #: The only output is computed by the store that follows.
    late: bool
    geometries: dict[object, _Geometry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dtypes = [TORCH_DTYPE[self.shape.steps[k].info.ty.elem] for k in self.shape.outputs]

    def run(self, batch: Batch, env: list[Any], values: Sequence[Any]) -> None:
        """Compute the outputs of a batch into its slots."""
        if self.late:
            env[self.outputs[0]] = Late(self._alone, self._into, batch, tuple(values))
            return
        outs = [
            values[over] if over is not None else None  # tensors, as plans see to
            for over in self.over
        ]
        for slot, out in zip(self.outputs, self._call(batch.lanes, values, outs), strict=True):
            env[slot] = out

    def _alone(self, batch: Batch, *values: object) -> Tensor:
        return self._call(batch.lanes, values, [None])[0]

    def _into(self, out: Tensor, *values: object) -> bool:
        """The output in memory that is given, if it has the shape."""
        lanes = tuple(out.shape[: len(self.lanes)])
        if out.dtype != self.dtypes[0] or tuple(out.shape) != self._sizes(lanes):
            return False
        shapes = [v.shape for v in values if type(v) is Tensor]
        if any(have not in (1, n) for shape in shapes for have, n in zip(shape, out.shape, strict=True)):
            return False
        self._call(lanes, values, [out])
        return True

    def _sizes(self, lanes: Sequence[int]) -> tuple[int, ...]:
        return (*[1 if flag else n for flag, n in zip(self.lanes, lanes, strict=True)], *self.tile)

    def _call(self, lanes: tuple[int, ...], values: Sequence[object], outs: list[Tensor | None]) -> list[Tensor]:
        sizes = self._sizes(lanes)
        made = [
            torch.empty(sizes, dtype=dtype) if out is None else out
            for out, dtype in zip(outs, self.dtypes, strict=True)
        ]
        if 0 in sizes:
            return made
        bases: list[int] = []
        ways: list[Any] = [sizes]
        for value, elem in zip(values, self.shape.inputs, strict=True):
            if type(value) is Tensor:
                bases.append(value.data_ptr())
                ways.append((value.shape, value.stride()))
            elif type(value) is Affine:
                bases.append(value.constant)
                ways.append(value.lane_strides + value.tile_strides)
            else:
                bases.append(_bits(value, elem))
                ways.append(None)
        for out in made:
            bases.append(out.data_ptr())
            ways.append((out.shape, out.stride()))
        key = tuple(ways)
        geometry = self.geometries.get(key)
        if geometry is None:
            if len(self.geometries) >= _GEOMETRIES:
                self.geometries.clear()
            geometry = self.geometries[key] = self._geometry(sizes, ways[1:])
        for offset in geometry.offsets:
            words = geometry.words.copy()
            words[function.DEPTH :: function.DEPTH + 1] = [b + o for b, o in zip(bases, offset, strict=True)]
            given = array("q", words)
            geometry.call(given.buffer_info()[0])
        return made

    def _geometry(self, sizes: tuple[int, ...], ways: list[Any]) -> _Geometry:
        elems = [*self.shape.inputs, *(self.shape.steps[k].info.ty.elem for k in self.shape.outputs)]
        strides: list[tuple[int, ...]] = []
        letters: list[str] = []
        for way, elem in zip(ways, elems, strict=True):
            if way is None:
                strides.append((0,) * len(sizes))
                letters.append(function.NUMBER)
            elif type(way[0]) is int:
                strides.append(way)
                letters.append("")
            else:
                shape, steps = way
                if any(have not in (1, n) for have, n in zip(shape, sizes, strict=True)):
                    raise ValueError(f"operands of shape {tuple(shape)} in a computation of shape {sizes}")
                item = function.itemsize(elem)
                strides.append(
                    tuple([0 if have == 1 else step * item for have, step in zip(shape, steps, strict=True)])
                )
                letters.append(" ")
        nest, along = _collapsed(sizes, strides)
        runs = "".join(
            [_letter(letter, step[-1], elem) for letter, step, elem in zip(letters, along, elems, strict=True)]
        )
        outer, inner = nest[: -function.DEPTH], nest[-function.DEPTH :]
        words = list(inner)
        for step in along:
            words += [0, *step[len(outer) :]]
        offsets = [
            tuple([sum(i * s for i, s in zip(index, step, strict=False)) for step in along])
            for index in product(*[range(n) for n in outer])
        ]
        return _Geometry(compiled(function.write(self.shape, runs)), words, offsets)


def _letter(letter: str, step: int, elem: str) -> str:
    """How an operand runs along the innermost loop."""
    if letter == function.NUMBER:
        return letter
    if letter:
        adjacent = step == function.itemsize(elem)
        return function.ADJACENT if adjacent else function.STRIDED if step else function.STILL
    return function.COUNTING if step == 1 else function.STEPPING if step else function.CONSTANT


def _collapsed(sizes: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """Sizes and strides with dimensions joined that are gone through as one, at least as many as a nest has loops."""
    nest: list[int] = []
    along: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(sizes):
        if n == 1:
            continue
        if nest and all(steps[-1] == full[d] * n for steps, full in zip(along, strides, strict=True)):
            nest[-1] *= n
            for steps, full in zip(along, strides, strict=True):
                steps[-1] = full[d]
            continue
        nest.append(n)
        for steps, full in zip(along, strides, strict=True):
            steps.append(full[d])
    missing = max(0, function.DEPTH - len(nest))
    return [1] * missing + nest, [[0] * missing + steps for steps in along]


def _bits(value: Any, elem: str) -> int:
    """A number as the bits of an element."""
    if elem in INT_BITS:
        return wrap(int(value), 64)
    if elem == "f64":
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    if elem == "f16":
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    single = int(struct.unpack("<I", struct.pack("<f", value))[0])
    return single >> 16 if elem == "bf16" else single
