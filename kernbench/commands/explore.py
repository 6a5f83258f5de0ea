"""``kernbench explore``: a program under many schedules, until something is found."""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import click
import torch.distributed

from kernbench.commands import run as one_run
from kernbench.commands.report_option import report_option
from kernbench.commands.torchrun_options import TorchrunCommand
from kernbench.errors import ConfigError, KernbenchError
from kernbench.explore import FoundTrouble, Trial, Watch, explored, searched, shrunk, ulps
from kernbench.explore.study import RunLog, study_of
from kernbench.html_report.study import write_study
from kernbench.order import schedule_of, told
from kernbench.plugins.manager import default_manager, using
from kernbench.runtime_api import launcher as launcher  # imported before the forks, not in each
from kernbench.runtime_api.context import simulate

_GIVEN: dict[str, Any] = {
    "schedule": None, "races_output": None, "trace": None, "flight_recorder": None, "autotune_report": None, "json": None,
    "prefix": True, "summary": False, "progress": False, "report_file": None,
}  # fmt: skip
"""Options of ``kernbench run`` that each run has, whatever the user says."""


@dataclass(frozen=True)
class _Asked:
    """A command line of ``kernbench run``, for processes.

    Attributes:
        values: of its options and arguments.
        plugins: references of the plugins that it has loaded.
        given: values of their options.
        keep: of the values of collectives, the one to keep whole.
        follow: find out where another answer may matter.
    """

    values: Mapping[str, Any]
    plugins: tuple[str, ...]
    given: Mapping[str, Any]
    keep: int | None = None
    follow: bool = False


def _trial(asked: _Asked, schedule: str) -> Trial:
    """Run the program once, in a process that is for that alone."""
    watch = Watch(asked.keep, follow=asked.follow)
    manager = default_manager().extended(asked.plugins)
    manager.register(watch)
    failure: BaseException | None = None
    with _printed() as output, using(manager, dict(asked.given)):
        try:
            one_run.command.callback(**asked.values, **{**_GIVEN, "schedule": schedule})  # type: ignore[misc]
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


class _Forks:
    """Runs, each in a fork of this process, which has imported what all need and has run nothing of the program.

    Args:
        jobs: how many run at a time.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._context = multiprocessing.get_context("fork")

    def __call__(self, asked: _Asked, schedules: Iterable[str]) -> Iterator[Trial]:
        """What each run came to, in the order of the schedules. Runs that nobody waits for any more are ended."""
        left, running = iter(schedules), deque[tuple[Any, Any]]()
        try:
            while True:
                for schedule in islice(left, self._jobs - len(running)):
                    running.append(self._begin(asked, schedule))
                if not running:
                    return
                trial = self._end(*running[0])
                running.popleft()
                yield trial
        finally:
            for process, _ in running:
                process.kill()
            for process, _ in running:
                process.join()

    def _begin(self, asked: _Asked, schedule: str) -> tuple[Any, Any]:
        answers, mine = self._context.Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        process = self._context.Process(target=_answer, args=(mine, asked, schedule))
        process.start()
        mine.close()
        return process, answers

    @staticmethod
    def _end(process: Any, answers: Any) -> Trial:
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


def _answer(connection: Any, asked: _Asked, schedule: str) -> None:
    """In a fork."""
    try:
        connection.send(_trial(asked, schedule))
    except ConfigError as error:
        connection.send(ConfigError(str(error)))
    connection.close()


def _warm(system: str | None) -> None:
    """Have a small world do what programs do, so that its runs need not find out again what depends on no program."""

    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(rank)
        torch.distributed.all_reduce(torch.ones(4, device="cuda"))

    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork, and what waits for them would wait for ever
    with simulate(system) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=min(2, len(ctx.sips)))


def _params() -> list[click.Parameter]:
    """Those of ``kernbench run`` but the ones that each run has; races are looked for unless the user says otherwise."""
    params = []
    for each in one_run.command.params:
        if each.name not in (*_GIVEN, "references"):
            param = copy.copy(each)
            if param.name == "races":
                param.default, param.envvar = "error", None
            params.append(param)
    return params


@click.command(cls=TorchrunCommand, params=_params(), context_settings={"allow_interspersed_args": False})
@click.option("--runs", type=click.IntRange(min=1), default=200, show_default=True, help="Schedules to try.")
@click.option("--how", metavar="random|pct:DEPTH|exhaustive[:BOUND]", default="pct:3", show_default=True,
              help="How schedules are made. exhaustive: all that can differ, with at most BOUND answers other than the "
              "default ones.")  # fmt: skip
@click.option("--jobs", "-j", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at a time.")
@click.option("--differences/--no-differences", default=True, help="Values and output that differ from those of the default "
              "schedule are something that is found, too.")  # fmt: skip
@click.option("--shrink/--no-shrink", default=True, help="Look for the fewest choices that find the same.")
@report_option
def command(
    runs: int, how: str, jobs: int, differences: bool, shrink: bool, report_file: str | None, **values: Any
) -> None:
    """Run PROGRAM, as kernbench run does, under one schedule after the other until something is found.

    That is a race, a deadlock, a mismatch, an exception, or values that are not always the same. The exit code is 1 then. The
    schedule is printed: kernbench run --schedule replays it.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ConfigError("kernbench explore needs a system on which processes can fork")
    manager = default_manager()
    asked = _Asked(values, tuple(manager.references), dict(manager.given))
    _warm(values["system"])
    run, log = _Forks(jobs), RunLog()
    if how.startswith("exhaustive"):
        orders = searched(log.noting(partial(run, replace(asked, follow=True))), how, runs, differences=differences)
        found, count, told_of = orders.found, orders.runs, str(orders)
    else:
        found, count = explored(log.noting(partial(run, asked)), how, runs, differences=differences)
        told_of = ""
    words: list[tuple[str, str]] = []
    if found is not None:
        words = _tell(found, asked, run, log, shrink=shrink)
    else:
        click.echo(f"nothing found in {count} runs ({how}): no race, no failure, and the same values in all of them")
        if told_of:
            click.echo(told_of)
    if report_file is not None:
        write_study(report_file, study_of(log, values["program"], how, found, words, told_of))
    if found is not None:
        sys.exit(1)


def _tell(found: FoundTrouble, asked: _Asked, run: _Forks, log: RunLog, *, shrink: bool) -> list[tuple[str, str]]:
    """Print what was found, and what it takes to find it again; gives the latter for the page, heading and text."""
    where = "its default schedule" if found.runs == 1 else f"schedule {found.trial.schedule}"
    click.echo(f"found in run {found.runs}, under {where}: {found.trouble.kind}")
    click.echo(found.trouble.text)
    words = []
    if found.trouble.item is not None:
        apart = _apart(found, found.trouble.item, asked, run)
        click.echo(apart)
        words.append(("how far apart", apart))
    if found.runs == 1:
        return words
    choices = found.trial.taken
    if shrink:
        log.part = "shrink"
        choices, more = shrunk(log.noting(partial(run, asked)), found)
        needed = [f"{choice}: {told(choice, place)}" for choice, place in choices]
        click.echo(
            f"of {len(found.trial.taken)} choices other than the default ones, {len(choices)} are needed ({more} runs):"
        )
        for line in needed:
            click.echo(f"  {line}")
        words.append((f"of {len(found.trial.taken)} choices these are needed", "\n".join(needed)))
    replay = schedule_of(choice for choice, _ in choices) if shrink else found.trial.schedule
    click.echo(f"replay: kernbench run --schedule {replay} ... (the same options and program)")
    return [*words, ("replay", f"kernbench run --schedule {replay} ... (the same options and program)")]


def _apart(
    found: FoundTrouble, item: int, asked: _Asked, run: Callable[[_Asked, Iterable[str]], Iterator[Trial]]
) -> str:
    """How far the values of a collective are from the usual ones."""
    name = found.usual.values[item][0]
    there = [at for at, (other, _) in enumerate(found.trial.values) if other == name]
    sides = ((found.usual.schedule, item), (found.trial.schedule, there[0]))
    kept = [next(run(_Asked(asked.values, asked.plugins, asked.given, at), [schedule])).kept for schedule, at in sides]
    return ulps(*kept)
