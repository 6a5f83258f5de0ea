"""Runs many simulations that do not depend on each other, on this machine or a cluster, with a journal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernbench.interruption import ending_signals
from kernbench.sweep.journal import Journal
from kernbench.sweep.outcome import FAILED, Outcome
from kernbench.sweep.workers import Keyed, Run, run_here, run_on_dask, run_side_by_side

T = TypeVar("T", bound=Keyed)
Progress = Callable[[Outcome, int, int], None]
"""Called with each outcome, how many points are done, and how many there are."""


@dataclass(frozen=True)
class StudyRunner:
    """How the points of a study are run.

    Attributes:
        directory: of ``journal.jsonl``.
        scheduler: address of a running Dask scheduler; None: this machine.
        jobs: points side by side, None: one per core; 0: one after the other, in this process.
        resume: take what the journal knows of these points; else begin anew.
        retry_failed: run again the points that failed before.
        progress: called with each outcome.
    """

    directory: Path
    scheduler: str | None = None
    jobs: int | None = None
    resume: bool = True
    retry_failed: bool = False
    progress: Progress | None = None

    def run(self, tasks: Sequence[T], run: Run[T], *, own_processes: bool) -> Points:
        """What became of the points, by their keys: those that the journal knows, and the others, run in the order given.

        Args:
            tasks: the points.
            run: makes the outcome of one, whatever happens.
            own_processes: whether it starts a process for it, so that threads suffice here to have many side by side.
        """
        journal = Journal(self.directory / "journal.jsonl")
        known = journal.read() if self.resume else {}
        outcomes = {
            task.key: known[task.key]
            for task in tasks
            if task.key in known and not (self.retry_failed and known[task.key].status == FAILED)
        }
        todo = [task for task in tasks if task.key not in outcomes]
        if todo:
            journal.warn_of_damage()
        with ending_signals(), journal.opened(fresh=not self.resume):
            for outcome in self._outcomes(todo, run, own_processes):
                outcomes[outcome.key] = outcome
                journal.add(outcome)
                if self.progress is not None:
                    self.progress(outcome, len(outcomes), len(tasks))
        return Points([outcomes[task.key] for task in tasks], len(todo))

    def _outcomes(self, todo: Sequence[T], run: Run[T], own_processes: bool) -> Iterator[Outcome]:
        if not todo or (self.jobs == 0 and (self.scheduler is None or not own_processes)):
            return run_here(todo, run)
        if self.scheduler is None and own_processes:
            return run_side_by_side(todo, run, self.jobs or len(os.sched_getaffinity(0)))
        return run_on_dask(todo, run, scheduler=self.scheduler, jobs=self.jobs)


@dataclass(frozen=True)
class Points:
    """What became of the points of a study.

    Attributes:
        outcomes: in the order of the points.
        ran: how many ran now; the others were in the journal.
    """

    outcomes: list[Outcome]
    ran: int

    @property
    def by_key(self) -> dict[str, Outcome]:
        """The outcomes by the keys of their points."""
        return {outcome.key: outcome for outcome in self.outcomes}

    @property
    def failed(self) -> list[Outcome]:
        """Those that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == FAILED]
