"""The handle of a collective, as torch's own code expects it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kernbench.errors import KernbenchError
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.process_groups.flat_lists import FlatList
from kernbench.torch_backend.process_groups.futures import Futures

_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
_OFF = frozenset({"", "0", "n", "no", "f", "false"})
"""What torch takes for no, in a variable of the environment."""


class Work(dist.Work):
    """One or more of this rank's operations, as one ``torch.distributed.Work``.

    Args:
        simulation: of the rank.
        futures: makes its future, if it may have one.
        operations: what must be done.
        tensors: what they write on this rank.
        source: asked by ``source_rank`` once it is done.
        on_stream: :meth:`wait` lets the current stream wait and the host go on, as NCCL's does; else the host waits too.

    Attributes:
        flat: what its tensors are copied from, which is what it shows as its result; None: they are that themselves.
        stashed: memory that it keeps until it has been waited for.
        of_nccl: whether it is NCCL's: how long it may take counts from its call. Barriers are, and have no tensors.
        on_failure: given the error of one that has failed while it was waited for.
    """

    flat: FlatList | None = None
    stashed: FlatList | None = None
    _future: object = None
    on_failure: Callable[[dist.DistBackendError], None] | None = None
    _awaited = False
    future_waits = False
    """Whether :meth:`get_future` waits: C++ code would look at the future before this rank can complete it."""

    def __init__(
        self,
        simulation: Simulation,
        futures: Futures | None,
        operations: Sequence[Operation],
        tensors: Sequence[torch.Tensor] = (),
        source: Callable[[], int] | None = None,
        on_stream: bool = False,
    ) -> None:
        super().__init__()
        self._simulation = simulation
        self._futures = futures
        self.operations = operations
        self.tensors = tensors
        self._source = source
        self.on_stream = self.of_nccl = on_stream

    def wait(self, timeout: timedelta | None = None) -> bool:
        """What this rank does next happens after it. Raises what made it fail.

        Tensors on a GPU: the current stream waits, unless TORCH_NCCL_BLOCKING_WAIT or a ``timeout`` asks for the host too (ADR
        0070). A collective that has not begun that long after it was called has failed.
        """
        host = self._simulation.hosts.current()
        graph = host.capture
        if graph is not None:
            graph.wait_for_works(host, self.operations)
        if timeout:
            seconds = timeout.total_seconds()
            for op in self.operations:  # NCCL's time begins with the call, gloo's with the wait
                begin = op.enqueue if self.of_nccl else host.clock
                self._simulation.limit_wait(op, max(begin + seconds, host.clock), seconds, self.of_nccl)
        on_stream = self.on_stream and not timeout and os.environ.get(_BLOCKING, "0").lower() in _OFF
        wait = self._simulation.wait_on_stream if on_stream else self._simulation.waits.wait
        try:
            for op in self.operations:
                wait(op)
        except dist.DistBackendError as error:
            if self.on_failure is not None:
                self.on_failure(error)
            raise
        if self._futures is not None and self._futures.outstanding:
            self._futures.settle(self._future)
        self._awaited = True
        self.stashed = None
        return True

    @property
    def operation(self) -> Operation:
        """This rank's part of the collective."""
        return self.operations[0]

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would return at once. Asking lets the others go on, so a loop of this ends."""
        for op in self.operations:
            if not op.done:
                self._simulation.polls.look(op)
        done = all(op.done for op in self.operations)
        if done:
            for op in self.operations:
                self._simulation.waits.met(op)
        return done

    def is_success(self) -> bool:
        """Whether it is done and did not fail. Raises NotImplementedError, as NCCL's works do, of tensors on a GPU."""
        if self.on_stream:
            raise NotImplementedError("WorkNCCL::isSuccess() is deprecated")
        return all(op.done and op.error is None for op in self.operations)

    def exception(self) -> BaseException | None:
        """What made it fail, if anything did."""
        return next((op.error for op in self.operations if op.error is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The tensors that it wrote; waits for them."""
        self.wait()
        return self._results()

    def _results(self) -> list[torch.Tensor]:
        return list(self.tensors) if self.flat is None else [self.flat.tensor()]

    def source_rank(self) -> int:
        """Number in the group of the rank that a received message came from."""
        if self._source is None:
            raise RuntimeError(
                "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."
            )
        return self._source()

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of the tensors that it writes; the same one every time (ADR 0044)."""
        if self._future is None:
            if self.future_waits:
                self.wait()
            if self._futures is None:
                raise KernbenchError("futures of collectives need ranks with threads: spawn with isolation='carrier'")
            self._future = self._futures.make(self.operations, self._results, awaited=self._awaited)
        return self._future

    def get_future_result(self) -> Any:
        """A future of 0, NCCL's word for success; fails as the work does."""
        return self.get_future().then(lambda future: future.value() and 0)

    _source_rank = source_rank
    getFuture = get_future
