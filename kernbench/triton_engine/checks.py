"""Optional checks of a launch: reading memory never written, and two programs writing one address.

Switched on by ``KERNBENCH_TRITON_CHECK=1`` or :func:`set_checks`. Each allocation gets a shadow of one number per byte, so a
checked launch takes several times the memory and time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.environment_variables import is_on
from kernbench.errors import MemoryAccessError, RaceError

from .access import Access, Piece
from .batch import Batch
from .binding import Binding, program_of
from .frontend.program import OpInfo
from .memory import Checks, HostAllocation, registry


class UninitialisedReadError(MemoryAccessError):
    """A program read memory that was registered as fresh and that is unwritten."""


_enabled = is_on("KERNBENCH_TRITON_CHECK")


def set_checks(on: bool) -> bool:
    """Switch the checks of later launches on or off; returns what it was."""
    global _enabled
    before, _enabled = _enabled, on
    return before


def checks_of(binding: Binding, others: Checks | None) -> Checks | None:
    """The listener for every access of an execution: the checks here, if they are on, and ``others``."""
    if not _enabled:
        return others
    own = MemoryChecks(binding)
    return own if others is None else AllChecks((own, others))


def _in_turn(name: str) -> Any:
    def told(checks: AllChecks, *args: object, **kwargs: object) -> None:
        for each in checks.parts:
            getattr(each, name)(*args, **kwargs)

    return told


class AllChecks:
    """Several that receive every access, each in turn.

    Attributes:
        parts: those.
    """

    def __init__(self, parts: Sequence[Checks]) -> None:
        self.parts = parts

    read_piece, write_piece = _in_turn("read_piece"), _in_turn("write_piece")
    read_index, write_index = _in_turn("read_index"), _in_turn("write_index")
    words, fence, meet, ended = _in_turn("words"), _in_turn("fence"), _in_turn("meet"), _in_turn("ended")

    def reading(self, read: Callable[[], Tensor | None]) -> Tensor | None:
        """Does the load that they have received, as each of them sees memory."""
        for each in self.parts:
            read = partial(each.reading, read)
        return read()

    def history(self, allocation: HostAllocation, offset: int) -> str:
        """Who has written the word at a byte offset last, from the first of them that knows."""
        return next(filter(None, [each.history(allocation, offset) for each in self.parts]), "")


class MemoryChecks:
    """The writer of each byte during one launch: 0 for none, else the program's number plus one.

    It does not hold the binding, which holds it: in a cycle, a kernel's operands would live on until Python collects it.
    """

    def __init__(self, binding: Binding) -> None:
        self._programs = binding.programs
        self._grid = binding.grid
        self._ranks = [launch.rank for launch in binding.launches]
        self.writers: dict[int, Tensor] = {}

    def _writers(self, allocation: HostAllocation) -> Tensor:
        shadow = self.writers.get(allocation.base)
        if shadow is None:
            shadow = self.writers[allocation.base] = torch.zeros(allocation.nbytes, dtype=torch.int32)
        return shadow

    # Affine accesses

    def read_piece(self, access: Access, piece: Piece) -> None:
        """Refuse to read unwritten elements of a piece."""
        written = registry.written(piece.allocation.base)
        if written is not None:
            known = _bytes(written, piece, access.item).all(-1)
            if not bool(known.all()):
                self._unwritten(access, piece.allocation, int(_positions(piece)[~known][0]))

    def write_piece(self, access: Access, piece: Piece) -> None:
        """Note the writer of a piece; refuse two programs that write one element."""
        written = registry.written(piece.allocation.base)
        if written is not None:
            _bytes(written, piece, access.item).fill_(True)
        shared = any(
            stop - start > 1 and (at is None or stride == 0)
            for at, stride, (start, stop) in zip(piece.at, piece.strides, piece.lanes, strict=False)
        )
        ids = self._ids(access.batch)[tuple(slice(start, stop) for start, stop in piece.lanes)]
        if shared:
            pair = ids.reshape(-1)[[0, -1]]
            self._race(access, piece.allocation, piece.offset, int(pair[0]), int(pair[1]))
        shadow = _bytes(self._writers(piece.allocation), piece, access.item)
        who = ids.reshape(ids.shape + (1,) * (shadow.dim() - ids.dim())).expand(shadow.shape)
        self._compare(access, piece, shadow, who)
        shadow.copy_(who)
        self._compare(access, piece, shadow, who)

    def _compare(self, access: Access, piece: Piece, seen: Tensor, who: Tensor) -> None:
        clash = (seen != 0) & (seen != who)
        if bool(clash.any()):
            where = tuple(clash.nonzero()[0].tolist())
            element = int(_positions(piece)[where[:-1]])
            self._race(access, piece.allocation, element, int(seen[where]), int(who[where]))

    # Gathered accesses

    def read_index(self, access: Access, allocation: HostAllocation, index: Tensor, active: Tensor | None) -> None:
        """As :meth:`read_piece`, of the elements ``index``."""
        written = registry.written(allocation.base)
        if written is None:
            return
        flat = (index if active is None else index.expand(active.shape)[active]).reshape(-1)
        if flat.numel():
            known = written[flat * access.item]
            if not bool(known.all()):
                self._unwritten(access, allocation, int(flat[~known][0]))

    def write_index(self, access: Access, allocation: HostAllocation, index: Tensor, active: Tensor | None) -> None:
        """As :meth:`write_piece`, of the elements ``index``."""
        batch, item = access.batch, access.item
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
            self._race(access, allocation, int(flat[k]), int(seen[k]), int(writers[k]))
        written = registry.written(allocation.base)
        if written is not None:
            for byte in range(item):
                written[torch.from_numpy(flat * item + byte)] = True

    def reading(self, read: Callable[[], Tensor | None]) -> Tensor | None:
        """What is there."""
        return read()

    def words(
        self,
        info: OpInfo,
        allocation: HostAllocation,
        keys: np.ndarray,
        offsets: np.ndarray,
        nbytes: int,
        modifiers: Sequence[str],
        *,
        reads: bool,
        writes: bool,
        failed: object = None,
        threads: np.ndarray | None = None,
    ) -> None:
        """Atomics, and what inline assembly accesses, are not looked at."""

    def fence(self, keys: np.ndarray, threads: np.ndarray | None = None) -> None:
        """Nor are fences."""

    def meet(self, batch: Batch) -> None:
        """Nor is where threads meet."""

    def history(self, allocation: HostAllocation, offset: int) -> str:
        """Nor the sender of a signal."""
        return ""

    def ended(self) -> None:
        """Each access has been checked."""

    # Reports

    def _ids(self, batch: Batch) -> Tensor:
        linear = np.broadcast_to(batch.ids, batch.lanes).astype(np.int64)
        if batch.rank_index is not None:
            linear = linear + batch.rank_index * self._programs
        return torch.from_numpy(np.asarray(linear + 1, dtype=np.int32))

    def _program(self, writer: int) -> str:
        launch, linear = divmod(writer - 1, self._programs)
        name, owner = f"program {program_of(linear, self._grid)}", self._ranks[launch]
        return name if owner is None else f"rank {owner} {name}"

    def _race(self, access: Access, allocation: HostAllocation, element: int, one: int, two: int) -> None:
        raise RaceError(
            f"kernel {access.info.kernel}: {self._program(one)} and {self._program(two)} both write element {element} of "
            f"{allocation.describe()} without an atomic\n  at {access.info.loc}"
        )

    def _unwritten(self, access: Access, allocation: HostAllocation, element: int) -> None:
        raise UninitialisedReadError(
            f"kernel {access.info.kernel}: reads element {element} of {allocation.describe()}, which is unwritten\n"
            f"  {access.batch.describe_lanes(None)}\n  at {access.info.loc}"
        )


def _bytes(shadow: Tensor, piece: Piece, item: int) -> Tensor:
    """The shadow of a piece, with a last dimension over the bytes of an element."""
    strides = [*(s * item for s in piece.foot.steps), 1]
    return shadow.as_strided([*piece.sizes, item], strides, (piece.offset + piece.foot.flip) * item)


def _positions(piece: Piece) -> Tensor:
    """Element index of every element of a piece, backward dimensions turned round."""
    out = torch.tensor(piece.offset + piece.foot.flip)
    for step, extent in zip(piece.foot.steps, piece.sizes, strict=True):
        out = out.unsqueeze(-1) + torch.arange(extent) * step
    return out
