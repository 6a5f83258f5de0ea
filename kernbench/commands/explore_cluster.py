"""Runs of an exploration on the workers of a Dask cluster."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from kernbench.commands.explore_runs import AskedRuns
from kernbench.commands.explore_worker import run_here
from kernbench.errors import KernbenchError
from kernbench.explore import Trial
from kernbench.sweep.workers import connected, find_modules, modules_path


class ClusterRuns:
    """Runs on a cluster's workers, as many at a time as those have threads.

    Args:
        distributed: the module.
        client: of the cluster.
    """

    def __init__(self, distributed: Any, client: Any) -> None:
        self._distributed = distributed
        self._client = client

    def __call__(self, asked: AskedRuns, schedules: Iterable[str]) -> Iterator[Trial]:
        """What each run came to, in the order of the schedules. Runs that have no waiter left are ended."""
        path, directory = modules_path(), str(Path.cwd())
        over = self._distributed.Event(f"kernbench-{uuid.uuid4()}", client=self._client)
        left, running = iter(schedules), deque[Any]()
        try:
            while True:
                jobs = max(1, sum(self._client.nthreads().values()))
                for schedule in islice(left, jobs - len(running)):
                    running.append(
                        self._client.submit(_run, asked, schedule, directory, path, over.name, pure=False, retries=0)
                    )
                if not running:
                    return
                yield self._end(running.popleft())
        finally:
            if running:
                over.set()
                self._client.cancel(list(running))

    def _end(self, future: Any) -> Trial:
        try:
            trial: Trial = future.result()
        except self._distributed.KilledWorker as error:
            raise KernbenchError(f"Dask workers have died of a run: {error}") from None
        return trial


@contextmanager
def runs_on(scheduler: str) -> Iterator[ClusterRuns]:
    """Runs on the cluster of a scheduler. Raises :class:`ConfigError` if there is no answer, or Dask is not installed."""
    with connected(scheduler) as (distributed, client):
        yield ClusterRuns(distributed, client)


def _run(asked: AskedRuns, schedule: str, directory: str, path: list[str], over: str) -> Trial:
    """In a worker."""
    import distributed

    find_modules(path)
    event = distributed.Event(over, client=distributed.get_client())
    return run_here(asked, schedule, directory, path, lambda: not event.is_set())
