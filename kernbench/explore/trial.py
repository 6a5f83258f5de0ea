"""What one run of a program under a schedule came to, and how two of them differ."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from kernbench.order import GivenAnswer, MetPair, OpenPoint


@dataclass(frozen=True)
class Trouble:
    """Something that should not be.

    Attributes:
        kind: ``"race"``, ``"deadlock"``, ``"mismatch"``, ``"exception"`` or ``"difference"``.
        key: equal for the same trouble under other schedules.
        text: what is printed of it.
        item: of a difference, the collective whose values differ: its place in :attr:`Trial.values`; None: the output does.
    """

    kind: str
    key: Hashable
    text: str
    item: int | None = None

    def same_as(self, other: Trouble) -> bool:
        """Whether it is the same trouble. Differences are: another schedule may show another consequence first."""
        return self.kind == other.kind and (self.kind == "difference" or self.key == other.key)


@dataclass
class Trial:
    """One run.

    Attributes:
        schedule: under which it was run.
        taken: the answers that were not the default ones, and where in the program they were asked for.
        asked: how many were asked for.
        steps: operations before which ranks could have let others go first.
        trouble: what went wrong; None: nothing did.
        output: lines that each rank printed, by rank; those of no rank under -1.
        values: what collectives gave each rank, in the order in which they began: the collective, in words, and a digest.
        kept: the values of one of these, as a tensor, if it was asked for.
        open: of a run that was followed (:class:`~kernbench.order.Conflicts`), the points at which other answers may matter.
        alike: how many answers there are elsewhere: runs that would be equivalent to this one.
        signature: equal for runs that are.
        pairs: what met unordered.
    """

    schedule: str
    taken: list[tuple[GivenAnswer, str]] = field(default_factory=list)
    asked: int = 0
    steps: int = 0
    trouble: Trouble | None = None
    output: dict[int, list[str]] = field(default_factory=dict)
    values: list[tuple[str, str]] = field(default_factory=list)
    kept: Any = None
    open: list[OpenPoint] = field(default_factory=list)
    alike: int = 0
    signature: Hashable = None
    pairs: frozenset[MetPair] = frozenset()


def compared(usual: Trial, other: Trial) -> Trouble | None:
    """Where a run differs from another one: in the first value of a collective, or else in what a rank has printed."""
    theirs = dict(other.values)
    for at, (name, digest) in enumerate(usual.values):
        if theirs.get(name, digest) != digest:
            return Trouble("difference", ("values", name), f"{name} gives other values", at)
    names = {name for name, _ in usual.values}
    for name, _ in other.values:
        if name not in names:
            return Trouble("difference", ("calls", name), f"{name}, which the program calls under this schedule only")
    for name, _ in usual.values:
        if name not in theirs:
            return Trouble("difference", ("calls", name), f"{name} is not called under this schedule")
    for rank in sorted({*usual.output, *other.output}):
        lines = zip_longest(usual.output.get(rank, ()), other.output.get(rank, ()), fillvalue="<nothing>")
        for number, (mine, its) in enumerate(lines, 1):
            if mine != its:
                who = "the program" if rank < 0 else f"rank {rank}"
                return Trouble(
                    "difference", ("output", rank),
                    f"{who} prints something else in its line {number}:\n  by default:          {mine}\n"
                    f"  under this schedule: {its}",
                )  # fmt: skip
    return None


def ulps(usual: Any, other: Any) -> str:
    """How far two tensors of one collective are apart, in words."""
    import torch

    if usual is None or other is None or usual.shape != other.shape or usual.dtype != other.dtype:
        return ""
    unequal = (usual != other) & ~(usual.isnan() & other.isnan()) if usual.is_floating_point() else usual != other
    count, total = int(unequal.sum()), unequal.numel()
    if not count:
        return ""
    first = int(unequal.reshape(-1).nonzero()[0])
    one, two = usual.reshape(-1)[first], other.reshape(-1)[first]
    text = f"{count} of {total} elements differ; the first is element {first}: {one.item()!r} and {two.item()!r}"
    if not usual.is_floating_point():
        return text
    size = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(usual.element_size())
    if size is None:
        return text
    bits = [side.reshape(-1)[unequal.reshape(-1)].contiguous().view(size).to(torch.int64) for side in (usual, other)]
    flip = -(1 << (8 * usual.element_size() - 1))
    ordered = [torch.where(each < 0, flip - each, each) for each in bits]
    most = int((ordered[0] - ordered[1]).abs().max())
    return f"{text}; by up to {most} ULP" + (" (another order of adding gives a few)" if most <= _FEW_ULP else "")


_FEW_ULP = 16
