"""Runs of an exploration: each in a fork of a process that has imported what all need and has run nothing of the program."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click
import torch.distributed

from kernbench.child_processes import end_with_fork_parent
from kernbench.commands import run as one_run
from kernbench.commands.torchrun_options import DASHES
from kernbench.errors import ConfigError, KernbenchError
from kernbench.explore import Trial, Watch
from kernbench.plugins.manager import default_manager, using
from kernbench.runtime_api import launcher as launcher  # imported before the forks, not in each
from kernbench.runtime_api.context import simulate


@dataclass(frozen=True)
class AskedRuns:
    """A command line of ``kernbench run``, for processes.

    Attributes:
        values: of its options and arguments.
        plugins: references of the plugins that it has loaded.
        given: values of their options.
        dashes: whether the program stood behind ``--``.
        keep: of the values of collectives, the one to keep whole.
        follow: find out where another answer may matter.
    """

    values: Mapping[str, Any]
    plugins: tuple[str, ...]
    given: Mapping[str, Any]
    dashes: bool
    keep: int | None = None
    follow: bool = False


def _trial(asked: AskedRuns, schedule: str) -> Trial:
    """Run the program once, in a process that is for that alone."""
    watch = Watch(asked.keep, follow=asked.follow)
    manager = default_manager().extended(asked.plugins)
    manager.register(watch)
    failure: BaseException | None = None
    context = click.Context(one_run.command)
    context.meta[DASHES] = asked.dashes
    with _printed() as output, using(manager, dict(asked.given)), context:
        try:
            one_run.command.callback(**asked.values, **{**one_run.GIVEN, "schedule": schedule})  # type: ignore[misc]
        except SystemExit as end:
            failure = None if not end.code else end
        except ConfigError:
            raise
        except KernbenchError as error:
            failure = error
        except BaseException as error:
            failure = RuntimeError(f"{type(error).__name__}: {error}")
    return watch.trial(schedule, output[0], failure)


@contextmanager
def _printed() -> Iterator[list[str]]:
    """What is printed in a block, C's prints too: a list of the output, filled in the end. Errors are not shown."""
    output = [""]
    kept = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        for stream, into in ((1, out), (2, errors)):
            os.dup2(into.fileno(), stream)
        try:
            yield output
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, outer in zip((1, 2), kept, strict=True):
                os.dup2(outer, stream)
                os.close(outer)
            out.seek(0)
            output[0] = out.read().decode(errors="replace")


class ForkedRuns:
    """Runs, each in a fork of this process, which has imported what all need and has run nothing of the program.

    Args:
        jobs: how many run at a time.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def __call__(self, asked: AskedRuns, schedules: Iterable[str]) -> Iterator[Trial]:
        """What each run came to, in the order of the schedules. Runs that have no waiter left are ended."""
        left, running = iter(schedules), deque[tuple[Any, Any]]()
        try:
            while True:
                for schedule in islice(left, self._jobs - len(running)):
                    running.append(begun(asked, schedule))
                if not running:
                    return
                trial = self.ended(*running[0])
                running.popleft()
                yield trial
        finally:
            for process, _ in running:
                process.kill()
            for process, _ in running:
                process.join()

    @staticmethod
    def ended(process: Any, answers: Any) -> Trial:
        """What a run has come to (:func:`begun`), when it has ended. Raises KernbenchError."""
        try:
            trial = answers.recv()
        except EOFError:
            process.join()
            raise KernbenchError(
                f"a run has died (exit code {process.exitcode}): run it alone, with kernbench run"
            ) from None
        process.join()
        if isinstance(trial, KernbenchError):
            raise trial
        found: Trial = trial
        return found


def begun(asked: AskedRuns, schedule: str) -> tuple[Any, Any]:
    """A run, in a fork that has been started: its process, and what will have its answer."""
    context = multiprocessing.get_context("fork")
    answers, mine = context.Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    process = context.Process(target=_answer, args=(mine, asked, schedule))
    process.start()
    mine.close()
    return process, answers


def _answer(connection: Any, asked: AskedRuns, schedule: str) -> None:
    """In a fork."""
    end_with_fork_parent()
    try:
        connection.send(_trial(asked, schedule))
    except ConfigError as error:
        connection.send(ConfigError(str(error)))
    connection.close()


def warm_up(system: str | None) -> None:
    """Have a small world do what programs do, so that its runs need not find out again what depends on no program."""

    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(rank)
        torch.distributed.all_reduce(torch.ones(4, device="cuda"))

    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork, and what waits for them would wait for ever
    with simulate(system) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=min(2, len(ctx.sips)))
