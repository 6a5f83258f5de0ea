"""The log's rows: operations that are over, as numbers in columns.

An operation whose times are known when it is enqueued, and which is like others before it, is a :data:`Row` from the start.
Others are objects as long as a rank may wait for them, and rows once they are over. Readers get an :class:`Operation`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from kernbench.sim_engine.operation import DeviceStream, Lane, Operation


@dataclass(eq=False, frozen=True, slots=True)
class Title:
    """What operations of one plan, or of one collective, have in common.

    Attributes:
        name, kind, nbytes: see :class:`Operation`.
        spread: shares of its duration by which measurements lie below and above it.
        draw, detail: see :class:`Operation`.
    """

    name: str
    kind: str
    nbytes: int
    spread: tuple[float, float]
    draw: float = 0.0
    detail: dict[str, Any] | None = None


Row = tuple[Title, Lane, float, float, float, float, float]
"""An operation that has ended: what it is, whose, when it was enqueued, started and ended, how long it took, and the host's
seconds for it."""


def as_operation(entry: object) -> Any:
    """A row as the :class:`Operation` that it is; all else as it is."""
    if type(entry) is not tuple:
        return entry
    title, lane, enqueue, start, end, seconds, host = entry
    op = Operation(title.name, title.kind, lane.rank, lane.sip, lane.stream, enqueue, seconds, title.spread)
    op.nbytes, op.host, op.start, op.end, op.detail = title.nbytes, host, start, end, title.detail
    return op


def _is_over(op: Operation) -> bool:
    """Whether nothing about it changes any more, and a row says all of it."""
    return op.end is not None and op.start is not None and op.executed and op.error is None


class LogColumns(NamedTuple):
    """What a log's operations have, each a value of an array: for sums over all of them, which need no objects.

    Attributes:
        names, kinds: in the order in which they are first met.
        name, kind: of each operation, its place among them.
        rank: -1 of main's.
        start, end: virtual seconds, NaN while unknown.
        nbytes: payload, bytes.
    """

    names: Sequence[str]
    kinds: Sequence[str]
    name: NDArray[np.int64]
    kind: NDArray[np.int64]
    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    nbytes: NDArray[np.int64]

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Whether each has ended."""
        return ~(np.isnan(self.start) | np.isnan(self.end))

    def is_kind(self, kind: str) -> NDArray[np.bool_]:
        """Whether each is of a kind."""
        return self.kind == (self.kinds.index(kind) if kind in self.kinds else -1)


FOLD_AT = 4096
"""Entries that a log keeps as they come before it puts them into columns."""


class LoggedOperations(Sequence[Operation]):
    """Operations in the order of enqueueing. Those that are over are in columns, the others objects beside them.

    Attributes:
        recent: those that have come lately, as they come.
    """

    def __init__(self) -> None:
        self.recent: list[Row | Operation] = []
        self._times = array("d")  # five of each row: those behind its title and its lane
        self._heads = array(
            "I"
        )  # three of each row: the numbers of its title, lane and operands; of an object, `_OBJECT`
        self._objects: dict[int, Operation] = {}
        self._known: dict[object, int] = {}
        self._detailed: dict[tuple[int, int], int] = {}  # titles that have a detail: by its identity, and bytes
        self._by_number: list[Any] = [()]  # number 0: no operands
        self._dropped = 0

    def fold(self) -> None:
        """Put what has come lately, or has ended since, into the columns."""
        times, heads = self._times, self._heads
        for number in [number for number, op in self._objects.items() if _is_over(op)]:
            at, (head, row) = number - self._dropped, self._row(self._objects.pop(number))
            heads[_HEADS * at : _HEADS * (at + 1)], times[_TIMES * at : _TIMES * (at + 1)] = (
                array("I", head),
                array("d", row),
            )
        first = self._dropped + len(heads) // _HEADS
        rows: list[tuple[float, ...]] = []
        numbers: list[int] = []
        for at, entry in enumerate(self.recent):
            if type(entry) is tuple:
                numbers += (self._number(entry[0], entry[0]), self._number(entry[1], entry[1]), 0)
                rows.append(entry[2:])
            elif _is_over(entry):  # type: ignore[arg-type]
                head, row = self._row(entry)  # type: ignore[arg-type]
                numbers += head
                rows.append(row)
            else:
                self._objects[first + at] = entry  # type: ignore[assignment]
                numbers += _NO_HEAD
                rows.append(_NO_ROW)
        heads.extend(numbers)
        times.extend(chain.from_iterable(rows))
        self.recent.clear()
        self._detailed.clear()

    def _number(self, key: object, value: object) -> int:
        """The number by which columns refer to a value."""
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self._by_number)
            self._by_number.append(value)
        return number

    def _row(self, op: Operation) -> tuple[tuple[int, int, int], tuple[float, ...]]:
        """What columns have of an operation that is over."""
        what = op.name, op.kind, op.nbytes, op.spread, op.draw
        if op.detail is None:
            title = self._known.get(what) or self._number(what, Title(*what))
        else:
            title = self._detailed.get(
                (id(op.detail), op.nbytes), 0
            )  # a detail says the rest, and its title keeps it alive
            if not title:
                title = self._detailed[id(op.detail), op.nbytes] = len(self._by_number)
                self._by_number.append(Title(*what, op.detail))
        where = op.rank, op.sip, op.stream
        lane = self._known.get(where) or self._number(where, Lane(op.rank, DeviceStream(op.sip, op.stream)))
        operands = op.operands
        if type(operands) is list:
            operands = tuple(operands)
        times = op.enqueue, cast(float, op.start), cast(float, op.end), op.duration or 0.0, op.host
        return (title, lane, self._number(operands, operands) if operands else 0), times

    def drop(self, count: int) -> list[Operation]:
        """Forget the first ``count``, which are given once more."""
        self.fold()
        gone = self[:count]
        del self._heads[: _HEADS * count], self._times[: _TIMES * count]
        for number in range(self._dropped, self._dropped + count):
            self._objects.pop(number, None)
        self._dropped += count
        self._forget_unused()
        return gone

    def _forget_unused(self) -> None:
        """Number again what columns refer to."""
        used = np.unique(np.array(self._heads, np.uint32)).tolist()
        new = {number: at for at, number in enumerate(dict.fromkeys((0, *used))) if number != _OBJECT}
        self._by_number = [self._by_number[number] for number in new]
        self._known = {key: new[number] for key, number in self._known.items() if number in new}
        new[_OBJECT] = _OBJECT
        self._heads = array("I", map(new.__getitem__, self._heads))

    def columns(self) -> LogColumns:
        """All of them as they are now."""
        self.fold()
        heads = np.array(self._heads, np.int64).reshape(-1, _HEADS)
        times = np.array(self._times, np.float64).reshape(-1, _TIMES)
        names: dict[str, int] = {}
        kinds: dict[str, int] = {}

        def place(known: dict[str, int], word: str) -> int:
            return known.setdefault(word, len(known))

        titles = np.zeros((len(self._by_number), 4), np.int64)  # name, kind, bytes of titles; rank of lanes
        for number, head in enumerate(self._by_number):
            if type(head) is Title:
                titles[number, :3] = place(names, head.name), place(kinds, head.kind), head.nbytes
            elif type(head) is Lane:
                titles[number, 3] = -1 if head.rank is None else head.rank
        rows = heads[:, 0] != _OBJECT
        of_title = np.zeros((len(heads), 3), np.int64)
        of_title[rows] = titles[heads[rows, 0], :3]
        rank, start, end = np.full(len(heads), -1), times[:, 1], times[:, 2]
        rank[rows] = titles[heads[rows, 1], 3]
        for number, op in self._objects.items():
            at = number - self._dropped
            of_title[at] = place(names, op.name), place(kinds, op.kind), op.nbytes
            rank[at] = -1 if op.rank is None else op.rank
            start[at] = np.nan if op.start is None else op.start
            end[at] = np.nan if op.end is None else op.end
        return LogColumns([*names], [*kinds], of_title[:, 0], of_title[:, 1], rank, start, end, of_title[:, 2])

    def entries(self) -> Iterator[Any]:
        """All of them as they are kept, rows as rows."""
        self.fold()
        heads, times, by_number, objects = self._heads, self._times, self._by_number, self._objects
        for at in range(len(heads) // _HEADS):
            title = heads[_HEADS * at]
            if title == _OBJECT:
                yield objects[self._dropped + at]
            else:
                yield by_number[title], by_number[heads[_HEADS * at + 1]], *times[_TIMES * at : _TIMES * (at + 1)]

    def __len__(self) -> int:
        return len(self._heads) // _HEADS + len(self.recent)

    def _folded(self, at: int) -> Operation:
        title, lane, operands = self._heads[_HEADS * at : _HEADS * (at + 1)]
        if title == _OBJECT:
            return self._objects[self._dropped + at]
        values = self._by_number
        found: Operation = as_operation((values[title], values[lane], *self._times[_TIMES * at : _TIMES * (at + 1)]))
        found.operands = values[operands]
        return found

    @overload
    def __getitem__(self, at: int) -> Operation: ...
    @overload
    def __getitem__(self, at: slice) -> list[Operation]: ...
    def __getitem__(self, at: int | slice) -> Operation | list[Operation]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        folded = len(self._heads) // _HEADS
        if 0 <= number < folded:
            return self._folded(number)
        if not folded <= number < len(self):
            raise IndexError(at)
        found: Operation = as_operation(self.recent[number - folded])
        return found

    def __iter__(self) -> Iterator[Operation]:
        return map(self.__getitem__, range(len(self)))


_HEADS, _TIMES = 3, 5
_OBJECT = (1 << 32) - 1
_NO_HEAD, _NO_ROW = (_OBJECT, 0, 0), (0.0,) * _TIMES
