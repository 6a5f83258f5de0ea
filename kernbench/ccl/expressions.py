"""What a schedule computes: the expression over the members' inputs that each chunk ends with.

A symbolic run gives every chunk a *node*: a leaf (some member's input chunk) or the combination of two nodes. From nodes
follow the values of any algorithm, whatever its shape, each partial sum computed once; and whether a schedule does what
its collective asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kernbench.ccl.reduce_op import Reduction
from kernbench.ccl.schedule import IntArray, Schedule, Way
from kernbench.collective_kinds import KINDS, CollectiveKind

_NOTHING = -1
WIDE_DTYPES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""What sums of narrow floats are kept in."""


class Step(NamedTuple):
    """``node = op(left, right)``; ``wide``: in fp32 where the type is narrower. Without ``right`` (-1), ``left`` is rounded."""

    node: int
    left: int
    right: int
    wide: bool


class Expressions:
    """The symbolic run of one schedule.

    Leaf ``member * chunks + chunk`` is that member's input chunk; greater nodes are combinations, in an order in which parts
    come first. A combination that several members compute is one node.

    Attributes:
        final: ``[members, slots]`` node that each chunk ends with, -1 for a scratch chunk that was never written.
        leaves: number of leaves.
    """

    def __init__(self, schedule: Schedule) -> None:
        members, chunks, slots = schedule.members, schedule.chunks, schedule.slots
        self.members, self.chunks = members, chunks
        self.leaves = members * chunks
        held = np.full((members, slots), _NOTHING, dtype=np.int64)
        held[:, :chunks] = np.arange(self.leaves).reshape(members, chunks)
        flat = held.reshape(-1)
        keeps_wide = np.zeros(self.leaves + 2 * len(schedule), dtype=bool)
        left: list[IntArray] = []
        right: list[IntArray] = []
        wide: list[NDArray[np.bool_]] = []
        total = self.leaves
        for begin, end in zip(schedule.rounds[:-1].tolist(), schedule.rounds[1:].tolist(), strict=True):
            rows = slice(begin, end)
            arriving = flat[schedule.src[rows] * slots + schedule.chunk[rows]]
            target = schedule.dst[rows] * slots + schedule.to_chunk[rows]
            reduces = schedule.reduces[rows]
            sent_wide = keeps_wide[arriving] & (schedule.way[rows] != Way.LOCAL)
            if sent_wide.any():  # a sum is rounded when it is sent
                fresh, which = np.unique(arriving[sent_wide], return_inverse=True)
                left.append(fresh)
                right.append(np.full(len(fresh), _NOTHING))
                wide.append(np.zeros(len(fresh), dtype=bool))
                arriving[sent_wide] = total + which.reshape(-1)
                total += len(fresh)
            if reduces.any():
                local = flat[target][reduces]
                keeps = schedule.way[rows][reduces] == Way.LOCAL
                if local.min() < 0 or arriving[reduces].min() < 0:
                    raise ValueError(f"{schedule.name}: a scratch chunk is reduced before it is written")
                pairs = np.stack([arriving[reduces], local, keeps], axis=1)
                fresh, which = np.unique(pairs, axis=0, return_inverse=True)
                left.append(fresh[:, 0])
                right.append(fresh[:, 1])
                wide.append(fresh[:, 2].astype(bool))
                arriving[reduces] = total + which.reshape(-1)
                keeps_wide[total : total + len(fresh)] = fresh[:, 2]
                total += len(fresh)
            flat[target] = arriving
        self.final: IntArray = held
        self._left = np.concatenate(left) if left else np.zeros(0, dtype=np.int64)
        self._right = np.concatenate(right) if right else np.zeros(0, dtype=np.int64)
        self._wide = np.concatenate(wide) if wide else np.zeros(0, dtype=bool)

    def steps(self, nodes: Sequence[int]) -> list[Step]:
        """The combinations that ``nodes`` are made of, parts first."""
        needed: set[int] = set()
        frontier = [node for node in nodes if node >= self.leaves]
        while frontier:
            node = frontier.pop()
            if node in needed:
                continue
            needed.add(node)
            at = node - self.leaves
            frontier += [part for part in (int(self._left[at]), int(self._right[at])) if part >= self.leaves]
        found = []
        for node in sorted(needed):
            at = node - self.leaves
            found.append(Step(node, int(self._left[at]), int(self._right[at]), bool(self._wide[at])))
        return found

    def leaf(self, node: int) -> tuple[int, int]:
        """``(member, chunk)`` of a leaf."""
        return divmod(node, self.chunks)

    def folds_everybody(self, node: int, chunk: int) -> bool:
        """Whether ``node`` combines ``chunk`` of every member, each exactly once."""
        counted: dict[int, int] = {}

        def mask(part: int) -> int:
            if part >= self.leaves:
                return counted[part]
            member, own = self.leaf(part)
            return 1 << member if own == chunk and part >= 0 else 0

        for step in self.steps([node]):
            left, right = mask(step.left), mask(step.right)
            if step.right < 0:
                counted[step.node] = left
                continue
            counted[step.node] = left | right if left and right and not left & right else 0
        return mask(node) == (1 << self.members) - 1

    def order(self, member: int, chunk: int) -> str:
        """The order of reduction of a chunk, for people: ``((0+1)+(2+3))``, numbers being members."""
        texts: dict[int, str] = {}
        node = int(self.final[member, chunk])

        def text(part: int) -> str:
            return texts[part] if part >= self.leaves else str(self.leaf(part)[0])

        for step in self.steps([node]):
            texts[step.node] = text(step.left) if step.right < 0 else f"({text(step.left)}+{text(step.right)})"
        return text(node)


@lru_cache(maxsize=64)
def expressions(schedule: Schedule) -> Expressions:
    """The symbolic run of ``schedule``, kept: a training step repeats the same ones."""
    return Expressions(schedule)


def combine_steps(
    steps: Sequence[Step], leaf: Callable[[int], torch.Tensor], op: Reduction
) -> Callable[[int], torch.Tensor]:
    """Compute ``steps``; the result gives the value of any of their nodes, rounded to the leaves' dtype.

    ``leaf(node)``: ``[n]`` tensor of a leaf; it is only read.
    """
    values: dict[int, torch.Tensor] = {}

    def value(node: int, wide: torch.dtype | None) -> torch.Tensor:
        found = values.get(node)
        if found is None:
            found = leaf(node)
        if wide is not None:
            return found if found.dtype == wide else found.to(wide)
        return found

    narrow: torch.dtype | None = None
    for step in steps:
        if narrow is None:
            narrow = leaf(step.left).dtype  # the first step's parts are leaves
        target = WIDE_DTYPES.get(narrow, narrow) if step.wide else narrow
        left = value(step.left, target)
        if step.right < 0:
            values[step.node] = left
            continue
        right = value(step.right, target)
        out = torch.empty(left.shape, dtype=left.dtype)
        op.combine(left, right, out)
        values[step.node] = out

    def result(node: int) -> torch.Tensor:
        return value(node, narrow)

    return result


def check_schedule(schedule: Schedule, collective: str, root: int | None = None) -> None:
    """Raise ValueError unless ``schedule`` does what ``collective`` asks, naming a member and a chunk that is wrong.

    Reductions must fold every member exactly once into every chunk that counts; copies must bring the right input.
    """
    kind, found = KINDS[collective], expressions(schedule)
    checked: set[tuple[int, int]] = set()
    for member in kind.receivers(schedule.members, root):
        for chunk, sender, sent in _wanted(kind, member, schedule, root):
            node = int(found.final[member, chunk])
            if not kind.reduces:
                if node != sender * schedule.chunks + sent:
                    raise ValueError(
                        f"{schedule.name}: chunk {chunk} of member {member} does not end with the input that it should"
                    )
            elif (node, chunk) not in checked:
                checked.add((node, chunk))
                if not found.folds_everybody(node, chunk):
                    raise ValueError(
                        f"{schedule.name}: chunk {chunk} of member {member} ends with {found.order(member, chunk)}, which "
                        "does not fold every member exactly once"
                    )


def _wanted(kind: CollectiveKind, member: int, schedule: Schedule, root: int | None) -> list[tuple[int, int, int]]:
    """For each chunk that ``member`` gets, ``(chunk, member whose input it is, chunk there)``; of a reduction any member's."""
    if kind.exchanges:
        members = schedule.members
        return [(members + sender, sender, member) for sender in range(members) if sender != member]
    chunks = [member] if kind.gets == "own" else range(schedule.chunks)
    return [(chunk, chunk if kind.brings == "own" or root is None else root, chunk) for chunk in chunks]
