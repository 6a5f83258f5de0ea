"""Inline assembly (``tl.inline_asm_elementwise``): registers packed and unpacked around :mod:`..ptx`.

Assembly of tiles is executed once per element (or ``pack`` of them). Scalar assembly is executed by every thread of a program,
which matters where it reads the thread's number, talks to other threads, or updates memory atomically: programs with such an
instruction have a lane per thread (:mod:`..thread_lanes`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import MemoryAccessError
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.ptx import AssemblyError, Frame, Stuck, parse, run
from kernbench.triton_engine.ptx.state import State
from kernbench.triton_engine.shares import Shares, by_launch, by_launch_of_places
from kernbench.triton_engine.values import Value

from .memory import settle
from .registry import UnsupportedOpError, op
from .shape import materialise
from .special_registers import OF_THREADS, special_registers

_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_REGISTER_BITS = {"r": 32, "l": 64, "f": 32, "d": 64, "h": 16, "c": 16, "b": 1}
_NP = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


_EXCHANGES = re.compile(r"\b(?:shfl|vote|match|redux|elect|activemask)\b")
"""What the threads of a warp tell each other."""
_UPDATES = re.compile(r"\b(?:atom|red)\.")
"""Updates that every thread makes anew: a store that all repeat is as one."""

_MOST_SIGNALS = 1 << 13
"""Words that all programs together access with one instruction, if they are signals; more than that are data."""

_ALL_OF_ONE = np.ones(1, dtype=bool)


class BatchMemory:
    """Absolute addresses of a batch, checked against live allocations."""

    def __init__(self, batch: Batch, info: OpInfo, size: int = 0) -> None:
        self.batch = batch
        self.info = info
        #: Invocations, in order of the batch's lanes.
        self.size = size
        #: Buffers that a multicast address reaches besides the one whose traffic counts: the switch makes one of all.
        self._echoes: set[int] = set()

    def everywhere(self, address: np.ndarray) -> list[np.ndarray]:
        """The addresses that multicast addresses stand for, one array per buffer."""
        x = self.batch.execution
        least, most = int(address.min()), int(address.max())
        found = x.memory.multicast_range(least)
        if found is None or most - found[0] >= found[2]:
            raise MemoryAccessError(
                f"kernel {self.info.kernel}: multimem at address {least:#x}, which is not a multicast address: take the "
                f"handle's multicast_ptr\n  {self.batch.describe_lanes(None)}\n  at {self.info.loc}"
            )
        start, bases, _ = found
        mine = x.launches[self.batch.rank].rank
        homes = [x.find(base) for base in bases]
        counted = next((home.base for home in homes if home is not None and home.rank != mine), None)
        self._echoes = {home.base for home in homes if home is not None and home.base != counted}
        return [address - np.uint64(start) + np.uint64(base) for base in bases]

    def _places(
        self, address: np.ndarray, nbytes: int, times: int = 1
    ) -> list[tuple[HostAllocation, np.ndarray, np.ndarray]]:
        out = []
        signed = address.astype(np.int64)
        if len(signed) == 1:  # atomic updates come one by one
            first = int(signed[0])
            found = self._allocation_of(first)
            if first + nbytes > found.base + found.nbytes:
                raise self._past_the_end_of(found)
            self._touch(found, by_launch(self.batch, nbytes * times))
            return [(found, _ALL_OF_ONE, (signed - found.base) // nbytes)]
        left = np.ones(len(signed), dtype=bool)
        while left.any():
            first = int(signed[left].min())
            found = self._allocation_of(first)
            here = left & (signed >= found.base) & (signed + nbytes <= found.base + found.nbytes)
            if not here[signed == first].any():
                raise self._past_the_end_of(found)
            self._touch(found, self._accesses(signed, here, nbytes))
            out.append((found, here, (signed[here] - found.base) // nbytes))
            left &= ~here
        return out

    def _allocation_of(self, address: int) -> HostAllocation:
        found: HostAllocation | None = self.batch.execution.find(address)
        if found is None:
            raise MemoryAccessError(
                f"kernel {self.info.kernel}: inline assembly accesses address {address:#x}, which belongs to no live "
                f"tensor\n  {self.batch.describe_lanes(None)}\n  at {self.info.loc}"
            )
        return found

    def _past_the_end_of(self, allocation: HostAllocation) -> MemoryAccessError:
        return MemoryAccessError(
            f"kernel {self.info.kernel}: inline assembly reaches past the end of {allocation.describe()}\n"
            f"  {self.batch.describe_lanes(None)}\n  at {self.info.loc}"
        )

    def _touch(self, allocation: HostAllocation, shares: Shares) -> None:
        if allocation.base not in self._echoes:
            self.batch.execution.touch(self.info, allocation, shares, 0, allocation.nbytes, signals=False)

    def _accesses(self, address: np.ndarray, here: np.ndarray, nbytes: int) -> Shares:
        """Bytes accessed ``here``, by launch: what threads of a program do to one address is one access."""
        batch = self.batch
        if batch.threads is not None and len(here) == batch.size:
            each = np.stack([address[here], batch.program_keys()[here]])
            _, first = np.unique(each, axis=1, return_index=True)
            return by_launch_of_places(batch, nbytes, np.flatnonzero(here)[first], 1)
        if len(here) == self.size:
            return by_launch_of_places(batch, nbytes, self._lanes(np.flatnonzero(here)), 1)
        return by_launch(batch, int(here.sum()) * nbytes)

    def _signal(self, allocation: HostAllocation, offsets: np.ndarray, wrote: bool) -> None:
        if allocation.words is not None and len(offsets) <= _MOST_SIGNALS:
            self.batch.execution.signal(allocation, offsets.tolist(), wrote)

    def _programs(self, invocations: np.ndarray) -> np.ndarray:
        """Of which program each invocation is a thread, or an element."""
        return np.asarray(self.batch.program_keys()[self._lanes(invocations)])

    def _threads(self, invocations: np.ndarray) -> np.ndarray | None:
        """Which of its program's threads each invocation is; None: all do the same."""
        if self.batch.threads is None:
            return None
        return np.asarray(self.batch.thread_numbers()[self._lanes(invocations)])

    def _lanes(self, invocations: np.ndarray) -> np.ndarray:
        return invocations * self.batch.size // max(self.size, 1)

    def accessed(
        self, address: np.ndarray, nbytes: int, modifiers: Sequence[str], state: State, how: str,
        failed: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """See :class:`~kernbench.triton_engine.ptx.state.GlobalMemory`."""
        checks = self.batch.execution.checks
        if checks is None or self.batch.execution.dry:
            return
        invocations = state.invocations
        keys, threads = self._programs(invocations), self._threads(invocations)
        signed = address.astype(np.int64)
        left = np.ones(len(signed), dtype=bool)
        while left.any():
            found = self.batch.execution.find(int(signed[left].min()))
            if found is None:
                return  # the access itself says so
            here = left & (signed >= found.base) & (signed < found.base + found.nbytes)
            checks.words(self.info, found, keys[here], signed[here] - found.base, nbytes, modifiers,
                         reads="r" in how, writes="w" in how, failed=None if failed is None else failed[here],
                         threads=None if threads is None else threads[here])  # fmt: skip
            left &= ~here

    def fenced(self, state: State) -> None:
        """See :class:`~kernbench.triton_engine.ptx.state.GlobalMemory`."""
        if self.batch.execution.checks is not None:
            invocations = state.invocations
            self.batch.execution.checks.fence(self._programs(invocations), self._threads(invocations))

    def load(self, address: np.ndarray, nbytes: int, times: int = 1) -> np.ndarray:
        """See :class:`~kernbench.triton_engine.ptx.state.GlobalMemory`."""
        out = np.zeros(len(address), dtype=np.uint64)
        for allocation, here, index in self._places(address, nbytes, times):
            flat = allocation.flat(_RAW[nbytes]).numpy().view(_NP[nbytes])
            out[here] = flat[index].astype(np.uint64)
            self._signal(allocation, index * nbytes, False)
        return out

    def store(self, address: np.ndarray, value: np.ndarray, nbytes: int) -> None:
        """See :class:`~kernbench.triton_engine.ptx.state.GlobalMemory`."""
        if self.batch.execution.dry:
            return
        for allocation, here, index in self._places(address, nbytes):
            flat = allocation.flat(_RAW[nbytes]).numpy().view(_NP[nbytes])
            flat[index] = value[here].astype(_NP[nbytes])
            self._signal(allocation, index * nbytes, True)
        self.batch.wrote()


def _to_registers(full: Tensor, pack: int, bits: int) -> list[np.ndarray]:
    """A ``[lanes, elements]`` tensor as registers of ``bits`` bits holding ``pack`` neighbours together."""
    if full.dtype is torch.bool:
        full = full.to(torch.int8)
    size = full.element_size()
    raw = full.contiguous().view(_RAW[size]).numpy().view(_NP[size]).reshape(-1, pack).astype(np.uint64)
    per = max(1, bits // (8 * size))
    out = []
    for start in range(0, pack, per):
        value = np.zeros(raw.shape[0], dtype=np.uint64)
        for k in range(min(per, pack - start)):
            value |= raw[:, start + k] << np.uint64(8 * size * k)
        out.append(value)
    return out


def _from_registers(registers: list[np.ndarray], pack: int, bits: int, ty: Ty) -> Tensor:
    size = 1 if ty.elem == "i1" else 8 if ty.is_ptr else ty.dtype.itemsize
    per = max(1, bits // (8 * size))
    mask = np.uint64((1 << (8 * size)) - 1)
    columns = []
    for value in registers:
        for k in range(min(per, pack)):
            columns.append((value >> np.uint64(8 * size * k)) & mask)
    raw = np.stack(columns[:pack], axis=1).astype(_NP[size]).reshape(-1)
    signed = raw.view({1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[size])
    out = torch.from_numpy(signed.copy())
    return out != 0 if ty.elem == "i1" else out.view(torch.int64 if ty.is_ptr else ty.dtype)


def _tile(info: OpInfo) -> tuple[int, ...]:
    return next((t.shape for t in (*info.result_types, *info.operand_types) if t.shape), ())


def _tells_threads(info: OpInfo) -> bool:
    text = str(info.attrs["string"])
    return not _tile(info) and any(found.search(text) for found in (OF_THREADS, _EXCHANGES, _UPDATES))


def _check_threads(info: OpInfo, tile: tuple[int, ...], pack: int) -> None:
    """Refuse assembly of tiles whose result depends on which thread has which element."""
    text = str(info.attrs["string"])
    found = _EXCHANGES.search(text)
    if found is None and (tile != (info.threads,) or pack != 1):
        found = OF_THREADS.search(text)
    if found is not None:
        raise UnsupportedOpError(
            f"kernel {info.kernel}: inline assembly of a tile of {list(tile)} uses {found[0]}, and which of {info.threads} "
            f"threads has which element is not known before compilation\n  at {info.loc}\n"
            f"  Give it scalars (every thread runs it), or read %tid in a tile of one element per thread."
        )


@op(
    "tt.elementwise_inline_asm",
    pure=False,
    reads=True,
    writes=True,
    waits=True,
    exchanges=True,
    meets=lambda attrs: re.search(r"\bbar(?:rier)?\.", str(attrs["string"])) is not None,
    tells_threads=_tells_threads,
)
def _inline_asm(info: OpInfo) -> Callable[..., Any]:
    assembly = parse(str(info.attrs["string"]))
    pack = int(info.attrs.get("packed_element", 1))
    constraints = [c.strip() for c in str(info.attrs["constraints"]).split(",") if not c.strip().startswith("~")]
    outputs = [c.lstrip("=&+") for c in constraints if c.startswith(("=", "+"))]
    inputs = [c for c in constraints if not c.startswith("=")]
    types, results = info.operand_types, info.result_types
    tile = _tile(info)
    if tile:
        _check_threads(info, tile, pack)
    n_results = len(results)
    per_result = max(1, len(outputs) // max(1, n_results))

    def bits_of(constraint: str) -> int:
        letter = re.sub(r"[^a-z]", "", constraint)[:1] or "r"
        return _REGISTER_BITS.get(letter, 32)

    def shape_of(batch: Batch, xs: tuple[object, ...]) -> tuple[int, ...]:
        """The tile; inside a combine function, whose operands are scalars, that of what is being combined."""
        if tile:
            return tile
        nl = len(batch.lanes)
        combined = tuple(torch.broadcast_shapes(*(x.shape[nl:] for x in xs if type(x) is Tensor)))
        if combined:
            _check_threads(info, combined, pack)
        return combined

    def start(batch: Batch, xs: tuple[Any, ...], tile: tuple[int, ...]) -> Frame:
        elements = prod(tile)
        registers: dict[str, np.ndarray] = {}
        number = len(outputs)
        place = 0
        n = prod(batch.lanes) * elements // pack
        for x, ty in zip(xs, types, strict=True):
            combined = type(x) is Tensor and x.ndim > len(batch.lanes) + len(ty.shape)
            full = x if combined else materialise(x, batch, ty)
            if full.ndim < len(batch.lanes) + len(tile):
                full = full.reshape(full.shape + (1,) * len(tile))
            full = full.expand(batch.lanes + tile)
            for value in _to_registers(full, pack, bits_of(inputs[place])):
                constraint = inputs[place]
                if constraint.isdigit():
                    registers[f"${constraint}"] = value.copy()
                registers[f"${number}"] = value
                number += 1
                place += 1
        element = np.tile(np.arange(elements // pack), prod(batch.lanes))
        ids = np.broadcast_to(batch.ids, batch.lanes).reshape(-1).repeat(elements // pack)
        warps = None
        if batch.threads is not None and not tile:
            element = batch.thread_numbers()
            warps = batch.program_keys() * info.threads + element // info.warp_size
        specials = special_registers(ids, batch.execution.grid, element, info.threads, info.warp_size)
        return Frame(n, registers, np.zeros(n, dtype=np.int64), specials, warps)

    def finish(batch: Batch, frame: Frame, tile: tuple[int, ...]) -> Any:
        out = []
        for k, ty in enumerate(results):
            raw = [
                frame.registers.get(f"${k * per_result + r}", np.zeros(frame.size, dtype=np.uint64))
                for r in range(per_result)
            ]
            value = _from_registers(raw, pack, bits_of(outputs[k * per_result]), ty).reshape(batch.lanes + tile)
            out.append(settle(value, batch, tile, ty.is_int and ty.elem != "i1"))
        return tuple(out) if n_results > 1 else out[0] if out else None

    def execute(batch: Batch, *xs: Value) -> Any:
        shape = shape_of(batch, xs)
        frame = batch.suspended.pop(info.index, None)
        if frame is None:
            frame = start(batch, xs, shape)
        try:
            run(assembly, frame, BatchMemory(batch, info, frame.size), parks=not batch.execution.dry)
        except Stuck as stuck:
            stuck.frame = frame
            raise
        except AssemblyError as error:  # which knows the instruction, and not the kernel that it is in
            raise UnsupportedOpError(
                f"kernel {info.kernel}: {error}\n  {batch.describe_lanes(None)}\n  at {info.loc}\n  {info.text}"
            ) from error
        return finish(batch, frame, shape)

    return execute
