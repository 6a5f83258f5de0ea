"""Futures of collectives: complete when their operation is, without blocking the host before.

``Work.get_future()`` hands out a stock ``torch.futures.Future``; ``then`` and callbacks are torch's own. Completing it is this
rank's business: whenever it waits for, or looks at, any future or handle, and at the end of a backward pass, those whose
operations are done get their values, and their callbacks run, on this rank's thread.

C++ waits for futures without letting other ranks run. With ours, only DDP's reducer does so, in a callback at the end of
backward: a callback that is queued before it, when the future is handed out, waits for the operation (ADR 0044). Where the
reducer sends everything in its callback and waits for it at once (the first step of a static graph), what it is handed has been
waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernbench.order import RankOrder
from kernbench.scheduler.crew import acting_crew
from kernbench.sim_engine import Operation
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_C: Any = torch._C
_C_ENGINE: Any = torch.autograd.Variable._execution_engine
_Future: Any = torch._C.Future
_Reducer: Any = torch._C._distributed_c10d.Reducer
_stock_wait, _stock_done, _stock_value = _Future.wait, _Future.done, _Future.value
_stock_delayed = _Reducer._delay_all_reduce


def _calls_back_in_order(engine: Any) -> bool:
    seen: list[Any] = []

    def hook(gradient: Any) -> None:
        for number in range(2):
            engine.queue_callback(lambda number=number: seen.append(number))

    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(hook)
    leaf.sum().backward()
    return seen == [0, 1] and _C._current_graph_task_id() < 0


RELIES_ON = (
    *(Reliance(f"torch._C.Future.{name}", "Python's futures call what stands in its place", looked_up_by=(user,))
      for name, user in (("wait", "torch.futures.Future.wait"), ("value", "torch.futures.Future.value"),
                         ("done", "torch.futures.Future.done"))),
    Reliance("torch._C.Future", "its methods can be replaced", holds=lambda future: not future.__flags__ & 1 << 8),
    Reliance(
        "torch.autograd.Variable._execution_engine", "callbacks of a backward pass run in the order in which they were queued",
        has=("queue_callback",), holds=_calls_back_in_order,
    ),
    Reliance("torch._C._current_graph_task_id", "it is negative outside backward"),
    Reliance(
        "torch._C._distributed_c10d.Reducer._delay_all_reduce", "DDP calls what stands in its place",
        looked_up_by=("torch.nn.parallel.distributed._DDPSink.backward",),
    ),
)  # fmt: skip


@dataclass(eq=False, slots=True)
class _Pending:
    """A future whose operations may not be done.

    Attributes:
        operations: all must be done.
        future: torch's.
        results: give its value once they are done.
        awaited: whether the rank's stream waits for them: then the value may be used, as with NCCL.
    """

    operations: Sequence[Operation]
    future: Any
    results: Callable[[], list[torch.Tensor]]
    awaited: bool = False

    @property
    def done(self) -> bool:
        return self.awaited or all(op.done for op in self.operations)

    def complete(self, order: RankOrder | None, stream: str) -> None:
        for op in self.operations:
            op.observed = True
            if order is not None:  # callbacks, and who waits for the future, find the values there
                order.stream_waits(stream, (getattr(op, "moment", None),))
        error = next((op.error for op in self.operations if op.error is not None), None)
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(self.results())


class Futures:
    """The futures, of the spawn that it is bound to, that are not complete.

    Attributes:
        outstanding: by rank, in the order in which they were handed out; ranks that have none are not in it.
    """

    _simulation: Simulation

    def __init__(self) -> None:
        self.outstanding: dict[int, list[_Pending]] = {}
        #: Ranks in C++ that waits, as soon as it has them all, for the futures that it is given.
        self._awaiting: set[int] = set()

    def open(self, simulation: Simulation) -> None:
        """Keep the futures of ``simulation``'s ranks."""
        self._simulation = simulation

    def close(self) -> None:
        """Forget those that have not been waited for. Idempotent."""
        self.outstanding.clear()
        self._awaiting.clear()
        self.__dict__.pop("_simulation", None)

    def install(self, patches: Patches) -> None:
        """Let waits for futures, and looks at them, complete what can be completed."""

        def wait(future: Any) -> Any:
            """As torch's, while the other ranks, and other threads of this one, go on."""
            self._until_done(future)
            if acting_crew() is not None and not _stock_done(future):
                threads = self._simulation.threads
                notice = threads.notice("a future")
                future.add_done_callback(lambda _: notice.release())
                threads.wait(notice)
            return _stock_wait(future)

        def value(future: object) -> Any:
            """As torch's; as with NCCL, the value of a collective's future may be asked for at once."""
            self._until_done(future)
            return _stock_value(future)

        def done(future: object) -> bool:
            """Whether it is complete. Asking lets the others go on, so a loop of this ends."""
            rank = self._simulation.scheduler.current_rank() if self.outstanding else None
            pending = self.outstanding.get(rank) if rank is not None else None
            if pending and not _stock_done(future):
                if not any(each.done for each in pending):
                    self._simulation.polls.look(next(op for op in pending[0].operations if not op.done))
                self.settle()
            return bool(_stock_done(future))

        for name, function in (("wait", wait), ("value", value), ("done", done)):
            patches.set(_Future, name, function)

        def delayed(reducer: object) -> None:
            """As torch's: the all-reduces of all gradients, which it waits for."""
            rank = self._simulation.hosts.current_rank()
            self._awaiting.add(rank)
            try:
                _stock_delayed(reducer)
            finally:
                self._awaiting.discard(rank)

        patches.set(_Reducer, "_delay_all_reduce", delayed)

    def make(
        self, operations: Sequence[Operation], results: Callable[[], list[torch.Tensor]], *, awaited: bool = False
    ) -> Any:
        """A future of this rank that completes with ``results`` when ``operations`` are done, or have been ``awaited``."""
        future: Any = torch.futures.Future()
        pending = _Pending(operations, future, results, awaited)
        if pending.done:
            self._complete(pending)
            return future
        rank = self._simulation.hosts.current_rank()
        self.outstanding.setdefault(rank, []).append(pending)
        if rank in self._awaiting:
            self._finish(pending)
        elif _C._current_graph_task_id() >= 0:
            _C_ENGINE.queue_callback(lambda: self._finish(pending))
        return future

    def settle(self, awaited: object = None) -> None:
        """Complete this rank's futures whose operations are done, and the ``awaited`` one; their callbacks run."""
        rank = self._simulation.hosts.current_rank()
        pending = self.outstanding.get(rank, ())
        for each in pending:
            each.awaited |= each.future is awaited
        ready = [each for each in pending if each.done]
        for each in ready:
            self._remove(rank, each)
        for each in ready:
            self._complete(each)

    def _complete(self, pending: _Pending) -> None:
        host = self._simulation.hosts.current()
        if host.capture is not None:
            host.capture.wait_for_works(host, pending.operations)
        pending.complete(host.order, host.stream)

    def finish(self) -> None:
        """At the end of this rank's program: wait for what its futures promise, so that their callbacks run."""
        rank = self._simulation.hosts.current_rank()
        while rank in self.outstanding:
            self._finish(self.outstanding[rank][0])

    def _remove(self, rank: int, pending: _Pending) -> None:
        rest = self.outstanding.get(rank, [])
        if pending in rest:
            rest.remove(pending)
        if not rest:
            self.outstanding.pop(rank, None)

    def _finish(self, pending: _Pending) -> None:
        """Wait for one; what made it fail is raised here, where Python can still say so."""
        try:
            for op in pending.operations:
                self._simulation.waits.wait(op)
        finally:
            self.settle()

    def _until_done(self, future: object) -> None:
        """Complete this rank's futures, as their operations end, until ``future`` is complete or none is left."""
        rank = self._simulation.scheduler.current_rank() if self.outstanding else None
        while rank in self.outstanding and not _stock_done(future):
            pending = self.outstanding[rank]
            if not any(each.done for each in pending):
                own = next((each for each in pending if each.future is future), None)
                self._wait_for_one([own] if own is not None else pending)
            self.settle()

    def _wait_for_one(self, pending: Sequence[_Pending]) -> None:
        """Block this rank until one more of their operations is done."""
        waiting = [op for each in pending for op in each.operations if not op.done]
        self._simulation.waits.wait_for_first(waiting)
