"""The schedule of a collective: which chunk goes from whom to whom, in which round.

A member's buffer is cut into *cells*. A schedule is a list of rounds; each round is a set of transfers that may happen
at the same time. A transfer either copies a cell, or reduces it into the destination's: ``dst = op(arriving, dst)``.
The same schedule moves the values (:mod:`kernbench.ccl.values`) and takes the time (:mod:`kernbench.ccl.lower`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Transfers, sorted by round.

    Attributes:
        name: the algorithm.
        members: number of members.
        cells: number of cells that each member's buffer is cut into.
        rounds: ``[rounds + 1]`` offsets of each round into the arrays.
        src, dst: ``[transfers]`` member that sends, member that receives.
        cell: ``[transfers]`` cell that is sent.
        to_cell: ``[transfers]`` cell of the destination in which it lands: the same one, unless an algorithm says otherwise.
        reduces: ``[transfers]`` whether the destination combines what arrives with what it has.
        lane: ``[transfers]`` which of several queues between the same two members is used (the two directions of a
            2-member ring are two lanes).
    """

    name: str
    members: int
    cells: int
    rounds: IntArray
    src: IntArray
    dst: IntArray
    cell: IntArray
    reduces: NDArray[np.bool_]
    lane: IntArray
    to_cell: IntArray

    def __len__(self) -> int:
        return len(self.src)

    def cell_bounds(self, count: int) -> IntArray:
        """``[cells + 1]`` offsets, in elements, of the cells of a buffer of ``count`` elements.

        The first ``count % cells`` cells are one element longer than the others; cells may be empty.
        """
        base, extra = divmod(count, self.cells)
        lengths = np.full(self.cells, base, dtype=np.int64)
        lengths[:extra] += 1
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])

    @cached_property
    def final_chains(self) -> IntArray | None:
        """``[cells, members]`` order in which members are folded into each cell, if that is all the schedule does.

        Row c = (m0, m1, m2, ...) says that every member ends with ``op(op(op(m0, m1), m2), ...)`` in cell c, to which
        each member contributes once. None if some cell is reduced in another shape (a tree), or differs by member.
        """
        found = _symbolic_run(self)
        if found is None:
            return None
        table, previous, folded = found
        if not (table == table[0]).all():
            return None
        return _unroll(table[0], previous, folded, self.members)

    def chains_at(self, owners: IntArray) -> IntArray | None:
        """``[cells, members]`` like :attr:`final_chains`, of cell c as member ``owners[c]`` holds it in the end."""
        found = _symbolic_run(self)
        if found is None:
            return None
        table, previous, folded = found
        return _unroll(table[owners, np.arange(self.cells)], previous, folded, self.members)


class ScheduleBuilder:
    """Collects rounds of transfers.

    Args:
        name: the algorithm.
        members: number of members, >= 1.
        cells: number of cells per member, >= 1.
    """

    def __init__(self, name: str, members: int, cells: int) -> None:
        self._name = name
        self._members = members
        self._cells = cells
        self._lengths: list[int] = []
        self._columns: list[tuple[IntArray, ...]] = []

    def round(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        cell: ArrayLike,
        *,
        reduce: ArrayLike,
        lane: ArrayLike = 0,
        to_cell: ArrayLike | None = None,
    ) -> ScheduleBuilder:
        """Add a round. The arguments are broadcast against each other; ``[k, transfers]`` arrays add k rounds.

        ``cell`` of ``src`` lands in ``to_cell`` of ``dst``, by default in the cell of the same index.

        Raises ValueError if a member or a cell is out of range, a member sends to itself, a queue is used twice in a
        round, or a cell is written twice in it.
        """
        columns = np.broadcast_arrays(
            *(
                np.asarray(column, dtype=np.int64)
                for column in (src, dst, cell, lane, reduce, cell if to_cell is None else to_cell)
            )
        )
        source, target, cells, lanes, reduces, landing = (np.atleast_2d(column) for column in columns)
        if source.shape[1] == 0:
            return self
        number = len(self._lengths)
        limits = (
            ("src", source, self._members),
            ("dst", target, self._members),
            ("cell", cells, self._cells),
            ("to_cell", landing, self._cells),
        )
        for what, values, limit in limits:
            if values.min() < 0 or values.max() >= limit:
                raise ValueError(f"{self._name}, round {number}: {what} out of range 0..{limit - 1}: {values.tolist()}")
        if (source == target).any():
            raise ValueError(f"{self._name}, round {number}: a member sends to itself")
        queues = (source * self._members + target) * (int(lanes.max()) + 1) + lanes
        if _repeats_in_row(queues):
            raise ValueError(
                f"{self._name}, round {number}: two transfers use one queue (give them lanes, or two rounds)"
            )
        if _repeats_in_row(target * self._cells + landing):
            raise ValueError(f"{self._name}, round {number}: a cell of a member is written twice (use two rounds)")
        self._lengths += [source.shape[1]] * source.shape[0]
        self._columns.append(tuple(column.ravel() for column in (source, target, cells, reduces, lanes, landing)))
        return self

    def build(self) -> Schedule:
        """The finished schedule."""
        offsets = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)]).astype(np.int64)

        def joined(index: int) -> IntArray:
            parts = [columns[index] for columns in self._columns]
            return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

        return Schedule(
            self._name, self._members, self._cells, offsets, joined(0), joined(1), joined(2), joined(3).astype(bool),
            joined(4), joined(5),
        )  # fmt: skip


def _repeats_in_row(keys: IntArray) -> bool:
    ordered = np.sort(keys, axis=1)
    return bool((ordered[:, 1:] == ordered[:, :-1]).any())


def _symbolic_run(schedule: Schedule) -> tuple[IntArray, IntArray, IntArray] | None:
    """Symbolic run: which chain of members each (member, cell) holds in the end, None if one is not a chain.

    Returns ``(table, before, last)``: ``table`` ``[members, cells]`` nodes, ``before`` and ``last`` ``[nodes]``.
    """
    members, cells = schedule.members, schedule.cells
    # A chain is a linked list: node i = (node before it, member folded last, its length). Leaves are nodes 0..members-1.
    before: list[IntArray] = [np.full(members, -1, dtype=np.int64)]
    last: list[IntArray] = [np.arange(members, dtype=np.int64)]
    total = members
    held = np.repeat(np.arange(members, dtype=np.int64), cells)  # node held by each (member, cell)
    leaf_until = members
    for begin, end in zip(schedule.rounds[:-1].tolist(), schedule.rounds[1:].tolist(), strict=True):
        rows = slice(begin, end)
        source = schedule.src[rows] * cells + schedule.cell[rows]
        target = schedule.dst[rows] * cells + schedule.to_cell[rows]
        arriving, reduces = held[source], schedule.reduces[rows]
        local = held[target]
        if (local[reduces] >= leaf_until).any():
            return None  # what is reduced into has been reduced before: a tree, not a chain
        fresh = np.flatnonzero(reduces)
        before.append(arriving[fresh])
        last.append(local[fresh])
        nodes = arriving.copy()
        nodes[fresh] = np.arange(total, total + len(fresh))
        total += len(fresh)
        held[target] = nodes
    return held.reshape(members, cells), np.concatenate(before), np.concatenate(last)


def _unroll(nodes: IntArray, previous: IntArray, folded: IntArray, members: int) -> IntArray | None:
    """``[cells, members]`` the chains that end in ``nodes``; None if one does not fold every member exactly once."""
    cells = len(nodes)
    chains = np.empty((cells, members), dtype=np.int64)
    node = nodes.copy()
    for position in range(members - 1, -1, -1):
        if (node < 0).any():
            return None  # somebody does not contribute
        chains[:, position] = folded[node]
        node = previous[node]
    if (node >= 0).any() or (np.sort(chains, axis=1) != np.arange(members)).any():
        return None
    return chains
