"""What a program without data is told when it looks at a value that nobody has computed.

A simulation with ``enable_data=False`` computes small values that follow from known ones, and no others. Each storage is
known or unknown (:class:`~kernbench.simulation.storages.Stored`); an unknown one has a *stand-in*: what each element is taken
to be, or is on average. A look at an unknown value is answered by it, and noted once per line of the program. What is assumed
says so: numbers that a program gets print with a ``?``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernbench.errors import ConfigError, KernbenchError
from kernbench.simulation.locations import Location, user_location

POLICIES = ("assume", "error")
"""What to do when a program looks at an unknown value: answer with what is assumed, or stop there."""

MARK = "?"


def default_stand_in(dtype: torch.dtype) -> float:
    """What is assumed of a dtype's values where nothing better is known: 1 for what is measured, 0 for what counts or tells."""
    return 1.0 if dtype.is_floating_point or dtype.is_complex else 0.0


def mean_of(tensor: torch.Tensor) -> float | None:
    """What a tensor's elements are on average, by its bytes; None of complex numbers, and of none."""
    return None if tensor.is_complex() or not tensor.numel() else float(tensor.detach().double().mean())


def fill(tensor: torch.Tensor, value: float | None) -> None:
    """Give a tensor of few bytes the values that are assumed: whole numbers in shares as even as they can be, and masks that
    are true as often in every column."""
    if not tensor.numel():
        return
    element = default_stand_in(tensor.dtype) if value is None else value
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


def _marked(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: float, *others: Any) -> Any:
        result = plain(self, *others)
        return AssumedFloat(result) if type(result) is float else result

    return method


class AssumedFloat(float):
    """A number that was assumed: it prints with a mark, and so does what is computed with it."""

    def __repr__(self) -> str:
        return float.__repr__(self) + MARK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return float.__format__(self, spec).removesuffix(MARK) + MARK

    __hash__ = float.__hash__


for _name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod"):
    for _side in ("", "r"):
        setattr(AssumedFloat, f"__{_side}{_name}__", _marked(f"__{_side}{_name}__"))
for _name in ("neg", "abs", "pos", "round"):
    setattr(AssumedFloat, f"__{_name}__", _marked(f"__{_name}__"))


class AssumedInt(int):
    """A whole number that was assumed: it prints with a mark. What is computed with it is a plain number."""

    def __repr__(self) -> str:
        return int.__repr__(self) + MARK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec).removesuffix(MARK) + MARK

    __hash__ = int.__hash__


def marked(value: Any) -> Any:
    """``value``, or a list of values, as numbers that say that they are assumed; what cannot say so stays as it is."""
    if isinstance(value, list):
        return [marked(each) for each in value]
    if type(value) is float:
        return AssumedFloat(value)
    return AssumedInt(value) if type(value) is int else value


@dataclass(slots=True)
class Assumption:
    """One line of the program that looks at an unknown value.

    Attributes:
        where: the line.
        entry: how it looks (``"item"``).
        rank: the first that did, None for main.
        answer: what it was told first.
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
        by = "main" if self.rank is None else f"rank {self.rank}"
        times = "" if self.times == 1 else f", {self.times} times"
        why = "as stated by kernbench.assume" if self.stated else "no data was computed"
        return (
            f"assumed: {self.entry} at {self.where.file}:{self.where.line} was told {self.answer} ({by}{times}): {why}"
        )


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
        self._stated: dict[str, Any] = {}
        self._left_out = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What a run says of itself in the end, each in a sentence."""
        files = f"checkpoints: {self._left_out:,} bytes of values that nobody computed were not written; their files are sparse"
        return (*map(str, self.made), *((files,) if self._left_out else ()))

    def left_out(self, nbytes: int) -> None:
        """A program has saved ``nbytes`` that have no values: their file has their size alone."""
        self._left_out += nbytes

    @property
    def made(self) -> tuple[Assumption, ...]:
        """In the order of the first looks."""
        return tuple(self._by_place.values())

    def state(self, place: str, value: Any) -> None:
        """What a look at ``place`` (``"train.py:42"``) is answered with."""
        self._stated[os.path.normpath(place)] = value

    def stated_here(self) -> Any:
        """What was stated for the line of the user's program that is running; None if nothing was."""
        if not self._stated:
            return None
        where = user_location()
        here = f"{os.sep}{where.file}:{where.line}"
        return next(
            (value for place, value in self._stated.items() if here.endswith(f"{os.sep}{place.lstrip(os.sep)}")), None
        )

    def told(self, entry: str, rank: int | None, answer: Any, *, stated: bool = False) -> None:
        """A program has been told an assumed ``answer``; ``stated``: one that it has given itself.

        Raises :class:`KernbenchError` if the policy is to stop there, and the program has not said what the value is.
        """
        where = user_location()
        if self.policy == "error" and not stated:
            raise KernbenchError(
                f"{entry} at {where.file}:{where.line}: the host looks at a value that was not computed: this run has "
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
        else:
            found.times += 1


def _short(answer: Any) -> str:
    text = repr(answer).replace(MARK, "").replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."
