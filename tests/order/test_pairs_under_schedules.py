"""Every pair under other schedules: the correct program stays clean, and what is wrong with the other one is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

import kernbench
from tests.order import communicator_programs, graph_programs, kernel_programs, stream_programs, undefined_programs
from tests.order.test_streams import races_of

Program = Callable[[bool], None]

PAIRS: tuple[Program, ...] = (
    *stream_programs.PAIRS, *kernel_programs.PAIRS, *undefined_programs.PAIRS, *graph_programs.PAIRS,
)  # fmt: skip
CORRECT: tuple[Program, ...] = (*PAIRS, *communicator_programs.PROGRAMS)
NAMES = [program.__name__ for program in PAIRS]
LONG_RUN = [f"{how}:{seed}" for seed in range(1, 101) for how in ("random", "pct:3:40")]


def found_under(program: Program, fixed: bool, schedules: Iterable[str]) -> list[str]:
    """What is said of a program under schedules, with the schedule."""
    found = []
    for schedule in schedules:
        try:
            races = races_of(program, fixed, schedule=schedule).found
        except kernbench.SpawnException as failure:
            found.append(f"{schedule}: {failure}")
        else:
            found += [f"{schedule}: {race}" for race in races]
    return found


@pytest.mark.parametrize("number", range(len(PAIRS)), ids=NAMES)
def test_a_pair_under_a_schedule(number: int) -> None:
    """Each pair under one of its own."""
    schedule = LONG_RUN[number % len(LONG_RUN)]
    assert found_under(PAIRS[number], True, [schedule]) == []
    assert found_under(PAIRS[number], False, [schedule])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", CORRECT, ids=lambda program: program.__name__)
def test_a_correct_program_is_clean_under_200_schedules(program: Program) -> None:
    assert found_under(program, True, LONG_RUN) == []


@pytest.mark.long
@pytest.mark.parametrize("program", PAIRS, ids=NAMES)
def test_a_bug_is_found_under_every_schedule(program: Program) -> None:
    missed = [schedule for schedule in LONG_RUN[:20] if not found_under(program, False, [schedule])]
    assert missed == []
