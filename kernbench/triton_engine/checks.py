"""Optional checks of a launch: reading memory never written, and two programs writing one address.

Switched on by ``KERNBENCH_TRITON_CHECK=1`` or :func:`set_checks`. Each allocation gets a shadow of one number per byte, so a
checked launch takes several times the memory and time.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import MemoryAccessError

from .access import Piece
from .batch import Batch
from .binding import Binding
from .frontend.program import OpInfo
from .memory import HostAllocation, registry


class RaceError(MemoryAccessError):
    """Two programs of one launch wrote one address without an atomic. The message names both, tensor and line."""


class UninitialisedReadError(MemoryAccessError):
    """A program read memory that was registered as fresh and that nobody has written."""


_enabled = os.environ.get("KERNBENCH_TRITON_CHECK") == "1"


def set_checks(on: bool) -> bool:
    """Switch the checks of later launches on or off; returns what it was."""
    global _enabled
    before, _enabled = _enabled, on
    return before


def checks_of(binding: Binding) -> MemoryChecks | None:
    """The checks of an execution, if they are on."""
    return MemoryChecks(binding) if _enabled else None


class MemoryChecks:
    """Who wrote which byte during one launch (0: nobody, else the program's number plus one)."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.writers: dict[int, Tensor] = {}

    def _writers(self, allocation: HostAllocation) -> Tensor:
        shadow = self.writers.get(allocation.base)
        if shadow is None:
            shadow = self.writers[allocation.base] = torch.zeros(allocation.nbytes, dtype=torch.int32)
        return shadow

    # Affine accesses

    def read_piece(self, batch: Batch, info: OpInfo, piece: Piece, item: int) -> None:
        written = registry.written(piece.allocation.base)
        if written is not None:
            view = _bytes(written, piece, item)
            if not bool(view.all()):
                self._unwritten(batch, info, piece.allocation, int(_positions(piece, item)[~view.all(-1)][0]), item)

    def write_piece(self, batch: Batch, info: OpInfo, piece: Piece, item: int) -> None:
        written = registry.written(piece.allocation.base)
        if written is not None:
            _bytes(written, piece, item).fill_(True)
        nl = len(batch.lanes)
        shared = any(
            z - a > 1 and (at is None or stride == 0)
            for at, stride, (a, z) in zip(piece.at, piece.strides, piece.lanes, strict=False)
        )
        ids = self._ids(batch)[tuple(slice(a, z) for a, z in piece.lanes)]
        if shared:
            pair = ids.reshape(-1)[[0, -1]]
            self._race(batch, info, piece.allocation, piece.offset, item, int(pair[0]), int(pair[1]))
        who = ids.reshape(ids.shape + (1,) * (len(piece.sizes) - nl + 1))
        view = _bytes(self._writers(piece.allocation), piece, item)
        self._compare(batch, info, piece.allocation, view, who.expand(view.shape), _positions(piece, item), item)
        view.copy_(who.expand(view.shape))
        self._compare(batch, info, piece.allocation, view, who.expand(view.shape), _positions(piece, item), item)

    def _compare(
        self,
        batch: Batch,
        info: OpInfo,
        allocation: HostAllocation,
        seen: Tensor,
        who: Tensor,
        position: Tensor,
        item: int,
    ) -> None:
        clash = (seen != 0) & (seen != who)
        if bool(clash.any()):
            at = clash.nonzero()[0]
            where = tuple(at.tolist())
            self._race(batch, info, allocation, int(position[where[:-1]]), item, int(seen[where]), int(who[where]))

    # Gathered accesses

    def read_index(
        self, batch: Batch, info: OpInfo, allocation: HostAllocation, index: Tensor, active: Tensor | None, item: int
    ) -> None:
        written = registry.written(allocation.base)
        if written is None:
            return
        flat = (index if active is None else index.expand(active.shape)[active]).reshape(-1)
        if flat.numel():
            known = written[flat * item]
            if not bool(known.all()):
                self._unwritten(batch, info, allocation, int(flat[~known][0]), item)

    def write_index(
        self, batch: Batch, info: OpInfo, allocation: HostAllocation, index: Tensor, active: Tensor | None, item: int
    ) -> None:
        nl = len(batch.lanes)
        shape = batch.lanes + tuple(index.shape[nl:])
        if active is not None:
            shape = torch.broadcast_shapes(shape, active.shape)
        ids = self._ids(batch)
        who = ids.reshape(ids.shape + (1,) * (len(shape) - nl)).expand(shape)
        where = index.expand(shape)
        if active is not None:
            keep = active.expand(shape)
            who, where = who[keep], where[keep]
        flat, writers = where.reshape(-1).numpy(), who.reshape(-1).numpy()
        shadow = self._writers(allocation).numpy()
        seen = shadow[flat * item]
        clash = (seen != 0) & (seen != writers)
        if not clash.any():
            shadow[flat * item] = writers
            seen = shadow[flat * item]
            clash = seen != writers
        if clash.any():
            k = int(np.nonzero(clash)[0][0])
            self._race(batch, info, allocation, int(flat[k]), item, int(seen[k]), int(writers[k]))
        written = registry.written(allocation.base)
        if written is not None:
            for byte in range(item):
                written[torch.from_numpy(flat * item + byte)] = True

    # Reports

    def _ids(self, batch: Batch) -> Tensor:
        linear = np.broadcast_to(batch.ids, batch.lanes).astype(np.int64)
        if batch.rank_index is not None:
            linear = linear + batch.rank_index * self.binding.programs
        return torch.from_numpy((linear + 1).astype(np.int32))

    def _program(self, writer: int) -> str:
        rank, linear = divmod(writer - 1, self.binding.programs)
        name = f"program {self.binding.program_of(linear)}"
        owner = self.binding.launches[rank].rank
        return name if owner is None else f"rank {owner} {name}"

    def _race(
        self, batch: Batch, info: OpInfo, allocation: HostAllocation, element: int, item: int, one: int, two: int
    ) -> None:
        raise RaceError(
            f"kernel {info.kernel}: {self._program(one)} and {self._program(two)} both write element {element} of "
            f"{allocation.describe()} without an atomic\n  at {info.loc}"
        )

    def _unwritten(self, batch: Batch, info: OpInfo, allocation: HostAllocation, element: int, item: int) -> None:
        raise UninitialisedReadError(
            f"kernel {info.kernel}: reads element {element} of {allocation.describe()}, which nobody has written\n"
            f"  {batch.describe_lanes(None)}\n  at {info.loc}"
        )


def _bytes(shadow: Tensor, piece: Piece, item: int) -> Tensor:
    """The shadow of a piece, with a last dimension over the bytes of an element."""
    offset, strides = _forward(piece)
    return shadow.as_strided([*piece.sizes, item], [*(s * item for s in strides), 1], offset * item)


def _forward(piece: Piece) -> tuple[int, list[int]]:
    """Offset and strides of the piece's elements with backward dimensions turned round."""
    offset = piece.offset
    strides = list(piece.strides)
    for d, (s, n) in enumerate(zip(piece.strides, piece.sizes, strict=True)):
        if s < 0:
            offset += s * (n - 1)
            strides[d] = -s
    return offset, strides


def _positions(piece: Piece, item: int) -> Tensor:
    """Element index of every element of a piece."""
    offset, strides = _forward(piece)
    out = torch.full((1,) * len(strides), offset, dtype=torch.int64)
    for d, (s, n) in enumerate(zip(strides, piece.sizes, strict=True)):
        shape = [1] * len(strides)
        shape[d] = n
        out = out + (torch.arange(n) * s).reshape(shape)
    return out
