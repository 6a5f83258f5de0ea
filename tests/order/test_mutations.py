"""Each line that orders something is taken out of correct programs, one at a time: every time it is said that it is missing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.order import mutated_programs
from tests.order.mutated_modules import said_of
from tests.order.mutated_programs import PROGRAMS

_MARK = re.compile(r"# orders(?:: (?P<old>.+?) -> (?P<new>.+?))?(?: # harmless: (?P<reason>.*))?$")
_KERNELS = {"_meet": "kernel_all_reduce", "_two_shot": "kernel_all_reduce"}


class Mutation(NamedTuple):
    """A line of the programs' module that is changed, and why it is not noticed, if it is not."""

    program: str
    line: int
    text: str
    reason: str | None

    @property
    def name(self) -> str:
        """As a test's id."""
        return f"{self.program}-{self.line}"


def mutations() -> Iterator[Mutation]:
    """All there are."""
    lines = inspect.getsource(mutated_programs).splitlines()
    inside = ""
    for number, line in enumerate(lines, 1):
        if (begin := re.match(r"def (\w+)", line)) is not None:
            inside = begin[1]
        found = _MARK.search(line)
        if found is None or "``" in line:
            continue
        indent = line[: len(line) - len(line.lstrip())]
        text = indent + "pass" if found["old"] is None else line.replace(found["old"], found["new"], 1)
        yield Mutation(_KERNELS.get(inside, inside), number, text, found["reason"])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_programs_are_correct(program: object, tmp_path: Path) -> None:
    name = getattr(program, "__name__", "")
    assert said_of(inspect.getsource(mutated_programs), tmp_path / "whole.py", methodcaller(name)) == []


@pytest.mark.long
@pytest.mark.parametrize("mutation", list(mutations()), ids=lambda mutation: mutation.name)
def test_a_line_that_is_missing_is_noticed(mutation: Mutation, tmp_path: Path) -> None:
    lines = inspect.getsource(mutated_programs).splitlines()
    lines[mutation.line - 1] = mutation.text
    path = tmp_path / f"mutated_{mutation.line}.py"
    found = said_of("\n".join(lines) + "\n", path, methodcaller(mutation.program))
    if mutation.reason is None:
        assert found, f"nobody misses line {mutation.line}"
    else:
        assert found == [], f"line {mutation.line} is not harmless"


def test_there_is_something_to_take_out() -> None:
    every = list(mutations())
    assert {mutation.program for mutation in every} == {program.__name__ for program in PROGRAMS}
    assert (
        sum(mutation.reason is None for mutation in every)
        > 3 * sum(mutation.reason is not None for mutation in every) - 9
    )
