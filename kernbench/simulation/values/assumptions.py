"""What a program without data receives when it reads a value that is not computed.

A simulation with ``enable_data=False`` computes small values that follow from known ones, and no others. Each storage is
known or unknown (:class:`.Stored`); an unknown one has a *stand-in*: what each element is taken
to be, or is on average. A look at an unknown value is answered by it, and noted once per line of the program. What is assumed
says so: numbers that a program gets print with a ``?``, and what a program does with them that they cannot say is noted too.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from kernbench.errors import ConfigError, KernbenchError
from kernbench.simulation.ranks.locations import Location, program_location

POLICIES = ("assume", "error")
"""What to do when a program looks at an unknown value: answer with what is assumed, or stop there."""

MARK = "?"


def default_stand_in(dtype: torch.dtype) -> float:
    """What is assumed of a dtype's values where nothing better is known: 1 for what is measured, 0 for what counts or tells."""
    return 1.0 if dtype.is_floating_point or dtype.is_complex else 0.0


def mean_of(tensor: torch.Tensor) -> float | None:
    """What a tensor's elements are on average, by its bytes; None of complex and packed numbers, and of none."""
    if (
        tensor.is_complex() or not tensor.numel() or tensor.dtype is torch.float4_e2m1fn_x2
    ):  # torch converts no packed ones
        return None
    return float(tensor.detach().double().mean())


_PAIR_OF_ONES = 0x22  # in four bits each, with two of the exponent and one of the mantissa


def fill(tensor: torch.Tensor, value: float | None) -> None:
    """Give a tensor of few bytes the values that are assumed: whole numbers in shares as even as they can be, and masks that
    are true as often in every column."""
    if not tensor.numel():
        return
    element = default_stand_in(tensor.dtype) if value is None else value
    if tensor.dtype is torch.float4_e2m1fn_x2:
        tensor.view(torch.uint8).fill_(_PAIR_OF_ONES)
        return
    if tensor.dtype == torch.bool:
        true, count = round(min(1.0, abs(element)) * tensor.numel()), tensor.numel()
        if count == 1 or true in (0, count):
            tensor.fill_(element >= 0.5)
        else:  # of n columns k: those of a row are one further than those of the row before
            at = torch.arange(count)
            tensor.copy_(((at + at // tensor.size(-1)) * true % count < true).view(tensor.shape))
        return
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(element)
        return
    whole = math.floor(element)
    rest = round((element - whole) * tensor.numel())
    tensor.copy_((whole + (torch.arange(tensor.numel()) < rest)).view(tensor.shape))


def blend(before: float, after: float, part: float) -> float:
    """What elements are on average of which ``part`` is ``after`` and the rest ``before``: where one of the two is infinite, as
    a mask is, the other one, which is all that can be measured."""
    if part <= 0.0 or (part < 1.0 and not math.isfinite(after)):
        return before
    if part >= 1.0 or not math.isfinite(before):
        return after
    return before * (1.0 - part) + after * part


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers of a tensor of few bytes are; those of one byte are taken to be."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1:
        return True
    return bool(torch.isfinite(tensor.detach()).all())


def keep_finite(tensor: torch.Tensor, *, infinite: bool = False) -> None:
    """Numbers that were computed with assumed ones, and are not finite, tell what was assumed, and nothing of the program: they
    become what is assumed where nothing is known. ``infinite``: infinities are the program's own, and stay."""
    values = tensor.detach()
    kept = ~torch.isnan(values) if infinite else torch.isfinite(values)
    values.masked_fill_(~kept, default_stand_in(values.dtype))


LOST = "lost"
STEERED = "steered"
_USES = {
    LOST: "without its mark: {entry} at {where} was given an assumed number ({by})",
    STEERED: "steered by an assumed number: {entry} at {where} was {answer} ({by})",
}
"""What lines of a program do with assumed numbers that must be said, and how it is."""


@dataclass(slots=True)
class NumberUse:
    """One line of the program that does something of :data:`_USES` with an assumed number.

    Attributes:
        kind: :data:`LOST` or :data:`STEERED`.
        where: the line.
        entry: by what (``"json"``, ``"<"``).
        rank: the first that did, None for main.
        answer: what a comparison gave first.
        times: how often that was, over all ranks.
    """

    kind: str
    where: Location
    entry: str
    rank: int | None
    answer: str
    times: int = 1

    def __str__(self) -> str:
        return _USES[self.kind].format(
            entry=self.entry,
            where=self.where.position,
            answer=self.answer,
            by=_by(self.rank, self.times),
        )


def _by(rank: int | None, times: int) -> str:
    who = "main" if rank is None else f"rank {rank}"
    return who if times == 1 else f"{who}, {times} times"


@dataclass(slots=True)
class Assumption:
    """One line of the program that looks at an unknown value.

    Attributes:
        where: the line.
        entry: how it looks (``"item"``).
        rank: the first that did, None for main.
        answer: what it received first.
        times: how often that was, over all ranks.
        stated: whether the program itself had said so (``kernbench.assume``).
    """

    where: Location
    entry: str
    rank: int | None
    answer: str
    times: int = 1
    stated: bool = False

    def __str__(self) -> str:
        why = "as stated by kernbench.assume" if self.stated else "no data was computed"
        by = _by(self.rank, self.times)
        return f"assumed: {self.entry} at {self.where.position} was given {self.answer} ({by}): {why}"


class Assumptions:
    """The looks of one simulation at unknown values.

    Args:
        policy: one of :data:`POLICIES`.

    Raises :class:`ConfigError` for another policy.
    """

    def __init__(self, policy: str = "assume") -> None:
        if policy not in POLICIES:
            raise ConfigError(f"unknown={policy!r}: expected {' or '.join(map(repr, POLICIES))}")
        self.policy = policy
        self._by_place: dict[tuple[str, int, str], Assumption] = {}
        self._lines: set[tuple[str, int]] = set()
        self._uses: dict[tuple[str, str, int, str], NumberUse] = {}
        self._stated: dict[str, Any] = {}
        self._left_out = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What a run says of itself in the end, each in a sentence."""
        files = f"checkpoints: {self._left_out:,} bytes of uncomputed values were not written; their files are sparse"
        return (*map(str, self.made), *map(str, self.uses), *((files,) if self._left_out else ()))

    def left_out(self, nbytes: int) -> None:
        """A program has saved ``nbytes`` that have no values: their file has their size alone."""
        self._left_out += nbytes

    @property
    def made(self) -> tuple[Assumption, ...]:
        """In the order of the first looks."""
        return tuple(self._by_place.values())

    @property
    def uses(self) -> tuple[NumberUse, ...]:
        """What became of assumed numbers, in the order of the first uses."""
        return tuple(self._uses.values())

    def state(self, place: str, value: object) -> None:
        """What a look at ``place`` (``"train.py:42"``) is answered with."""
        self._stated[os.path.normpath(place)] = value

    def stated_here(self) -> object:
        """What was stated for the line of the user's program that is running; None if nothing was."""
        if not self._stated:
            return None
        where = program_location(sys._getframe(1))
        here = f"{os.sep}{where.file}:{where.line}"
        return next(
            (value for place, value in self._stated.items() if here.endswith(f"{os.sep}{place.lstrip(os.sep)}")), None
        )

    def told(self, entry: str, rank: int | None, answer: object, *, stated: bool = False) -> None:
        """A program has received an assumed ``answer``; ``stated``: one that it has given itself.

        Raises :class:`KernbenchError` if the policy is to stop there, and the program has not said what the value is.
        """
        where = program_location(sys._getframe(1))
        if self.policy == "error" and not stated:
            raise KernbenchError(
                f"{entry} at {where.position}: the host looks at a value that was not computed: this run has "
                "enable_data=False (--no-data) and unknown='error'. Run it with data, say what the value is "
                "(kernbench.assume), or let it be assumed (unknown='assume')"
            )
        self.add(where, entry, rank, _short(answer), stated)

    def add(self, where: Location, entry: str, rank: int | None, answer: str, stated: bool) -> None:
        """Note a look at a line of the program: all of its looks are one note."""
        key = (where.file, where.line, entry)
        found = self._by_place.get(key)
        if found is None:
            self._by_place[key] = Assumption(where, entry, rank, answer, stated=stated)
            self._lines.add((where.file, where.line))
        else:
            found.times += 1

    def used(self, kind: str, where: Location, entry: str, rank: int | None, answer: str = "") -> None:
        """Note what a line of the program does with an assumed number: all of its uses of one kind are one note.

        A line that looks and compares (``if loss.item() < best``) is noted once, as one that looks.
        """
        key = (kind, where.file, where.line, entry)
        found = self._uses.get(key)
        if found is not None:
            found.times += 1
        elif kind != STEERED or (where.file, where.line) not in self._lines:
            self._uses[key] = NumberUse(kind, where, entry, rank, answer)


def _short(answer: object) -> str:
    text = repr(answer).replace(MARK, "").replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."
