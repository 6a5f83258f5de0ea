"""The page of an exploration: the schedules that were run, and what was found under them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kernbench.explore.search import FoundTrouble
from kernbench.explore.trial import Trial
from kernbench.html_report.study import Study, StudyChart, StudyColumn
from kernbench.order import told

_NAMES = ("run", "part", "schedule", "other answers", "asked", "steps", "found")


@dataclass
class RunLog:
    """Notes what each run came to: the rows of the page.

    Attributes:
        rows: number, part (``search``, or ``shrink`` for runs that look for the fewest choices), schedule, answers other than
            the default ones, answers asked for, steps, and what was found.
        part: of the runs that follow.
    """

    rows: list[tuple[int, str, str, int, int, int, str]] = field(default_factory=list)
    part: str = "search"

    def noting(self, run: Callable[[Iterable[str]], Iterator[Trial]]) -> Callable[[Iterable[str]], Iterator[Trial]]:
        """``run``, noted."""

        def noted(schedules: Iterable[str]) -> Iterator[Trial]:
            for trial in run(schedules):
                trouble = "" if trial.trouble is None else trial.trouble.kind
                self.rows.append(
                    (len(self.rows) + 1, self.part, trial.schedule, len(trial.taken), trial.asked, trial.steps, trouble)
                )
                yield trial

        return noted


def study_of(
    log: RunLog, program: str, how: str, found: FoundTrouble | None, words: Sequence[tuple[str, str]], note: str = ""
) -> Study:
    """What an exploration came to; ``words``: heading and text of what was reported besides; ``note``: how far it went."""
    rows = [[*row[:-1], row[-1] or _difference(row[0], row[2], found)] for row in log.rows]
    columns = [StudyColumn(name) for name in _NAMES]
    findings = []
    if found is not None:
        findings.append(
            (f"{found.trouble.kind}, in run {found.runs}, under {found.trial.schedule}", found.trouble.text)
        )
        taken = "\n".join(f"{choice}: {told(choice, place)}" for choice, place in found.trial.taken)
        findings += [("its choices other than the default ones", taken)] if taken else []
    searched = sum(row[1] == "search" for row in log.rows)
    return Study(
        title=f"exploration of {program}",
        subtitle=f"schedules: {how}",
        facts=[
            ("found", found.trouble.kind, f"in run {found.runs}") if found else ("status", "ended well", "nothing found"),
            ("runs", str(searched), ""),
            *([("runs to shrink", str(len(rows) - searched), "")] if len(rows) > searched else []),
        ],
        columns=columns,
        rows=rows,
        charts=[
            StudyChart(
                "points", "Runs, and how many of their answers were not the default ones; red: something was found",
                x=["run"], y=["other answers"], by=["schedule", "found"], bad="found",
            )
        ],
        notes=[note] if note else [],
        findings=[*findings, *words],
    )  # fmt: skip


def _difference(number: int, schedule: str, found: FoundTrouble | None) -> str:
    """What a run showed only beside the default one."""
    if found is not None and number == found.runs and schedule == found.trial.schedule:
        return found.trouble.kind
    return ""
