"""Runs of an exploration in a worker of Dask: a process beside it that is warm forks one for each run.

A worker has threads, and may be a process that must not have children of multiprocessing's: it is not forked itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from kernbench.commands.explore_runs import AskedRuns, ForkedRuns, begun, warm_up
from kernbench.errors import ConfigError, KernbenchError
from kernbench.explore import Trial
from kernbench.input_files import is_directory

_MODULE = "kernbench.commands.explore_worker"
_PATIENCE = 1.0
"""Seconds of this machine between checks whether a run still has a waiter."""


class WarmProcess:
    """A process that runs what it is asked for, one after the other; it ends when this one does.

    Args:
        system: of the runs that it is warm for.
        directory: where programs run.
        path: where modules are found besides.
    """

    def __init__(self, system: str | None, directory: str, path: list[str]) -> None:
        theirs_to_read, mine_to_write = os.pipe()
        mine_to_read, theirs_to_write = os.pipe()
        given = [system or "", *map(str, (theirs_to_read, theirs_to_write))]
        searched = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *given], cwd=directory, stdin=subprocess.DEVNULL,
            pass_fds=(theirs_to_read, theirs_to_write), env={**os.environ, "PYTHONPATH": searched},
        )  # fmt: skip
        os.close(theirs_to_read)
        os.close(theirs_to_write)
        self._ask, self._told = Connection(mine_to_write, readable=False), Connection(mine_to_read, writable=False)

    def run(self, asked: AskedRuns, schedule: str, is_wanted: Callable[[], bool]) -> Trial:
        """What a run comes to. Raises KernbenchError, also if the process dies, or the run has no waiter left."""
        try:
            self._ask.send((asked, schedule))
            while not self._told.poll(_PATIENCE):
                if not is_wanted():
                    self.close()
                    raise KernbenchError("the exploration that started this run has ended")
            trial = self._told.recv()
        except (EOFError, BrokenPipeError):
            self.close()
            raise KernbenchError("the process that runs programs beside a worker has died") from None
        if isinstance(trial, KernbenchError):
            raise trial
        found: Trial = trial
        return found

    @property
    def is_closed(self) -> bool:
        """Whether it runs nothing any more."""
        return self._ask.closed

    def close(self) -> None:
        """End it, and what it runs."""
        self._ask.close()
        self._told.close()
        self._process.wait()


_here: dict[tuple[Any, ...], WarmProcess] = {}
_one_at_a_time = threading.Lock()


def run_here(asked: AskedRuns, schedule: str, directory: str, path: list[str], is_wanted: Callable[[], bool]) -> Trial:
    """In a worker: run a program under a schedule, in a directory that this machine has, too. Raises KernbenchError."""
    if not is_directory(directory):
        raise ConfigError(f"a Dask worker does not see the folder {directory}: explore where it is, on all machines")
    system = asked.values["system"]
    key = system, directory, *path
    with _one_at_a_time:
        process = _here.get(key)
        if process is None or process.is_closed:
            process = _here[key] = WarmProcess(system, directory, path)
        return process.run(asked, schedule, is_wanted)


def main(system: str, to_read: str, to_write: str) -> None:
    """Answer requests until no more can arrive."""
    requests, answers = Connection(int(to_read), writable=False), Connection(int(to_write), readable=False)
    warm_up(system or None)
    while True:
        try:
            asked, schedule = requests.recv()
        except EOFError:
            return
        process, result = begun(asked, schedule)
        if requests in wait([result, requests]):  # it has been closed
            process.kill()
            process.join()
            return
        try:
            answers.send(ForkedRuns.ended(process, result))
        except KernbenchError as error:
            answers.send(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
