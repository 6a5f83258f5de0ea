"""Kernels written as Python functions, and how any kernel is launched.

``ctx.launch(kernel, grid, *args)`` takes what a *launcher* for it is registered for. This module brings the one for
plain Python functions: ``kernel(program_id, *args)`` is called once per program, with the tensors themselves. Such a
kernel is a stand-in for one that is not written yet, or the simplest way to test a schedule; its time is that of reading
and writing its tensors once, unless it has an attribute ``work(grid, *args) -> kernbench.cost.work.StatedWork``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kernbench.cost.work import StatedWork
from kernbench.errors import KernbenchError
from kernbench.runtime_api.tensor import plain, storage_of, tensors_in
from kernbench.runtime_api.types import short_dtype
from kernbench.sim_engine.data_executor import Deferred, Finished
from kernbench.sim_engine.operation import Operation

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

Grid = tuple[int, ...]


def as_grid(grid: Any) -> Grid:
    """A grid as a tuple of one to three integers >= 0."""
    sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise KernbenchError(f"grid {grid!r}: expected an integer or a tuple of one to three integers >= 0")
    return sizes


class FunctionLaunch:
    """One launch of a Python function."""

    def __init__(
        self,
        ctx: RuntimeContext,
        kernel: Callable[..., Any],
        grid: Grid,
        args: tuple[Any, ...],
        op: Operation,
        after: Sequence[Operation] = (),
    ) -> None:
        self.op = op
        self.after = after
        self.rank = op.rank
        self.batch_key: Hashable = id(self)  # Python functions are not batched
        self.touches = frozenset(id(storage_of(tensor)) for tensor in tensors_in(args))
        self._ctx = ctx
        self._kernel = kernel
        self._grid = grid
        self._args = args

    def start_batch(self, batch: Sequence[Deferred]) -> Finished:
        """Call the function for every program id, in order."""
        ctx = self._ctx
        args = tuple(plain(arg) if isinstance(arg, torch.Tensor) else arg for arg in self._args)
        ctx._inside_kernel = True
        try:
            for index in itertools.product(*map(range, self._grid)):
                self._kernel(index[0] if len(index) == 1 else index, *args)
        except Exception as error:
            return Finished([error])
        finally:
            ctx._inside_kernel = False
        return Finished([None])


class ValueMarker:
    """Does nothing, once what its rank has launched before, the operations ``after``, has run."""

    touches: frozenset[int] = frozenset()

    def __init__(self, op: Operation, after: Sequence[Operation]) -> None:
        self.op = op
        self.after = after
        self.rank = op.rank
        self.batch_key: Hashable = id(self)

    def start_batch(self, batch: Sequence[Deferred]) -> Finished:
        return Finished([None] * len(batch))


def function_work(kernel: Callable[..., Any], grid: Grid, args: tuple[Any, ...]) -> StatedWork:
    """What a launch of a Python function does: its own ``work``, or one read and one write of every tensor."""
    own = getattr(kernel, "work", None)
    if own is not None:
        result = own(grid, *args)
        if not isinstance(result, StatedWork):
            raise KernbenchError(f"{kernel!r}.work returned {result!r}: expected a kernbench.cost.work.StatedWork")
        return result
    tensors = list(tensors_in(args))
    dtype = short_dtype(tensors[0].dtype) if tensors else "fp32"
    return StatedWork(nbytes=2 * sum(tensor.numel() * tensor.element_size() for tensor in tensors), dtype=dtype)
