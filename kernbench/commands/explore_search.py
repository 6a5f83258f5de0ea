"""What ``kernbench explore`` does once its arguments are known: it searches, and prints what is found."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import click

from kernbench.commands.explore_cluster import runs_on
from kernbench.commands.explore_runs import AskedRuns, ForkedRuns, warm_up
from kernbench.commands.torchrun_options import DASHES
from kernbench.errors import ConfigError, KernbenchError
from kernbench.explore import FoundTrouble, Trial, explored, searched, shrunk, ulps
from kernbench.explore.study import RunLog, study_of
from kernbench.html_report.study import write_study
from kernbench.interruption import ending_signals
from kernbench.order import schedule_of, told
from kernbench.plugins.manager import default_manager
from kernbench.plurals import counted
from kernbench.stand_ins import standing_in

_PATIENCE = 2
"""With fewer ranks, so many times as many schedules are tried as it took to find something with all of them."""

ExploredRuns = Callable[[AskedRuns, Iterable[str]], Iterator[Trial]]
"""Runs a program under schedules, and gives what each came to, in their order."""


def explore(
    runs: int,
    how: str,
    jobs: int | None,
    scheduler: str | None,
    values: Mapping[str, Any],
    *,
    differences: bool,
    shrink: bool,
    report_file: str | None,
) -> None:
    """Search, print what is found, and exit with 1 if something is. The arguments are the command's; ``values``: of a run's."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ConfigError("kernbench explore needs a system on which processes can fork")
    manager = default_manager()
    dashes = bool(click.get_current_context().meta.get(DASHES))
    asked = AskedRuns(values, tuple(manager.references), dict(manager.given), dashes)
    if scheduler is not None and jobs is not None:
        raise ConfigError(
            "--jobs is for runs on this machine: leave it out with --scheduler, whose workers say how many run"
        )
    with standing_in(values["stand_ins"]):
        pass  # one that there is none of is no finding of a run
    with ExitStack() as stack:
        stack.enter_context(ending_signals())  # the forks end with this process
        if scheduler is None:
            warm_up(values["system"])
            run: ExploredRuns = ForkedRuns(jobs or 1)
        else:
            run = stack.enter_context(runs_on(scheduler))
        found = _explore(run, asked, runs, how, differences=differences, shrink=shrink, report_file=report_file)
    if found:
        sys.exit(1)


def _explore(
    run: ExploredRuns,
    asked: AskedRuns,
    runs: int,
    how: str,
    *,
    differences: bool,
    shrink: bool,
    report_file: str | None,
) -> bool:
    """Search, and print what is found; gives whether something was."""
    log = RunLog()
    if how.startswith("exhaustive"):
        orders = searched(log.noting(partial(run, replace(asked, follow=True))), how, runs, differences=differences)
        found, count, told_of = orders.found, orders.runs, str(orders)
    else:
        found, count = explored(log.noting(partial(run, asked)), how, runs, differences=differences)
        told_of = ""
    words: list[tuple[str, str]] = []
    if found is not None:
        words = _tell(found, asked, run, log, shrink=shrink)
        if shrink:
            words += _tell_of_fewer_ranks(found, asked, run, log, how)
    else:
        click.echo(
            f"nothing found in {counted(count, 'run')} ({how}): no race, no failure, and the same values in all of them"
        )
        if told_of:
            click.echo(told_of)
    if report_file is not None:
        write_study(report_file, study_of(log, asked.values["program"], how, found, words, told_of))
    return found is not None


def _tell(
    found: FoundTrouble, asked: AskedRuns, run: ExploredRuns, log: RunLog, *, shrink: bool
) -> list[tuple[str, str]]:
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
            f"of {len(found.trial.taken)} choices other than the default ones, {len(choices)} are needed "
            f"({counted(more, 'run')}):"
        )
        for line in needed:
            click.echo(f"  {line}")
        words.append((f"of {len(found.trial.taken)} choices these are needed", "\n".join(needed)))
    replay = schedule_of(choice for choice, _ in choices) if shrink else found.trial.schedule
    click.echo(f"replay: kernbench run --schedule {replay} ... (the same options and program)")
    return [*words, ("replay", f"kernbench run --schedule {replay} ... (the same options and program)")]


def _tell_of_fewer_ranks(
    found: FoundTrouble, asked: AskedRuns, run: ExploredRuns, log: RunLog, how: str
) -> list[tuple[str, str]]:
    """Print how the same is found with the fewest ranks, if not all are needed; gives that for the page, heading and text."""
    world = asked.values["nproc_per_node"]
    if type(world) is not int:
        return []
    log.part = "shrink"
    how, most = ("random" if how.startswith("exhaustive") else how), _PATIENCE * (found.runs - 1)
    for fewer in range(1, world):
        less = replace(asked, values={**asked.values, "nproc_per_node": fewer})
        try:
            again, _ = explored(log.noting(partial(run, less)), how, most)
        except KernbenchError:  # options that name a rank which is not there
            continue
        if again is None or not again.trouble.same_as(found.trouble):
            continue
        choices = [] if again.runs == 1 else shrunk(log.noting(partial(run, less)), again)[0]
        schedule = "" if not choices else f" --schedule {schedule_of(choice for choice, _ in choices)}"
        words = f"kernbench run --nproc-per-node {fewer}{schedule} ... (the same other options and program)"
        click.echo(f"with {fewer} of {world} ranks the same is found: {words}")
        return [(f"with {fewer} of {world} ranks", words)]
    return []


def _apart(found: FoundTrouble, item: int, asked: AskedRuns, run: ExploredRuns) -> str:
    """How far the values of a collective are from the usual ones."""
    name = found.usual.values[item][0]
    there = [at for at, (other, _) in enumerate(found.trial.values) if other == name]
    sides = ((found.usual.schedule, item), (found.trial.schedule, there[0]))
    kept = [next(run(replace(asked, keep=at), [schedule])).kept for schedule, at in sides]
    return ulps(*kept)
