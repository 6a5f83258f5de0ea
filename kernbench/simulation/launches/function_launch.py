"""Kernels written as Python functions.

``kernel(program_id, *args)`` is called once per program, with the tensors themselves. Such a kernel is a stand-in for one that
is not written yet, or the simplest way to test a schedule; its time is that of reading and writing its tensors once, unless
it has an attribute ``work(grid, *args) -> kernbench.cost.StatedWork``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernbench.cost.work import StatedWork
from kernbench.errors import KernbenchError
from kernbench.sim_engine import DataExecutor, GraphEngine, Operation
from kernbench.sim_engine.data_executor import Deferred, Finished
from kernbench.simulation.launches.streams import Streams
from kernbench.simulation.memory.tensor_queries import plain, short_dtype, storage_of, tells_of_looks, tensors_in
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.values.deferred_launches import Values

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
        hosts: Hosts,
        kernel: Callable[..., object],
        grid: Grid,
        args: tuple[object, ...],
        op: Operation,
        after: Sequence[Operation] = (),
    ) -> None:
        self.op = op
        self.after = after
        self.rank = op.rank
        self.batch_key: Hashable = id(self)  # Python functions are not batched
        self.touches = frozenset(id(storage_of(tensor)) for tensor in tensors_in(args))
        self._hosts = hosts
        self._kernel = kernel
        self._grid = grid
        self._args = args

    def start_batch(self, batch: Sequence[Deferred]) -> Finished:
        """Call the function for every program id, in order."""
        hosts = self._hosts
        args = tuple(plain(arg) if isinstance(arg, torch.Tensor) else arg for arg in self._args)
        hosts.inside_kernel = True
        host = hosts.current()
        host.detours += 1
        try:
            for index in itertools.product(*map(range, self._grid)):
                self._kernel(index[0] if len(index) == 1 else index, *args)
        except Exception as error:
            return Finished([error])
        finally:
            hosts.inside_kernel = False
            host.detours -= 1
        return Finished([None])


@dataclass(eq=False, repr=False)
class FunctionLauncher:
    """Launches Python functions in one simulation."""

    engine: GraphEngine
    hosts: Hosts
    streams: Streams
    executor: DataExecutor
    values: Values

    def launch(
        self, kernel: Callable[..., object], grid: object, args: tuple[object, ...], name: str | None
    ) -> Operation:
        """Enqueue ``kernel`` over ``grid`` on the current stream of the rank that runs.

        Raises:
            KernbenchError: ``grid`` is none.
        """
        sizes = as_grid(grid)
        host, has_data = self.hosts.current(), self.engine.enable_data
        label = name or str(getattr(kernel, "__name__", type(kernel).__name__))
        awaited = host.awaiting_values()
        op = self.streams.enqueue(
            host, label, function_work(kernel, sizes, args).cost(self.engine.topology.device), tensors=args,
            deferred=has_data, detail={"grid": list(sizes)},
        )  # fmt: skip
        if not has_data:
            return op
        self.executor.submit(FunctionLaunch(self.hosts, kernel, sizes, args, op, awaited))
        if any(not tells_of_looks(tensor) for tensor in tensors_in(args)):
            self.values.flush()  # no event says when the host reads a plain tensor
        return op


def function_work(kernel: Callable[..., object], grid: Grid, args: tuple[object, ...]) -> StatedWork:
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
