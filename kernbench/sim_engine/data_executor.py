"""Values: runs what was launched, in each rank's program order, as late as it may.

Launches are kept until somebody looks. That is what lets one drain run the same kernel of many ranks as one batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from kernbench.sim_engine.operation import Operation


class Deferred(Protocol):
    """A launch whose values have not been computed yet.

    Attributes:
        op: its operation; marked executed, or failed, when it has run.
        rank: whose program order it belongs to (None: main).
        batch_key: launches of different ranks with equal keys may run as one batch.
        touches: identities of the storages it may read or write.
    """

    op: Operation
    rank: int | None
    batch_key: Hashable
    touches: frozenset[int]

    def run_batch(self, batch: Sequence[Deferred]) -> Sequence[BaseException | None]:
        """Compute the values of ``batch`` (which contains self); one error or None for each."""


class DataExecutor:
    """The launches that are still to be computed, one queue per rank."""

    def __init__(self) -> None:
        self._queues: dict[int | None, deque[Deferred]] = {}
        self._touched: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def submit(self, launch: Deferred) -> None:
        """Keep a launch for later."""
        launch.op.executed = False
        self._queues.setdefault(launch.rank, deque()).append(launch)
        for storage in launch.touches:
            self._touched[storage] = self._touched.get(storage, 0) + 1

    def touches_any(self, storages: Iterable[int]) -> bool:
        """Whether a kept launch may read or write one of these storages."""
        return bool(self._touched) and any(storage in self._touched for storage in storages)

    def flush(self, now: float) -> bool:
        """Run every kept launch; an error ends its own operation only. Returns whether anything ran.

        Ranks advance together: the heads of all queues are grouped by batch key, so that the same kernel launched by
        many ranks runs once.
        """
        ran = False
        while self._queues:
            heads: dict[Hashable, list[Deferred]] = {}
            for rank in list(self._queues):
                launch = self._queues[rank].popleft()
                if not self._queues[rank]:
                    del self._queues[rank]
                heads.setdefault(launch.batch_key, []).append(launch)
                self._forget(launch)
            for batch in heads.values():
                ran = True
                self._run(batch, now)
        return ran

    def clear(self) -> None:
        """Drop every kept launch."""
        self._queues.clear()
        self._touched.clear()

    def _forget(self, launch: Deferred) -> None:
        for storage in launch.touches:
            left = self._touched[storage] - 1
            if left:
                self._touched[storage] = left
            else:
                del self._touched[storage]

    def _run(self, batch: list[Deferred], now: float) -> None:
        for launch, error in zip(batch, batch[0].run_batch(batch), strict=True):
            launch.op.executed = True
            if error is not None:
                launch.op.fail(error, now if launch.op.end is None else launch.op.end)
