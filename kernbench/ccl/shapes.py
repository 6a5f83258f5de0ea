"""The shapes that algorithms are made of: trees, rings along the axes of a grid, all to all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from kernbench.ccl.schedule import IntArray, ScheduleBuilder

ROOT = -1
"""Parent of a tree's root."""


# -- trees: a tree is the list of its members' parents ------------------------------------------------------------------


def binary_tree(members: int) -> list[int]:
    """In-order binary tree: the parent of a number is the nearest one with a longer run of trailing zeros.

    Root is 0, which has one child; depth is ``ceil(log2(members))``. Leaves are the odd numbers.
    """
    parents = [ROOT]
    for number in range(1, members):
        lowest = number & -number
        above = (number ^ lowest) | (lowest << 1)
        parents.append(above if above < members else number ^ lowest)
    return parents


def double_binary_tree(members: int) -> tuple[list[int], list[int]]:
    """Two binary trees in which (almost) no rank is an inner member of both: half of the data goes over each.

    The second is the first mirrored (even number of members) or shifted by one (odd). Sanders, Speck and Träff,
    "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009).
    """
    first = binary_tree(members)

    def other(number: int) -> int:
        return members - 1 - number if members % 2 == 0 else (number + 1) % members

    second = [ROOT] * members
    for number, parent in enumerate(first):
        second[other(number)] = ROOT if parent == ROOT else other(parent)
    return first, second


def binomial_tree(members: int, root: int = 0) -> list[int]:
    """The parent of a member, counted from the root, is that number without its lowest bit."""
    parents = [ROOT] * members
    for number in range(1, members):
        parents[(number + root) % members] = ((number & (number - 1)) + root) % members
    return parents


def chained_tree(by_node: Sequence[Sequence[int]], between: Sequence[int], *, head: int = 0) -> list[int]:
    """A chain inside each node, whose head is member ``head`` of it, and the tree ``between`` over the heads."""
    parents = [ROOT] * sum(map(len, by_node))
    for node, members in enumerate(by_node):
        turned = [*members[head % len(members) :], *members[: head % len(members)]]
        for upper, lower in pairwise(turned):
            parents[lower] = upper
        if between[node] != ROOT:
            above = by_node[between[node]]
            parents[turned[0]] = above[head % len(above)]
    return parents


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Children of each member, in order."""
    found: list[list[int]] = [[] for _ in parents]
    for member, parent in enumerate(parents):
        if parent != ROOT:
            found[parent].append(member)
    return found


def top_down(parents: Sequence[int]) -> list[int]:
    """The members of a tree, parents before their children."""
    children = children_of(parents)
    order = [member for member, parent in enumerate(parents) if parent == ROOT]
    for member in order:
        order += children[member]
    return order


def reduce_up(
    builder: ScheduleBuilder,
    trees: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    back: bool,
    up: bool = True,
) -> None:
    """Reduce along trees to their roots (``up``), and broadcast ``back``, chunk after chunk in a pipeline.

    Args:
        trees: parents of each member, and the chunks that go over that tree.

    A member reduces its children's chunks one after the other in the order in which they can come, so the order of
    reduction of a chunk is: own, first child's subtree, second child's, ...
    """
    columns: list[list[int]] = [[], [], [], [], [], []]  # at, src, dst, chunk, reduce, channel
    for channel, (parents, chunks) in enumerate(trees):
        children = children_of(parents)
        order = top_down(parents)
        period = max(1, *map(len, children)) if children else 1
        sends = [0] * len(parents)
        if up:
            for member in reversed(order):
                ready, used = 0, set()
                for child in sorted(children[member], key=lambda child: (sends[child], child)):
                    at = sends[child]
                    while at % period in used:
                        at += 1
                    used.add(at % period)
                    sends[child] = at
                    ready = max(ready, at + 1)
                sends[member] = ready
        starts = list(sends) if up else [0] * len(parents)
        for member in order:
            parent = parents[member]
            if parent != ROOT:
                starts[member] = starts[parent] + 1
        for k, chunk in enumerate(chunks):
            for member in order:
                parent = parents[member]
                if parent == ROOT:
                    continue
                if up:
                    _row(columns, sends[member] + period * k, member, parent, chunk, 1, channel)
                if back:
                    _row(columns, starts[parent] + period * k, parent, member, chunk, 0, channel)
    rounds, src, dst, sent, reduces, channel_of = (np.asarray(column, dtype=np.int64) for column in columns)
    builder.steps(rounds, src, dst, sent, reduce=reduces, channel=channel_of)


def _row(columns: list[list[int]], *values: int) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def gather_up(builder: ScheduleBuilder, parents: Sequence[int]) -> None:
    """Gather along a tree: chunk m of member m travels to the root; a member sends on all that its subtree has."""
    children = children_of(parents)
    columns: list[list[int]] = [[], [], [], []]
    holds: list[list[int]] = [[member] for member in range(len(parents))]
    free = [0] * len(parents)
    for member in reversed(top_down(parents)):
        for child in children[member]:
            holds[member] += holds[child]
            free[member] = max(free[member], free[child])
        if parents[member] != ROOT:
            for k, chunk in enumerate(holds[member]):
                _row(columns, free[member] + k, member, parents[member], chunk)
            free[member] += len(holds[member])
    at, src, dst, chunks = (np.asarray(column, dtype=np.int64) for column in columns)
    builder.steps(at, src, dst, chunks, reduce=False)


def scatter_down(builder: ScheduleBuilder, parents: Sequence[int]) -> None:
    """Scatter along a tree: chunk m travels from the root to member m; the largest subtree is served first."""
    children = children_of(parents)
    holds: list[list[int]] = [[member] for member in range(len(parents))]
    order = top_down(parents)
    for member in reversed(order):
        for child in children[member]:
            holds[member] += holds[child]
    columns: list[list[int]] = [[], [], [], []]
    ready = [0] * len(parents)
    for member in order:
        at = ready[member]
        for child in sorted(children[member], key=lambda child: (-len(holds[child]), child)):
            for k, chunk in enumerate(holds[child]):
                _row(columns, at + k, member, child, chunk)
            at += len(holds[child])
            ready[child] = at
    at_round, src, dst, chunks = (np.asarray(column, dtype=np.int64) for column in columns)
    builder.steps(at_round, src, dst, chunks, reduce=False)


# -- grids --------------------------------------------------------------------------------------------------------------


def gather_along(builder: ScheduleBuilder, grid: IntArray, axes: Sequence[int]) -> None:
    """All-gather, chunk m being member m's, by rings along one axis of a full grid of members after the other.

    Before axis a's turn a member holds the chunks of the axes that have had theirs; a ring passes those on, ``length - 1``
    times.
    """
    numbers = np.arange(grid.size).reshape(grid.shape)
    where = np.empty((grid.ndim, grid.size), dtype=np.int64)
    for axis, coordinates in enumerate(np.unravel_index(numbers.reshape(-1), grid.shape)):
        where[axis] = coordinates
    flat = grid.reshape(-1)
    done: list[int] = []
    for axis in axes:
        length = grid.shape[axis]
        if length > 1:
            target = where.copy()
            target[axis] = (target[axis] + 1) % length
            receiver = grid[tuple(target)]
            held = (
                np.indices([grid.shape[other] for other in done]).reshape(len(done), -1) if done else np.zeros((0, 1))
            )
            chunks = []
            for step in range(length - 1):
                source = where.copy()
                source[axis] = (source[axis] - step) % length
                for column in held.T.astype(np.int64):
                    for other, coordinate in zip(done, column.tolist(), strict=True):
                        source[other] = coordinate
                    chunks.append(grid[tuple(source)])
            builder.round(flat, receiver, np.asarray(chunks), reduce=False)
        done.append(axis)


# -- all to all ----------------------------------------------------------------------------------------------------------


def all_pairs(members: int) -> tuple[IntArray, IntArray]:
    """Every ordered pair of different members, ``[members * (members - 1)]`` each; by shift, then by sender."""
    member = np.arange(members)
    shift = np.arange(1, members)[:, None]
    return np.broadcast_to(member, (members - 1, members)).reshape(-1), ((member + shift) % members).reshape(-1)


def fold_slots(
    builder: ScheduleBuilder, owners: IntArray, number: IntArray, count: int, work: IntArray, scratch: int
) -> None:
    """At ``owners[i]``, reduce what ``count`` members sent for its chunk ``work[i]``, in the order of their numbers.

    What number m sent stands in chunk ``scratch + m``, the owner's own part, which is number ``number[i]``, in the work chunk,
    where the sum ends.
    """

    def slot(sender: int) -> IntArray:
        return np.where(number == sender, work, scratch + sender)

    for sender in range(1, count):
        builder.local(owners, slot(sender - 1), slot(sender), reduce=True)
    last = number != count - 1
    builder.local(owners[last], np.full(int(last.sum()), scratch + count - 1), work[last], reduce=False)
